"""Figures of finished rows: perplexity under the judge, ROUGE, unit tests.

Generative perplexity is over the whole row, prompt included (Guo & Ermon 2025, Eq. 21).
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rouge_score.rouge_scorer import RougeScorer
from torch import Tensor

from parity.embedded import stories
from parity.metrics import sandbox
from parity.models.anysubset.causal import log_probabilities

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

ROUGE = ("rouge1", "rouge2", "rougeL")


def perplexities(judge: "GPT2LMHeadModel", tokens: Tensor, end: Tensor, mask: int, separator: int) -> np.ndarray:
    """exp of minus the mean log-probability of each row [B], read in pieces as long as the judge's positions allow."""
    most = judge.config.n_positions - 1
    inside = torch.arange(tokens.shape[1]) < end[:, None]
    total = torch.zeros(len(tokens), dtype=torch.float64)
    for i in range(0, tokens.shape[1], most):
        logp = log_probabilities(judge, tokens[:, i : i + most], mask, separator)
        total += torch.where(inside[:, i : i + most], logp, 0).double().sum(1)
    return (-total / end).exp().numpy()


def rouge(reference: str, found: str) -> dict[str, float]:
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L, no stemming, by Google's implementation."""
    scores = RougeScorer(list(ROUGE)).score(reference, found)
    return {name: scores[name].fmeasure for name in ROUGE}


def passes(text: str, extra: dict[str, Any]) -> sandbox.Outcome:
    """Whether a completed function passes its unit tests."""
    program = extra["before"] + text + extra["after"] if "before" in extra else stories.source(text.split())
    return sandbox.run(program, extra["tests"])
