"""core-deepinfer: its greedy loop and its engine with a cache, on its own tiny model."""

import numpy as np
from core_deepinfer.engine import Engine, EngineConfig
from core_deepinfer.model import TinyModel
from core_deepinfer.speculative import generate_speculative
from parity_certify import Distribution, Sampled

LENGTH, DRAFTS = 4, 2


def make_models():
    """Make two of their models of four tokens, whose choices depend on the text."""
    return TinyModel(vocab_size=4, seed=2), TinyModel(vocab_size=4, depth=1, seed=3)


def distribution(case, models):
    """Compute the distribution of greedy decoding after four prompts, from a pass over every text."""
    target, prompts = make_models()[0], np.random.default_rng(1).integers(4, size=(4, 3))
    prefixes = [prefix for length in range(LENGTH) for prefix in np.ndindex((4,) * length)]
    texts = [[*prompt.tolist(), *prefix] for prompt in prompts for prefix in prefixes]
    chosen = [int(target.prefill(text).logits[-1].argmax()) for text in texts]
    return Distribution("TinyModel, greedy", prompts, np.eye(4)[chosen].reshape(4, len(prefixes), 4), LENGTH)


def sampler(distribution, models, engine=False):
    """Make a sampler by their loop, or by their engine, which takes all prompts as requests."""
    target, draft = make_models()

    def sample(prompts, seed):
        prompts = [prompt.tolist() for prompt in prompts]
        if not engine:
            results = [generate_speculative(target, draft, p, max_tokens=LENGTH, draft_width=DRAFTS) for p in prompts]
            proposed = sum(r.draft_tokens for r in results)
        else:
            server = Engine(target, draft, config=EngineConfig(draft_width=DRAFTS))
            for prompt in prompts:
                server.submit(prompt, max_tokens=LENGTH)
            results = server.run()
            proposed = sum(r.proposed_drafts for r in results)
        return Sampled(np.array([r.tokens for r in results]), proposed, sum(r.accepted_drafts for r in results))

    return sample
