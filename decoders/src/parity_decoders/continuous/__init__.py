"""Decoders of images of continuous tokens, called as in `parity_decoders`.

model  a `parity_decoders.protocols.continuous.Pair` of target and, where a method needs one, draft model
start  `Start`: the order in which each image's positions are decoded
yields `Draw`, one for each step
"""
