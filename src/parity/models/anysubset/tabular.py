"""Any-subset models small enough to write down: conditionals for every partial text, and the distribution they
imply."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from parity_decoders.protocols.anysubset import Infilling, invert_order
from torch import Tensor

from parity.base.errors import ParityError


class TabularAnySubset:
    """Logits [(V + 1)^N, N, V] of every position after every partial text; V stands for unknown, and is the mask.

    A random table is inconsistent, as a network is (Eq. 3): the order of decoding changes the distribution.
    Distributions are float64.
    """

    def __init__(self, table: Tensor):
        self.words, self.length = table.shape[2], table.shape[1]
        self.vocab = self.words + 1
        self.mask = self.words
        self.table = F.pad(table.double().softmax(-1), (0, 1))  # the padding is the mask's probability, 0
        self.place = self.vocab ** torch.arange(self.length - 1, -1, -1, device=table.device)

    def probs(self, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
        """Look up distributions [B, S, V + 1] for `AnySubsetModel`: of rank ranks[b, s] given the tokens of ranks below
        n_seen[b, s]. `n_prompt` is not read; the last entry, the mask's, is 0."""
        is_seen = invert_order(order)[:, None] < n_seen[..., None]
        words_seen = torch.where(is_seen, tokens[:, None], self.mask)  # [B, S, N]
        return self.table[(words_seen * self.place).sum(-1), order.gather(1, ranks.clamp(max=self.length - 1))]


def random_table(vocab: int, length: int, generator: torch.Generator, scale: float = 1.5) -> Tensor:
    """Draw Gaussian logits [(V + 1)^N, N, V] with deviation `scale`, float64, for `TabularAnySubset`."""
    return scale * torch.randn((vocab + 1) ** length, length, vocab, generator=generator, dtype=torch.float64)


def consistent_table(vocab: int, length: int, generator: torch.Generator, scale: float = 0.8) -> Tensor:
    """Compute the log conditionals [(V + 1)^N, N, V] of one random joint distribution with interactions of all orders,
    those of pairs with deviation `scale`: with this table every order of decoding has the same distribution."""
    cells = torch.tensor(list(itertools.product(range(vocab), repeat=length)))
    logits = 0.5 * torch.randn(len(cells), generator=generator, dtype=torch.float64)
    for i, j in itertools.combinations(range(length), 2):
        logits += scale * torch.randn(vocab, vocab, generator=generator, dtype=torch.float64)[cells[:, i], cells[:, j]]
    mass = logits.softmax(0).view([vocab] * length)
    for i in range(length):  # the value "unknown" of a token is added, with the sum over its other values
        mass = torch.cat([mass, mass.sum(i, keepdim=True)], i)
    partial = torch.tensor(list(itertools.product(range(vocab + 1), repeat=length)))
    radix = (vocab + 1) ** torch.arange(length - 1, -1, -1)
    code = (partial * radix).sum(1)[:, None, None] + (torch.arange(vocab) - partial[..., None]) * radix[:, None]
    return mass.flatten()[code].log()


def compute_joint_probs(model: TabularAnySubset, start: Infilling) -> np.ndarray:
    """Compute the distribution [V^K] of the K missing tokens of the first row of `start`, decoded in its order; the
    first rank is the most significant digit of the index."""
    m, K = int(start.begin[0]), int(start.end[0] - start.begin[0])
    cells = torch.tensor(list(itertools.product(range(model.words), repeat=K)))
    first_row = Infilling(*(x[:1].expand(len(cells), *x.shape[1:]) for x in start))
    ranks = torch.arange(m, m + K).expand(len(cells), K)
    tokens = first_row.tokens.clone().scatter_(1, first_row.order.gather(1, ranks), cells)
    p = model.probs(tokens, first_row.order, first_row.begin, ranks, ranks)
    return p.gather(-1, cells[..., None])[..., 0].prod(1).numpy()


def encode_rows(model: TabularAnySubset, start: Infilling, tokens: Tensor) -> np.ndarray:
    """Encode complete rows [B, N] as indices [B] into `compute_joint_probs`. Raises ParityError for unknown tokens."""
    m, K = int(start.begin[0]), int(start.end[0] - start.begin[0])
    drawn = tokens.gather(1, start.order[:, m : m + K])
    if len(bad := ((drawn < 0) | (drawn >= model.words)).nonzero()):
        row, column = bad[0].tolist()
        position, token = int(start.order[row, m + column]), int(drawn[row, column])
        raise ParityError(f"row {row}, position {position}: token {token} is not in the vocabulary")
    return (drawn * model.words ** torch.arange(K - 1, -1, -1)).sum(1).numpy()
