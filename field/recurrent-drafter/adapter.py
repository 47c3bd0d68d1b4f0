"""Recurrent drafter: the choice among beams, and the token after it."""

import borrowed
import numpy as np
import torch

NAMES = "_select_one_per_row", "_choose_from_candidates", "_prepare_next_input"


def verifier():
    """Make a verifier of a row of drafts, or of a tree, whose paths are the beams, by their functions."""
    scope = {"torch": torch, "dist": torch.distributions, "Tuple": tuple}
    _, choose, draw = borrowed.functions("recurrent_drafting/recurrent_drafting.py", *NAMES, **scope)

    def verify(tokens, *distributions):  # parents [N] of a tree, q [N, V], p [N + 1, V]
        parents = distributions[0] if len(distributions) == 3 else np.arange(len(tokens)) - 1
        q, p = distributions[-2:]
        paths = torch.tensor(borrowed.list_paths(parents))
        root = torch.zeros((len(paths), 1), dtype=torch.long)
        beams = torch.cat([root, torch.tensor(tokens)[paths]], 1)[None]
        target = torch.tensor(p).float().log()[torch.cat([root, paths + 1], 1)][None]
        draft = torch.tensor(q).float().log()[paths][None]
        accepted, beam = choose(beams, target, draft)
        states = torch.zeros(*beams.shape, 1)
        _, following = draw(draft, target, states, beam, accepted)
        return [*beams[0, beam[0], 1 : accepted[0] + 1].tolist(), int(following)]

    return verify
