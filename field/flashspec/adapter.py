"""flashspec: its `SpeculativeEngine` with rejection sampling, on the tiny Llama and its draft model."""

import numpy as np
import torch
from flashspec import FlashSpecConfig, SamplingConfig, SpeculativeEngine
from flashspec.engine.hf_drafter import HuggingFaceDrafter
from flashspec.engine.verifier import TargetModel
from parity_certify import Sampled
from parity_certify.adapters.transformers import load_model

COMMON = {"device": "cpu", "dtype": "float32", "compile": False}


def sampler(distribution, models, temperature=1.0, top_p=1.0, strategy="bandit"):
    """Make a sampler with two drafts a round, one prompt a call; strategy: "bandit" for the draft model alone."""
    target, drafter = (load_model(models / name) for name in ("llama", "llama-assistant"))
    target = TargetModel("target", torch.device("cpu"), torch.float32, model=target)
    drafter = HuggingFaceDrafter("drafter", "cpu", temperature=temperature, model=drafter)

    def sample(prompts, seed):
        rows, steps = [], []
        for i, prompt in enumerate(np.asarray(prompts)):
            number = int(np.random.default_rng([seed, i]).integers(2**31))
            sampling = SamplingConfig(gamma=2, temperature=temperature, top_p=top_p, seed=number)
            bandit = {"n_arms": 1}
            config = FlashSpecConfig(drafter_strategy=strategy, bandit=bandit, sampling=sampling, **COMMON)
            result = SpeculativeEngine(config, [drafter], target).generate(
                torch.tensor(prompt)[None], distribution.length
            )
            rows.append(result.output_ids[0].tolist())
            steps += result.arm_steps
        return Sampled(rows, sum(step.proposed for step in steps), sum(step.accepted for step in steps))

    return sample
