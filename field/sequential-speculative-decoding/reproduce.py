"""capped_hsd_step does not draw the first token from the target's law. Exit code 1: the fault shows."""

import sys
from types import SimpleNamespace

import torch
from seqspecdecod.capped_hsd import capped_hsd_step
from seqspecdecod.standard_sd import standard_speculative_step

TARGET, DRAFT, N = [0.2, 0.8], [0.7, 0.3], 3000


def make_model(law):
    """Make a model whose next token has this law, whatever came before."""
    return lambda tokens: SimpleNamespace(logits=torch.tensor(law).log().expand(1, tokens.shape[1], 2))


def count_zeros(step):
    """Count how often a step's first new token is 0."""
    torch.manual_seed(0)
    temperatures = {"draft_temperature": 1.0, "target_temperature": 1.0}
    prompt, models = torch.zeros((1, 1), dtype=torch.long), (make_model(DRAFT), make_model(TARGET))
    return sum(int(step(*models, prompt, gamma=2, **temperatures)[0][0, 1]) == 0 for _ in range(N))


shares = [count_zeros(step) / N for step in (standard_speculative_step, capped_hsd_step)]
print(f"token 0 has probability {TARGET[0]}: drawn by the standard step {shares[0]:.3f}, capped {shares[1]:.3f}")
sys.exit(abs(shares[1] - TARGET[0]) > 0.05)  # five standard errors are .037
