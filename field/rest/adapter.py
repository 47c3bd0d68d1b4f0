"""REST: `evaluate_posterior` with top-p sampling, and the token after it as their next pass draws it."""

import borrowed
import torch

TOP_P = 0.9999
NAMES = "top_p_filtering", "get_nucleus_posterior_mask", "evaluate_posterior"
DRAWN = "sampled_tokens = sampled_tokens.view(n_samples, n_tokens)\n"
SHARED = """\
    same = (candidates[:, None, :-1] == candidates[None, :, :-1]).int().cumprod(-1)  # paths that begin alike
    sampled_tokens = sampled_tokens.gather(0, same.argmax(1))  # take the tokens of the first of them
"""
MEND = {
    DRAWN: DRAWN + SHARED,
    "    return posterior_mask\n": "    return posterior_mask, sampled_tokens\n",
    "posterior_mask = get_nucleus": "posterior_mask, sampled_tokens = get_nucleus",
    "return best_candidate, accept_length\n": "return best_candidate, accept_length, sampled_tokens\n",
}


def verifier(mend=False):
    """Make a verifier of a tree by their `evaluate_posterior`, with `mend` corrected by MEND: a token is drawn once
    for each node, and the one that no draft matched is the next token."""
    scope = {"torch": torch, "F": torch.nn.functional, "replace": MEND if mend else {}}
    filter_top_p, _, evaluate = borrowed.functions("rest/model/utils.py", *NAMES, **scope)

    def verify(tokens, parents, q, p):
        tree = borrowed.eagle_tree(tokens, parents, q, p)
        candidates, logits = tree["candidates"], tree["logits"]
        best, length, *drawn = evaluate(logits, candidates, 1.0, TOP_P)
        distribution = filter_top_p(logits[None, best, length].clone(), TOP_P).softmax(-1)
        is_rejected = length < candidates.shape[1] - 1
        following = drawn[0][best, length] if drawn and is_rejected else torch.multinomial(distribution, 1)
        return [*candidates[best, 1 : length + 1].tolist(), int(following)]

    return verify
