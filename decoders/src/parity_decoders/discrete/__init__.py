"""Decoders of image tokens, called as in `parity_decoders`.

model  a `parity_decoders.protocols.discrete.TokenModel`
start  [B] int64, the token at position -1
yields `Step`, one for each pass of the target

Shared code is beside the folder: `sequence_buffer` (the tokens so far), `window` (Jacobi), `trees` and `candidates`
(drafters).
"""
