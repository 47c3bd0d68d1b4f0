"""How likely rows of text are: under the any-subset model itself, and under a judge, another language model.

`logp` is of the missing part of a row, in one pass. `perplexity`, the generative perplexity, is of the whole row,
prompt included (Guo & Ermon 2025, Eq. 21)."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from parity_decoders.protocols.anysubset import AnySubsetModel, Infilling
from torch import Tensor

from parity.base.machine import limit_rows
from parity.metrics.estimates import means
from parity.models.anysubset.causal import compute_log_probabilities

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

KINDS = ("anysubset",)
BATCH = 64  # number of rows that the judge evaluates at once, if memory allows it (`limit_rows`)
MEASURES = {
    "perplexity": ("perplexity", "", "lower"),
    "logp": ("log p of the missing part under the model", "nats", "none"),
}


def joint_probs(model: AnySubsetModel, start: Infilling) -> tuple[Tensor, Tensor, Tensor]:
    """Compute, in one pass, the distributions [B, S, V] of the missing tokens of complete rows in their order (Eq. 6).
    Returns them, the tokens [B, S], and where there is one [B, S], as a row may miss fewer than S."""
    width = int((start.end - start.begin).max())
    ranks = start.begin[:, None] + torch.arange(width, device=start.order.device)
    valid = ranks < start.end[:, None]
    queries = torch.where(valid, ranks, start.order.shape[1])
    hidden = start.tokens.gather(1, start.order.gather(1, ranks.clamp(max=start.order.shape[1] - 1)))
    return model.probs(start.tokens, start.order, start.begin, queries, ranks), hidden, valid


def log_probability(probs: Tensor, hidden: Tensor, valid: Tensor) -> Tensor:
    """Sum the log-probability [B], in nats, of the missing tokens of each row; takes what `joint_probs` returns."""
    return torch.where(valid, probs.gather(-1, hidden[..., None])[..., 0].log(), 0).sum(1)


def perplexities(judge: "GPT2LMHeadModel", tokens: Tensor, end: Tensor, mask: int | None, separator: int) -> np.ndarray:
    """Compute exp of minus the mean log-probability of each row of tokens [B, N] up to its end [B], in pieces as long
    as the judge can read. mask, separator: ids of special tokens of the judge's vocabulary."""
    longest = judge.config.n_positions - 1
    valid = torch.arange(tokens.shape[1]) < end[:, None]  # the mask is on the CPU, as the sums are
    total = torch.zeros(len(tokens), dtype=torch.float64)
    at_once = limit_rows(BATCH, min(longest, tokens.shape[1]), judge.config.vocab_size)
    for i in range(0, tokens.shape[1], longest):
        pieces = tokens[:, i : i + longest].split(at_once)
        logp = torch.cat([compute_log_probabilities(judge, piece, mask, separator).cpu() for piece in pieces])
        total += torch.where(valid[:, i : i + longest], logp, 0).double().sum(1)
    return (-total / end).exp().numpy()


def reread(texts: list[str], words: Any) -> tuple[Tensor, Tensor]:
    """Encode texts in another vocabulary: tokens [B, N], padded with its separator, and lengths [B], at least 1."""
    encoded = [words.encode(text) for text in texts]
    wide = max(map(len, encoded))
    padded = [t + [words.separator] * (wide - len(t)) for t in encoded]
    return torch.tensor(padded), torch.tensor([max(1, len(t)) for t in encoded])


def rows(sample: Any) -> dict[str, np.ndarray]:
    """Compute the perplexity of every text under the judge, whose vocabulary it is encoded in again if that differs,
    and its log-probability under the model, if a layer stored it."""
    loaded = sample.loaded
    if loaded.one_vocabulary:
        tokens, end = torch.from_numpy(sample.shard.tokens).long(), torch.from_numpy(sample.shard.end).long()
        mask = loaded.words.mask
    else:
        tokens, end = reread(sample.texts, loaded.judge_words)
        mask = loaded.judge_words.mask
    tokens = tokens.to(loaded.device)
    judged = perplexities(loaded.gpt2, tokens, end, mask, loaded.judge_words.separator)
    return {"perplexity": judged, **arrays(sample)}


def arrays(sample: Any) -> dict[str, np.ndarray]:
    """Collect the log-probabilities [n] that the teacher-forced layer stored, for the paired tests; {} without them."""
    return {} if sample.logp is None else {"logp": sample.logp}


def measure(sample: Any) -> dict[str, Any]:
    return means(perplexity=sample.rows["perplexity"], **arrays(sample))
