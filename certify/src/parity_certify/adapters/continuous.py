"""transformers' continuous batching (`generate_batch`, `cache_implementation="paged"`): requests that share steps."""

from typing import Any

import numpy as np

from parity_certify.adapters.transformers import Generate, endless, generation

SIZES: dict[str, Any] = {
    "page_size": 16,
    "num_blocks": 64,
    "max_batch_tokens": 64,
}  # small, so that requests wait and pages are reused


class Continuous(Generate):
    """A sampler: all prompts of a batch in one call, seeded by its configuration."""

    def __call__(self, prompts: np.ndarray, seed: int) -> Any:
        import transformers

        given = generation(self.options, self.length, self.end)
        del given["cache_implementation"]
        config = transformers.GenerationConfig(**{"eos_token_id": -1} | given)
        engine = transformers.ContinuousBatchingConfig(seed=seed, **SIZES)
        with endless(self.model, self.end):
            found = self.model.generate_batch(
                inputs=np.asarray(prompts).tolist(), generation_config=config, continuous_batching_config=engine
            )
        return [np.array(request.generated_tokens) for request in found.values()]
