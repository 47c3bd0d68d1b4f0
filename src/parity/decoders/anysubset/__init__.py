"""How a text is filled in: one standalone module per method, one function of the module's name in it.

    def method(model, start, *, noise, ...options) -> Iterator[Fill]

model    anything that satisfies `parity.anysubset.infilling.AnySubsetModel`
start    `Infilling`: known tokens, order of decoding, and where each row begins and ends
noise    `parity.noise.Noise` of the B rows
options  keyword-only, with types and bounds: they are the method's configuration schema

A row's result depends on its own noise and prompt alone. A draw of rank r in a loop that began at rank n has the index
n N + r, so none is used twice. A decoder counts, times and logs nothing; `parity.anysubset.steps.fill` does. Each
module declares CLAIM and SOURCE, as those of `parity.decoders`.
"""
