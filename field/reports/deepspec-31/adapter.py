"""DeepSpec: a proposal of its EAGLE-3 evaluator and `verify_draft_tokens`, with tables in place of its models."""

import dataclasses
from types import SimpleNamespace
from unittest import mock

import borrowed
import torch
from parity_certify import Speculated

NAMES = "gather_token_probs", "logits_to_probs", "sample_from_probs", "sample_residual", "sample_tokens"


def speculation(dtype="bfloat16"):
    """Make the round of one row; dtype: of the draft model's logits."""
    sampling = dict(zip(NAMES, borrowed.functions("deepspec/utils/sampling.py", *NAMES, torch=torch), strict=True))
    scope = {"torch": torch, "dataclass": dataclasses.dataclass, "has_stop_token": mock.Mock(return_value=False)}
    scope |= sampling
    names = "DraftProposal", "VerificationResult", "verify_draft_tokens"
    proposal_of, _, verify = borrowed.functions("deepspec/eval/base_evaluator.py", *names, **scope)
    (propose,) = borrowed.functions("deepspec/eval/eagle3/evaluator.py", "_propose", DraftProposal=proposal_of, **scope)

    class Drafter:
        """The draft model: its hidden state are the tokens so far."""

        def __init__(self, model):
            self.model = model

        def compute_logits(self, hidden):
            return torch.from_numpy(self.model(hidden)).to(getattr(torch, dtype))[:, None]

        def __call__(self, hidden_states, input_ids, **_):
            return torch.cat([hidden_states, input_ids], 1)

    def speculate(draft_model, target_model, prefix, drafts):
        places = torch.arange(drafts + 1)[None]
        start = torch.from_numpy(prefix)[None]
        context = SimpleNamespace(draft_cache=mock.MagicMock(), draft_hidden=start, position_ids=places)
        settings = SimpleNamespace(args=SimpleNamespace(temperature=1.0), max_proposal_tokens=drafts)
        settings.draft_model = Drafter(draft_model)
        with mock.patch.object(torch, "multinomial", wraps=torch.multinomial) as drawn:
            first = torch.zeros((1, 1), dtype=torch.long)  # the token before the round
            proposal = propose(settings, context=context, output_ids=first, position_ids=places, start=0)
        distributions = torch.stack([call.args[0] for call in drawn.call_args_list], 1)
        tokens = proposal.verify_input_ids[0, 1:].numpy()
        logits = torch.stack([torch.from_numpy(target_model(tokens[:t])) for t in range(drafts + 1)])[None].float()
        result = verify(
            target_model=lambda **_: SimpleNamespace(logits=logits),
            proposal=proposal,
            position_ids=places,
            start=0,
            past_key_values_target=None,
            temperature=1.0,
            max_proposal_tokens=drafts,
        )
        return Speculated(result.committed_tokens[0].tolist(), proposal.draft_probs[0], distributions[0])

    return speculate
