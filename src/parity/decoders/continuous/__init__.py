"""How images of continuous tokens are decoded: what `parity.decoders` says, with

model  a `parity.models.continuous.protocol.Pair` of target and, where a method needs one, draft model
start  `Start`: the order in which each image's positions are decoded
yields `Draw`, one for each step
"""
