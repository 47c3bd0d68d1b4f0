"""rotalabs-accel: a drafted token is verified with a wrong residual. Exit code 1: the fault shows."""

import sys
from types import SimpleNamespace

import torch
from rotalabs_accel.speculative.core import verify_tokens
from rotalabs_accel.speculative.eagle import eagle_verify
from rotalabs_accel.speculative.sampling import rejection_sample

TARGET, DRAFT = torch.tensor([0.1, 0.5, 0.4]), torch.tensor([0.6, 0.35, 0.05])
N, LOGITS = 4000, TARGET.log()


def model(*_, **__):
    """Return the target's logits at every place, whatever came before."""
    return SimpleNamespace(logits=LOGITS.expand(1, 2, 3), past_key_values=None)


def draw(name, token):
    """Verify one token, drawn from DRAFT; returns the first token of what comes out."""
    if name == "rejection_sample":
        return int(rejection_sample(TARGET[token], DRAFT[token], token, LOGITS)[1])
    prompt, q = torch.zeros((1, 1), dtype=torch.long), DRAFT[token].view(1)
    if name == "verify_tokens":
        return int(verify_tokens(model, prompt, token.view(1), q, None, top_p=None)[0][0])
    return int(eagle_verify(model, prompt, token.view(1, 1), q[None], None, use_sampling=True)[0][0])


torch.manual_seed(0)
differences = {}
for name in ("rejection_sample", "verify_tokens", "eagle_verify"):
    tokens = torch.tensor([draw(name, token) for token in torch.multinomial(DRAFT, N, replacement=True)])
    differences[name] = (tokens.bincount(minlength=3) / N - TARGET).abs().max().item()
print("a law is missed at one token by", {name: round(x, 3) for name, x in differences.items()}, "(chance: .02)")
sys.exit(max(differences.values()) > 0.04)
