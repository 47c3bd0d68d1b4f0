"""The joint conditional loss of any-subset models, with the masks and orders that it is learned on.

After Guo & Ermon 2025, section 6 and appendix E:

    loss        -log p(x of ranks >= m | x of ranks < m), all terms from one teacher-forced pass (Eq. 7)
    m           the masking rate is uniform between bounds that move linearly during the warm-up (E.2)
    sampling    low discrepancy: the rates of a batch are one stratified draw (E.1)
    order       the lattice's (Eq. 4) for some rows, any order for the others; all or none are the ablation (G.1)
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from parity_decoders.protocols.anysubset import invert_order, make_lattice
from torch import Tensor

from parity.base.errors import ParityError
from parity.models.anysubset.xlnet import make_permutation_mask
from parity.train.loop import reduce_precision

MEASURED = 0.95  # share of held-out rows that is masked (E.2, G.2)
MEASURED_AT_ONCE = 32  # held-out rows in a pass, at most


@dataclass(frozen=True)
class Scheme:
    """Which words are masked, and in which order they are learned."""

    start: float = 0.05  # masking rate of the first step
    low: float = 0.15  # lowest masking rate after the warm-up
    high: float = 0.99  # highest masking rate after the warm-up
    warmup: int = 300  # steps in which the bounds of the masking rate move from `start` to `low` and `high`
    permutations: float = 0.5  # share of rows that are learned in a random order instead of the lattice's
    independent: bool = False  # whether a batch's masking rates are independent instead of stratified


def make_scheme(changes: dict[str, Any]) -> Scheme:
    """Make the default scheme with `changes` of its fields. Raises ParityError for a key that is not a field."""
    names = [f.name for f in fields(Scheme)]
    if unknown := sorted(set(changes) - set(names)):
        raise ParityError(f"--scheme {unknown[0]}: unknown key; allowed: {', '.join(names)}")
    return Scheme(**changes)


def draw_masking_rates(scheme: Scheme, step: int, batch: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the share of words to mask in each row of the batch of a training step: [batch], in 0 .. 1."""
    progress = 1.0 if step >= scheme.warmup else step / scheme.warmup
    low, high = (scheme.start + progress * (bound - scheme.start) for bound in (scheme.low, scheme.high))
    u = rng.random(batch) if scheme.independent else (rng.random() + rng.permutation(batch) / batch) % 1
    return low + (high - low) * u


def draw_order(scheme: Scheme, step: int, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw, for a batch of shape (B, N), orders of decoding [B, N] (positions by rank) and prompt lengths m [B]. A
    row's first m positions, a random set, are its prompt. The order is the lattice's, which sorts the prompt and the
    masked positions, or, for a share `scheme.permutations` of rows, a uniform permutation."""
    B, N = shape
    m = torch.from_numpy(np.round((1 - draw_masking_rates(scheme, step, B, rng)) * N).astype(np.int64)).clamp(1, N - 1)
    shuffled = torch.from_numpy(rng.random((B, N)).argsort(1))
    prompt = torch.zeros(B, N, dtype=torch.bool).scatter_(1, shuffled, torch.arange(N).expand(B, N) < m[:, None])
    is_permuted = torch.from_numpy(rng.random(B)) < scheme.permutations
    return torch.where(is_permuted[:, None], shuffled, make_lattice(prompt)[0]), m


def compute_joint_nats(net: torch.nn.Module, tokens: Tensor, order: Tensor, m: Tensor, mask: int = 0) -> Tensor:
    """Compute -log p of each masked token under its order, 0 for the prompt: [B, N] by position, in one pass. The token
    `mask` has probability 0, as in decoding."""
    B, N = tokens.shape
    device = tokens.device
    ranks = torch.arange(N, device=device).expand(B, N)
    blocked = make_permutation_mask(order, m, ranks, ranks.maximum(m[:, None]))
    logits = net(tokens, perm_mask=blocked, target_mapping=torch.eye(N, device=device).expand(B, N, N)).logits.float()
    logits = logits.index_fill(-1, torch.tensor([mask], device=device), float("-inf"))
    nats = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view(B, N)
    return torch.where(invert_order(order) < m[:, None], 0.0, nats)


@dataclass
class JointLesson:
    """A network that learns the joint conditional loss on rows of tokens."""

    net: torch.nn.Module
    rows: Any  # tokens [n, N] to learn from: a tensor, or an array of integers
    held_out: Tensor  # tokens int64 [h, N]
    scheme: Scheme
    batch: int
    at_once: int  # rows in a pass, at most: a batch of more is accumulated
    mask: int = 0  # the token of the mask
    device: str = "cpu"
    seed: int = 0  # of the masks of held-out rows

    def compute_nats(self, tokens: Tensor, order: Tensor, m: Tensor) -> Tensor:
        device = self.device
        return compute_joint_nats(self.net, tokens.to(device), order.to(device), m.to(device), self.mask)

    def compute_loss(self, step: int, rng: np.random.Generator) -> tuple[Tensor, dict[str, float]]:
        """Compute the nats per masked word of a random batch, masked as the scheme says for this step, and the gradient
        of all parts but the last, which is left to the caller. A network with dropout draws it by `rng`, too."""
        chosen = rng.integers(0, len(self.rows), self.batch)
        rows = torch.as_tensor(self.rows[chosen]).long()
        order, m = draw_order(self.scheme, step, (self.batch, rows.shape[1]), rng)
        torch.manual_seed(int(rng.integers(2**31)))
        count = int(rows.numel() - m.sum())
        total = torch.zeros((), device=self.device)
        for first in range(0, self.batch, self.at_once):
            part = slice(first, first + self.at_once)
            with reduce_precision(self.device):
                value = self.compute_nats(rows[part], order[part], m[part]).sum() / count
            if first + self.at_once < self.batch:
                value.backward()
                value = value.detach()
            total = total + value
        return total, {}

    @torch.inference_mode()
    def measure(self) -> float:
        """Measure the nats per masked word of the held-out rows, 95 % of each masked, in the lattice's order."""
        fixed = Scheme(low=MEASURED, high=MEASURED, warmup=0, permutations=0)
        shape = (len(self.held_out), self.held_out.shape[1])
        order, m = draw_order(fixed, 0, shape, np.random.default_rng(self.seed))
        trains = self.net.training
        self.net.eval()
        size = min(MEASURED_AT_ONCE, self.at_once)
        total = 0.0
        for tokens, o, k in zip(self.held_out.split(size), order.split(size), m.split(size), strict=True):
            total += self.compute_nats(tokens, o, k).sum().item()
        self.net.train(trains)
        return total / (self.held_out.numel() - int(m.sum()))
