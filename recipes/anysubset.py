"""Recipes of the text models: the any-subset model `xlnet`, and `judge`, which scores what others write.

XLNet learns the joint law of what is masked (Guo & Ermon 2025, sec. 6, appendix E):

    loss        -log p(x of ranks >= m | x of ranks < m), all terms from one teacher-forced pass (Eq. 7)
    m           the masking rate is uniform between bounds that move linearly during the warm-up (E.2)
    sampling    low discrepancy: the rates of a batch are one stratified draw (E.1)
    order       the lattice's (Eq. 4) for some rows, any order for the others; all or none are the ablation (G.1)

In the lattice's order a word's left neighbour is always known, so a network trained on this order alone never learns
what ASSD drafts from: a word whose neighbour is missing. The paper's network is pretrained in random orders and has
learned it. This one starts from random weights and learns both at once.

The published models end at rates of 90 to 99 % (text, started at 15 %) and 15 to 99 % (code, started at 5 %). This one
fills in whole texts as well as single words, so it uses the code model's.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from parity_decoders.protocols.anysubset import invert_order, make_lattice
from torch import Tensor

from parity.base.errors import ParityError
from parity.embedded import stories
from parity.models.anysubset import causal
from parity.models.anysubset.xlnet import make_permutation_mask
from parity.models.anysubset.xlnet import xlnet as xlnet_network
from parity.train.loop import Job, Recipe, reduce_precision
from recipes.data import draw_texts


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


def compute_joint_nats(net: torch.nn.Module, tokens: Tensor, order: Tensor, m: Tensor) -> Tensor:
    """Compute -log p of each masked token under its order, 0 for the prompt: [B, N] by position, in one pass."""
    B, N = tokens.shape
    ranks = torch.arange(N).expand(B, N)
    blocked = make_permutation_mask(order, m, ranks, ranks.maximum(m[:, None]))
    logits = net(tokens, perm_mask=blocked, target_mapping=torch.eye(N).expand(B, N, N)).logits.float()
    logits = torch.cat([torch.full_like(logits[..., :1], float("-inf")), logits[..., 1:]], -1)  # word 0, the mask
    nats = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view(B, N)
    return torch.where(invert_order(order) < m[:, None], 0.0, nats)


def xlnet(job: Job) -> Recipe:
    """Make the recipe of XLNet. Its log: nats per masked word, also of held-out texts at 95 % masking. Raises
    ParityError if `job.scheme` has a key that is not a field of `Scheme`."""
    scheme = make_scheme(job.scheme)
    tokens = draw_texts(job)
    test = draw_texts(job, test=True)
    torch.manual_seed(job.seed)
    words = stories.list_words()
    net = xlnet_network(len(words))

    def loss(step, rng):
        """Compute the nats per masked word of a random batch, masked as the scheme says for this step."""
        rows = tokens[torch.from_numpy(rng.integers(0, job.examples, job.batch))]
        order, m = draw_order(scheme, step, (job.batch, rows.shape[1]), rng)
        with reduce_precision():
            nats = compute_joint_nats(net, rows, order, m)
        return nats.sum() / (rows.numel() - m.sum()), {}

    def measure_held_out():
        """Measure the nats per masked word of the held-out texts, 95 % of each masked, in the lattice's order."""
        fixed = Scheme(low=0.95, high=0.95, warmup=0, permutations=0)
        order, m = draw_order(fixed, 0, (len(test), test.shape[1]), np.random.default_rng(job.seed))
        batches = zip(test.split(32), order.split(32), m.split(32), strict=True)
        return sum(compute_joint_nats(net, *batch).sum().item() for batch in batches) / (test.numel() - int(m.sum()))

    def finish():
        header = {"network": net.config.to_diff_dict(), "words": words, "mask": 0, "scheme": asdict(scheme)}
        return {"held_out_nats_at_95": measure_held_out()}, header

    return Recipe(
        *(net, loss, finish, (7,)),
        peak=2e-3,
        average=0.99,
        warmup=scheme.warmup,
        hidden=r"\.ff\.layer",
        held_out=lambda: {"held_out": measure_held_out()},
        held_out_every=250,
    )


def judge(job: Job) -> Recipe:
    """Make the recipe of a small GPT-2 over the same words, without dropout. Its log: nats per word, in the end also on
    held-out texts."""
    tokens = draw_texts(job)
    test = draw_texts(job, test=True)
    torch.manual_seed(job.seed)
    words = stories.list_words()
    # The network has one position more than a text has words, because its first input is the separator.
    sizes: dict[str, Any] = {"vocab_size": len(words), "n_positions": stories.LENGTH + 1}
    sizes |= {"n_embd": 128, "n_layer": 3, "n_head": 4}
    sizes |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 1}
    net = causal.build(sizes)

    def compute_nats(rows):
        inputs = torch.cat([torch.ones_like(rows[:, :1]), rows[:, :-1]], 1)  # word 1 is the separator
        return F.cross_entropy(net(inputs).logits.flatten(0, 1).float(), rows.flatten())

    def loss(step, rng):
        rows = tokens[torch.from_numpy(rng.integers(0, job.examples, job.batch))]
        with reduce_precision():
            return compute_nats(rows), {}

    def finish():
        figures = {"held_out_nats": float(np.mean([compute_nats(t).item() for t in test.split(32)]))}
        return figures, {"network": net.config.to_diff_dict(), "words": words, "mask": 0}

    return Recipe(net, loss, finish, stream=(8,), peak=2e-3, average=0.99)


RECIPES = {"xlnet": xlnet, "judge": judge}
