"""Plain autoregressive sampling: one token per pass, with the same cache, kernels and distribution as every other
method."""

from collections.abc import Iterator

import torch
from torch import Tensor

from parity_decoders.noise import Noise
from parity_decoders.passes import Passes
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.sequence_buffer import SequenceBuffer, make_exponentials
from parity_decoders.steps import Step
from parity_decoders.verification import make_probs, sample_token

CLAIM = "lossless"
PLAIN: dict = {}  # this is plain decoding, whatever its options
SOURCE = "the definition of the target distribution"


@torch.inference_mode()
def ar(model: TokenModel, start: Tensor, *, noise: Noise) -> Iterator[Step]:
    """Draw one token per pass, x_n ~ p(x | x_<n) for n = 0..L-1. Tokens that the grammar forces cost no pass: they are
    read together with the token before them."""
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
    line.last_frontier.fill_(-1)
    exponentials = make_exponentials(line, noise)
    offsets = torch.arange(-F - 1, F + 1, device=start.device)

    def run_pass() -> Step:
        read, drawn = (line.frontier[:, None] + offsets).tensor_split([F + 1], 1)
        if F and not line.static:  # the model has not seen the tokens of the last pass, the same number in each row
            read = read[:, F + 1 - int(line.frontier[0] - line.last_frontier[0]) :]
        feed = line.tokens.gather(1, (read + 1).clamp(min=0))
        p = make_probs(model.logits(feed, read.clamp(min=-1))[:, -1:])
        tokens = torch.cat([sample_token(p, exponentials.take_next(1)), line.tokens.gather(1, drawn[:, 1:] + 1)], 1)
        n_kept = 1 + n_forced[line.frontier + 1]
        return line.advance(tokens, n_kept, n_kept.minimum((end - line.frontier).clamp(min=0)))

    return Passes(line, run_pass)
