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

A module declares literals, which the workflow reads from its source (`parity.experiment.options`):

CLAIM         what its paper says of its law, "lossless" or "lossy"; the workflow measures whether that is so
SOURCE        the paper, and where in it
EXACT_WITH    options at whose stated values alone a claim of "lossless" is made
COUPLED_WITH  options with which it shares plain decoding's noise, so that its tokens must be plain decoding's; {}: any
PLAIN         options with which it is plain decoding, the baseline of its kind, which one module of it is; {}: any
NEEDS         the companion of the target that it needs: "drafter" or "draft" (a draft model)
REFILLS       True if a row can begin in the midst of others (`parity.decode.queue`)
RESTS_ON      an observation that the method rests on: a module of `parity.metrics` that makes figures of it
EXACT_LAYER   options with which it runs on enumerable models; {} (as if left out): any; None: never
"""
