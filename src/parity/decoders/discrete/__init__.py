"""How a model is decoded: one standalone module per method, one function of the module's name in it.

    def method(model, start, *, noise, ...options) -> Iterator[Step]

model    anything that satisfies `parity.models.protocol.TokenModel`, its law already that of the sampling settings
start    [B] int64, the token at position -1
noise    `parity.noise.Noise` of the B rows
options  keyword-only, with types and bounds: they are the method's configuration schema

Every step is one pass of the target. A decoder counts, times and logs nothing; `parity.decode` does. Each module
declares CLAIM, what its paper says of its law ("lossless" or "lossy"), and SOURCE; the workflow measures whether the
claim holds.
"""
