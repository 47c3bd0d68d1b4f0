"""How the tokens of a picture are decoded: what `parity.decoders` says, with

model  a `parity.models.discrete.protocol.TokenModel`
start  [B] int64, the token at position -1
yields `Step`, one for each pass of the target

What several methods do is in one place beside the folder: `sequence_buffer` (what is written), `window` (Jacobi),
`trees` and `candidates` (drafters).
"""
