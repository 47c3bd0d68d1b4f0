"""DeepSpec: `verify_draft_tokens`, with a stub that returns the target's logits."""

import dataclasses
from types import SimpleNamespace

import borrowed
import torch

NAMES = "gather_token_probs", "logits_to_probs", "sample_from_probs", "sample_residual"
FILE = "deepspec/eval/base_evaluator.py"


def verifier(temperature=1.0):
    """Make a verifier of one row by their `verify_draft_tokens`."""
    sampling = dict(zip(NAMES, borrowed.functions("deepspec/utils/sampling.py", *NAMES, torch=torch), strict=True))
    scope = {"torch": torch, "dataclass": dataclasses.dataclass, **sampling}
    proposal_of, _, verify_drafts = borrowed.functions(
        FILE, "DraftProposal", "VerificationResult", "verify_draft_tokens", **scope
    )

    def verify(tokens, q, p):
        K = len(tokens)
        logits = torch.tensor(p).float().log()[None] * temperature
        result = verify_drafts(
            target_model=lambda **_: SimpleNamespace(logits=logits),
            proposal=proposal_of(K, torch.tensor([[0, *tokens]]), torch.tensor(q).float()[None]),
            position_ids=torch.arange(K + 1)[None],
            start=0,
            past_key_values_target=None,
            temperature=temperature,
            max_proposal_tokens=K,
        )
        return result.committed_tokens[0].tolist()

    return verify
