"""Generative perplexity: how likely a judge, another language model, finds the whole row, prompt included (Guo & Ermon
2025, Eq. 21)."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from parity.metrics.standard_errors import means
from parity.models.anysubset.causal import log_probabilities

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

KINDS = ("anysubset",)
MEASURES = {"perplexity": ("perplexity", "", "lower")}


def perplexities(judge: "GPT2LMHeadModel", tokens: Tensor, end: Tensor, mask: int | None, separator: int) -> np.ndarray:
    """exp of minus the mean log-probability of each row [B], read in pieces as long as the judge's positions allow."""
    most = judge.config.n_positions - 1
    inside = torch.arange(tokens.shape[1]) < end[:, None]  # on the CPU, where the sums are taken
    total = torch.zeros(len(tokens), dtype=torch.float64)
    for i in range(0, tokens.shape[1], most):
        logp = log_probabilities(judge, tokens[:, i : i + most], mask, separator).cpu()
        total += torch.where(inside[:, i : i + most], logp, 0).double().sum(1)
    return (-total / end).exp().numpy()


def reread(texts: list[str], words: Any) -> tuple[Tensor, Tensor]:
    """Texts as the tokens of another vocabulary, padded with its separator, and their lengths."""
    encoded = [words.encode(text) for text in texts]
    wide = max(map(len, encoded))
    padded = [t + [words.separator] * (wide - len(t)) for t in encoded]
    return torch.tensor(padded), torch.tensor([max(1, len(t)) for t in encoded])


def rows(sample: Any) -> dict[str, np.ndarray]:
    loaded = sample.loaded
    if loaded.one_vocabulary:
        tokens, end = torch.from_numpy(sample.shard.tokens).long(), torch.from_numpy(sample.shard.end).long()
        mask = loaded.words.mask
    else:
        tokens, end = reread(sample.texts, loaded.judge_words)
        mask = loaded.judge_words.mask
    tokens = tokens.to(loaded.device)
    return {"perplexity": perplexities(loaded.gpt2, tokens, end, mask, loaded.judge_words.separator)}


def measure(sample: Any) -> dict[str, float]:
    return means(perplexity=sample.rows["perplexity"])
