"""How models are decoded: a folder for each kind of model, one module per method, with one function of the module's
name.

    def method(model, start, *, noise, ...options) -> Iterator[Step | Fill | Draw]

model    anything that satisfies the protocol of its kind; its distributions already include the sampling settings
start    the prompts
noise    `parity_decoders.noise.Noise` of the B rows
options  keyword-only, with types, bounds and defaults: they are the method's configuration schema

A row's result depends on its own noise and prompt alone, not on its batch. A decoder does not count, time or log:
`parity.decode` does, from the steps (`parity_decoders.steps`). A decoder that stops before every row is complete is an
error.

Words: the table in docs/explanation/architecture.md.

A module declares literals such as CLAIM and SOURCE: the fields of `parity.experiment.options.Declaration`.
"""
