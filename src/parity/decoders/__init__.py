"""How models are decoded: a folder for each kind of model, one standalone module per method, one function of the
module's name in it.

    def method(model, start, *, noise, ...options) -> Iterator[Step | Fill | Draw]

model    anything that satisfies the protocol of its kind; its laws are already those of the sampling settings
start    what is to be decoded
noise    `parity.base.noise.Noise` of the B rows
options  keyword-only, with types, bounds and defaults: they are the method's configuration schema

A row's result depends on its own noise and start alone, not on the batch it stands in. A decoder counts, times and logs
nothing: `parity.decode` does, from the steps (`parity.decoders.steps`), and a decoder that stops before every row is
whole is an error there.

Words: a draft is a token proposed before the target has judged it; a draft model proposes by its own laws; a drafter is
a network that goes on from the target's features (EAGLE); a token is forced if the grammar leaves no choice.

A module declares literals such as CLAIM and SOURCE: the fields of `parity.experiment.options.Declaration`.
"""
