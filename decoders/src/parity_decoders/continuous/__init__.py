"""How images of continuous tokens are decoded: what `parity_decoders` says, with

model  a `parity_decoders.protocols.continuous.Pair` of target and, where a method needs one, draft model
start  `Start`: the order in which each image's positions are decoded
yields `Draw`, one for each step
"""
