"""How likely the target finds the tokens that were decoded: perplexity, and the mean and spread of token
log-probabilities."""

from typing import Any

import numpy as np
import torch
from parity_decoders.protocols.discrete import TokenModel
from torch import Tensor

from parity.base.errors import ParityError
from parity.metrics.estimates import Estimate, mean_and_error

KINDS = ("discrete",)
MEASURES = {
    "perplexity": ("perplexity under the target", "", "none"),
    "logp_mean": ("mean log-probability of a token", "nats", "none"),
    "logp_sd": ("sd of log-probability within an image", "nats", "none"),
    "logp_sd_tokens": ("sd of log-probability over all tokens", "nats", "none"),
    "excluded": ("share of tokens the distribution excludes", "", "none"),
}
STRETCH = 512  # positions of a pass: its mask has this times as many numbers as the cache has places


@torch.inference_mode()
def teacher_forced_logits(model: TokenModel, tokens: Tensor) -> Tensor:
    """Compute logits [B, L, V] of each position of tokens [B, L] given those before it, STRETCH positions a pass:
    [0, tokens[:-1]] at -1 .. L - 2. Raises ParityError unless L is the model's length.

    `model` holds the rows' prompts, under the settings that were sampled (`engine.Sampled`).
    """
    B, L = tokens.shape
    if model.length != L:
        raise ParityError(f"tokens: {L} positions; allowed: {model.length}, the model's length")
    read = torch.cat([tokens.new_zeros(B, 1), tokens[:, :-1]], 1).long()
    positions = torch.arange(-1, L - 1, device=tokens.device).expand(B, L)
    stretches = zip(read.split(STRETCH, 1), positions.split(STRETCH, 1), strict=True)
    return torch.cat([model.logits(*stretch) for stretch in stretches], 1)


def log_probabilities(logits: Tensor, tokens: Tensor, forced: Tensor) -> Tensor:
    """Compute the log-probability of tokens [B, L] under logits [B, L, V], float64; NaN where the grammar forces
    (forced [L] >= 0), -inf for a token that the distribution excludes (top-k)."""
    logp = logits.gather(-1, tokens.long()[..., None])[..., 0].double() - logits.logsumexp(-1).double()
    return logp.masked_fill(forced.to(logp.device) >= 0, float("nan"))


def top_probabilities(p: Tensor, forced: Tensor) -> Tensor:
    """Find the largest probability of distributions p [B, L, V], as float32 [B, L]; NaN at positions that the grammar
    forces. forced [L]: the forced token, -1 where the model chooses."""
    return p.amax(-1).float().masked_fill(forced.to(p.device) >= 0, float("nan"))


def drop_excluded(logp: np.ndarray) -> np.ndarray:
    """Replace logp [n, L] by NaN for tokens that the distribution excludes (-inf; only a lossy decoder draws them)."""
    return np.where(np.isneginf(logp), np.nan, logp)


def likelihood(logp: np.ndarray, groups: np.ndarray) -> dict[str, Any]:
    """Compute, from logp [n, L], NaN where forced: perplexity, mean and standard deviation per image, averaged over
    images, and the standard deviation over the tokens of all images (Teng et al. 2024, Table 11), in nats.

    Perplexity is exp of minus the mean over images; its error is by the delta method. Tokens that the distribution
    excludes (-inf) would make every figure infinite: they are left out, and `excluded` is their share among free
    tokens.
    """
    free_logp = drop_excluded(logp)
    mean, error = mean_and_error(np.nanmean(free_logp, 1), groups)
    spread, spread_error = mean_and_error(np.nanstd(free_logp, 1), groups)
    count, square = (~np.isnan(free_logp)).sum(1), np.nansum((free_logp - np.nanmean(free_logp)) ** 2, 1)
    variance = square.sum() / count.sum()
    of_variance = mean_and_error((square - variance * count) / count.mean(), groups)[1]  # the variance is a ratio
    sd = float(np.sqrt(variance))
    perplexity = float(np.exp(-mean))
    return {
        "perplexity": Estimate(perplexity, perplexity * error),
        "logp_mean": Estimate(mean, error),
        "logp_sd": Estimate(spread, spread_error),
        "logp_sd_tokens": Estimate(sd, of_variance / (2 * sd) if sd > 0 else np.nan),  # error by the delta method
        "excluded": float(np.isneginf(logp).sum() / (~np.isnan(logp)).sum()),
    }


def rows(sample: Any) -> dict[str, np.ndarray]:
    """List the mean log-probability of each image's tokens, excluded ones aside; {} without distributions."""
    return {} if sample.logp is None else {"logp_mean": np.nanmean(drop_excluded(sample.logp), 1)}


def arrays(sample: Any) -> dict[str, np.ndarray]:
    return {} if sample.logp is None else {"logp": sample.logp}


def measure(sample: Any) -> dict[str, Any]:
    """Measure the likelihood from the distributions that the teacher-forced layer stored; {} if it was not run."""
    return {} if sample.logp is None else likelihood(sample.logp, sample.groups)
