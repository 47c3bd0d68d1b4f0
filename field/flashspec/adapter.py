"""flashspec: its engine with prompt look-up and a draft model, or that alone, on tables in place of the networks."""

import logging

import borrowed
import numpy as np
import torch
from flashspec import FlashSpecConfig, SamplingConfig, SpeculativeEngine
from flashspec.engine import HuggingFaceDrafter, TargetModel
from parity_certify import Sampled
from parity_certify.laws import random_law


class Table(torch.nn.Module):
    """A table as a module that takes no cache."""

    def __init__(self, table):
        super().__init__()
        self.table = borrowed.TableModel(table, 1)  # the prompt is one token

    def forward(self, input_ids):
        return self.table(input_ids)


class Nucleus(TargetModel):
    """Their target with the mend: the laws that drafts are verified by keep the nucleus alone."""

    top_p = 1.0

    def score_draft(self, *arguments, **keywords):
        laws = super().score_draft(*arguments, **keywords).exp()
        ranked, order = laws.sort(dim=-1, descending=True)
        dropped = (ranked.cumsum(-1) - ranked >= self.top_p).gather(-1, order.argsort(-1))
        laws = laws.masked_fill(dropped, 0.0)
        return (laws / laws.sum(-1, keepdim=True)).log()


def sampler(law, models, strategy="auto", rows=1, mend=False, top_p=1.0):
    """Make a sampler by their engine, so many rows a call; strategy: of drafts."""
    logging.disable(logging.WARNING)
    device, table = torch.device("cpu"), random_law(law.vocab, law.length).tables[0]  # they apply top-p
    target = (Nucleus if mend else TargetModel)("target", device, torch.float32, model=Table(table))
    target.top_p = top_p
    drafter = HuggingFaceDrafter("draft", device, model=Table(law.extra["draft"]))
    bandit = {} if strategy == "auto" else {"bandit": {"n_arms": 1}}
    sampling = SamplingConfig(gamma=2, top_p=top_p)
    config = FlashSpecConfig(device="cpu", sampling=sampling, drafter_strategy=strategy, **bandit)
    engine = SpeculativeEngine(config, [drafter], target)

    def sample(prompts, seed):
        torch.manual_seed(seed)
        chunks = [torch.tensor(prompts[i : i + rows]) for i in range(0, len(prompts), rows)]
        results = [engine.generate(chunk, law.length) for chunk in chunks]
        steps = [step for result in results for step in result.arm_steps]
        tokens = np.concatenate([result.output_ids.numpy() for result in results])
        return Sampled(tokens, sum(s.proposed for s in steps), sum(s.accepted for s in steps))

    return sample
