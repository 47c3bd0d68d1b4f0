"""flashspec: its engine on the tiny Llama, with its draft model, prompt look-up or both."""

import logging

import numpy as np
import torch
from flashspec import FlashSpecConfig, SamplingConfig, SpeculativeEngine
from flashspec.engine import HuggingFaceDrafter, NgramDrafter, TargetModel
from parity_certify import Sampled
from transformers import AutoModelForCausalLM


class Nucleus(TargetModel):
    """Their target with the mend: the laws that drafts are verified by keep the nucleus alone."""

    top_p = 1.0

    def verify(self, *arguments, **keywords):
        laws = super().verify(*arguments, **keywords).exp()
        ranked, order = laws.sort(dim=-1, descending=True)
        dropped = (ranked.cumsum(-1) - ranked >= self.top_p).gather(-1, order.argsort(-1))
        laws = laws.masked_fill(dropped, 0.0)
        return (laws / laws.sum(-1, keepdim=True)).log()


def sampler(law, models, strategy="auto", rows=1, mend=False, **options):
    """Make a sampler by their engine, so many rows a call; strategy: of drafts; options: of SamplingConfig."""
    logging.disable(logging.WARNING)
    target, draft = (AutoModelForCausalLM.from_pretrained(models / name) for name in ("llama", "llama-assistant"))
    device = torch.device("cpu")
    wrapped = (Nucleus if mend else TargetModel)("target", device, torch.float32, model=target)
    wrapped.top_p = options.get("top_p", 1.0)
    drafter = HuggingFaceDrafter("draft", device, temperature=options.get("temperature", 1.0), model=draft)
    drafters = [NgramDrafter()] if strategy == "lookup" else [drafter]
    settings = {"drafter_strategy": "auto" if strategy == "lookup" else strategy}
    if strategy != "auto":
        settings["bandit"] = {"n_arms": 1}
    config = FlashSpecConfig(device="cpu", sampling=SamplingConfig(gamma=2, **options), **settings)
    engine = SpeculativeEngine(config, drafters, wrapped)

    def sample(prompts, seed):
        torch.manual_seed(seed)
        results = [
            engine.generate(torch.tensor(prompts[i : i + rows]), law.length) for i in range(0, len(prompts), rows)
        ]
        steps = [step for result in results for step in result.arm_steps]
        tokens = np.concatenate([result.output_ids.numpy() for result in results])
        return Sampled(tokens, sum(s.proposed for s in steps), sum(s.accepted for s in steps))

    return sample
