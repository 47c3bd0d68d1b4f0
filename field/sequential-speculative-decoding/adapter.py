"""sequential-speculative-decoding: its three steps, each in a loop, on tables in place of the two networks."""

import inspect
from importlib import import_module

import borrowed
import numpy as np
import torch
from parity_certify import Sampled

GAMMA = 3
MEND = {
    "compute_capped_prefix_ratio(ratios, gamma - 1)": "compute_capped_prefix_ratio(ratios, gamma)",
    "tau, ratios\n": "tau + 1, ratios\n",
    "tau, ratios)": "tau + 1, ratios)",
    "range(tau):": "range(tau + 1):",
}


def load_step(method, mend):
    """Load the step of a method, with the mend: lengths of prefixes where places stood."""
    step_name = "standard_speculative_step" if method == "standard" else f"{method}_step"
    module = import_module("seqspecdecod." + ("standard_sd" if method == "standard" else method))
    if not mend:
        return getattr(module, step_name)
    source = inspect.getsource(module.capped_hsd_step)
    for old, new in MEND.items():
        assert old in source, old
        source = source.replace(old, new)
    scope = dict(vars(module))
    exec(source, scope)
    return scope[step_name]


def sampler(distribution, models, method, mend=False, temperature=1.0):
    """Make a sampler by a method's step, three drafts a step."""
    step = load_step(method, mend)

    def sample(prompts, seed):
        torch.manual_seed(seed)
        skip, rows, drafted, accepted = prompts.shape[1], [], 0, 0
        target = borrowed.TableModel(distribution.tables[0] ** temperature, skip)
        draft = borrowed.TableModel(distribution.extra["draft"], skip)
        for prompt in prompts:
            tokens = torch.tensor(prompt)[None]
            while tokens.shape[1] < skip + distribution.length:
                tokens, right, of = step(draft, target, tokens, gamma=GAMMA, draft_temperature=1.0,
                                         target_temperature=temperature)  # fmt: skip
                drafted, accepted = drafted + of, accepted + right
            rows.append(tokens[0, skip : skip + distribution.length].numpy())
        return Sampled(np.stack(rows), drafted, accepted)

    return sample
