"""How a text is filled in: what `parity.decoders` says, with

model  a `parity.models.anysubset.protocol.AnySubsetModel`
start  `Infilling`: known tokens, the order of decoding, and where each row begins and ends
yields `Fill`, one for each loop

A draw of rank r in a loop that began at rank n has the index n N + r, so none is used twice.
"""
