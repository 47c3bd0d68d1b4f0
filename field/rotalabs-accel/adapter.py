"""rotalabs-accel: its three functions that verify drafts, with a stub that returns the target's logits."""

import inspect
from importlib import import_module
from types import SimpleNamespace

import torch

MODULES = {"rejection_sample": "sampling", "verify_tokens": "core", "eagle_verify": "eagle"}
MEND = {  # the draft's distribution, where they hand over its probability of one token
    "rejection_sample": {
        "target_prob / (draft_prob + 1e-10)": "target_prob / (draft_prob[draft_token] + 1e-10)",
        "draft_dist[draft_token] = draft_prob": "draft_dist = draft_prob",
    },
    "verify_tokens": {
        "p_target / (p_draft + 1e-10)": "p_target / (p_draft[draft_token] + 1e-10)",
        "draft_dist[draft_token] = p_draft": "draft_dist = p_draft",
    },
    "eagle_verify": {
        "draft_probs[0, i].item()": "draft_probs[0, i]",
        "max(draft_prob, 1e-10)": "max(draft_prob[draft_token].item(), 1e-10)",
        "bonus = target_logits[0, k].argmax()": "bonus = torch.multinomial(target_probs[0, k], 1)[0]",
    },
}


def load_function(name, mend):
    """Load one of their functions, with the mend if asked for."""
    module = import_module(f"rotalabs_accel.speculative.{MODULES[name]}")
    source = inspect.getsource(getattr(module, name))
    for old, new in MEND[name].items() if mend else ():
        assert old in source, old
        source = source.replace(old, new)
    scope = dict(vars(module))
    exec(compile("from __future__ import annotations\n" + source, name, "exec"), scope)
    return scope[name]


def verifier(function, mend=False):
    """Make a verifier of one row by their `function`."""
    theirs = load_function(function, mend)

    def verify(tokens, q, p):
        K, drafts = len(tokens), torch.tensor(tokens)
        distributions, logits = torch.tensor(q).float(), torch.tensor(p).float().log()
        told = distributions if mend else distributions.gather(1, drafts[:, None])[:, 0]
        if function != "rejection_sample":
            model, batch = lambda *_, **__: SimpleNamespace(logits=logits[None], past_key_values=None), {}
            if function == "verify_tokens":
                batch = {"top_p": None}  # a number would be taken for top_k
            else:
                drafts, told = drafts[None], told[None]
            prompt = torch.zeros((1, 1), dtype=torch.long)
            return theirs(model, prompt, drafts, told, None, use_sampling=True, **batch)[0].tolist()
        out = []
        for i in range(K):
            accepted, token = theirs(torch.tensor(p[i]).float()[tokens[i]], told[i], drafts[i], logits[i])
            out.append(int(token))
            if not accepted:
                return out
        return [*out, int(torch.multinomial(torch.tensor(p[K]), 1))]  # this one is the caller's

    return verify
