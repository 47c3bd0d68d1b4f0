"""Plain autoregressive sampling: one token per pass, with the same cache, kernels and law as every other method."""

from collections.abc import Iterator

import torch
from torch import Tensor

from parity_decoders.noise import Noise
from parity_decoders.passes import Passes
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.sequence_buffer import SequenceBuffer
from parity_decoders.steps import Step
from parity_decoders.verification import make_law, race

CLAIM = "lossless"
AHEAD = 16  # positions whose races are drawn in one call, because few numbers cost as much as a call
PLAIN: dict = {}  # this is plain decoding, whatever its options
SOURCE = "the definition of the target law"


def ar(model: TokenModel, start: Tensor, *, noise: Noise) -> Iterator[Step]:
    """Draw one token per pass, x_n ~ p(x | x_<n) for n = 0..L-1. Tokens that the grammar forces are added without a
    pass."""
    return (repeat_passes if getattr(model, "static", False) else draw_in_turn)(model, start, noise)


@torch.inference_mode()
def draw_in_turn(model: TokenModel, start: Tensor, noise: Noise) -> Iterator[Step]:
    """Draw as `ar`, each pass over the tokens that the model has not seen."""
    B = len(start)
    L = model.length
    forced = model.forced.tolist()
    numbers = torch.arange(-1, L + 1, device=start.device).expand(B, -1)  # [B, L + 2] positions from -1 on

    def append_forced(tokens: Tensor, n: int) -> Tensor:
        """Append to tokens [B, 1] the forced tokens of positions n, n + 1, ..."""
        stop = next((i for i in range(n, L) if forced[i] < 0), L)
        return tokens if stop == n else torch.cat([tokens, model.forced[n:stop].expand(B, -1)], 1)

    feed = append_forced(start[:, None], 0)  # tokens that the model has not seen
    end = 0  # races are drawn for the positions below this
    n = feed.shape[1] - 1
    while n < L:
        p = make_law(model.logits(feed, numbers[:, n + 1 - feed.shape[1] : n + 1])[:, -1])
        if n >= end:
            end = min(n + AHEAD, L)
            races = noise.exponential("sample", numbers[:1, n + 1 : end + 1], model.vocab)
        feed = append_forced(race(p, races[:, n - end])[:, None], n + 1)
        yield Step(feed, torch.full_like(start, feed.shape[1]), numbers[:, n + 1])
        n += feed.shape[1]


@torch.inference_mode()
def repeat_passes(model: TokenModel, start: Tensor, noise: Noise) -> Passes:
    """Draw as `ar` in passes that are all alike: each reads the last F + 1 tokens, F the most that the grammar forces
    one after another, for these are read together with the token before them."""
    L = model.length
    forced = model.forced.tolist()
    counts = [0] * (L + 2)  # number of forced tokens from a position on
    for i in reversed(range(L)):
        counts[i] = counts[i + 1] + 1 if forced[i] >= 0 else 0
    F = max(counts)
    n_forced = torch.tensor(counts, device=start.device)
    line = SequenceBuffer(model, start, F + 1)
    end, line.end = line.end, L
    line.tokens[:, 1 : L + 1] = model.forced.clamp(min=0)
    line.frontier.fill_(counts[0])
    steps = torch.arange(-F - 1, F + 1, device=start.device)

    def run_pass() -> Step:
        (read, drawn) = (line.frontier[:, None] + steps).tensor_split([F + 1], 1)
        feed = line.tokens.gather(1, (read + 1).clamp(min=0))
        p = model.logits(feed, read.clamp(min=-1))[:, -1].softmax(-1)
        token = race(p, noise.exponential("sample", drawn[:, :1], model.vocab)[:, 0])[:, None]
        n_kept = 1 + n_forced[drawn[:, 0] + 1]
        tokens = torch.cat([token, line.tokens.gather(1, drawn[:, 1:] + 1)], 1)
        return line.advance(tokens, n_kept, n_kept.minimum((end - line.frontier).clamp(min=0)))

    return Passes(line, run_pass)
