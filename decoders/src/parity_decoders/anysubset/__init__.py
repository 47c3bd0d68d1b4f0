"""Decoders of text in any order, called as in `parity_decoders`.

model  a `parity_decoders.protocols.anysubset.AnySubsetModel`
start  `Infilling`: known tokens, the order of decoding, and where each row begins and ends
yields `Fill`, one for each loop

In a loop that began at rank n, the draw of rank r has the index n N + r, so no index is used twice.
"""
