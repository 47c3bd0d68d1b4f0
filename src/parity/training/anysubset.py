"""Recipe of the embedded any-subset model: XLNet trained to tell the joint law of what is masked (Guo & Ermon 2025, sec. 6, appendix E).

    loss        -log p(x of ranks >= m | x of ranks < m), all terms from one teacher-forced pass (Eq. 7)
    m           the masking rate is uniform between two bounds that move linearly to their final place over the warm-up (E.2)
    sampling    low discrepancy: the rates of a batch are one stratified draw, not independent ones (E.1)
    order       the lattice's (Eq. 4) for some rows, any order for the others; all or none of them are the ablation (G.1)

In the lattice's order a word's left neighbour is always known, so a network trained on nothing else never learns what ASSD drafts from: a
word whose neighbour is still missing. The paper's network has learned it before, for XLNet is pretrained in random orders. This one starts
from nothing, and has both at once.

The published models end at rates of 90 to 99 % (text, started at 15 %) and 15 to 99 % (code, started at 5 %). This one is asked for
whole texts as well as single words, so it takes the code model's.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from parity.embedded import stories
from parity.models.anysubset.protocol import lattice
from parity.models.anysubset.xlnet import permutation_mask, xlnet
from parity.training.loop import publish, train


@dataclass(frozen=True)
class Scheme:
    """What is masked, and in which order it is learned."""

    start: float = 0.05  # masking rate of the first step
    low: float = 0.15  # least and greatest rate after the warm-up
    high: float = 0.99
    warmup: int = 300  # steps
    permutations: float = 0.5  # share of rows that are learned in any order instead of the lattice's
    independent: bool = False  # independent rates instead of stratified ones


def masking_rates(scheme: Scheme, step: int, batch: int, rng: np.random.Generator) -> np.ndarray:
    """The share of each row that is masked [batch]."""
    done = 1.0 if step >= scheme.warmup else step / scheme.warmup
    low, high = (scheme.start + done * (bound - scheme.start) for bound in (scheme.low, scheme.high))
    u = rng.random(batch) if scheme.independent else (rng.random() + rng.permutation(batch) / batch) % 1
    return low + (high - low) * u


def draw_order(scheme: Scheme, step: int, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Order [B, N] and prompt length m [B] of a batch: a uniform permutation, its two parts sorted."""
    B, N = shape
    m = torch.from_numpy(np.round((1 - masking_rates(scheme, step, B, rng)) * N).astype(np.int64)).clamp(1, N - 1)
    shuffled = torch.from_numpy(rng.random((B, N)).argsort(1))
    known = torch.zeros(B, N, dtype=torch.bool).scatter_(1, shuffled, torch.arange(N).expand(B, N) < m[:, None])
    free = torch.from_numpy(rng.random(B)) < scheme.permutations
    return torch.where(free[:, None], shuffled, lattice(known)[0]), m


def joint_nats(net: torch.nn.Module, tokens: Tensor, order: Tensor, m: Tensor) -> Tensor:
    """-log p of each masked token under its order, 0 for the prompt: [B, N] by position, in one pass."""
    B, N = tokens.shape
    ranks = torch.arange(N).expand(B, N)
    blocked = permutation_mask(order, m, ranks, ranks.maximum(m[:, None]))
    logits = net(tokens, perm_mask=blocked, target_mapping=torch.eye(N).expand(B, N, N)).logits.float()
    logits = torch.cat([torch.full_like(logits[..., :1], float("-inf")), logits[..., 1:]], -1)  # the mask is word 0
    nats = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view(B, N)
    rank = torch.empty_like(order).scatter_(1, order, ranks)
    return torch.where(rank < m[:, None], 0.0, nats)


def text_tokens(work: Path, name: str, first: int, count: int, test: bool) -> Tensor:
    """Word numbers [count, 128] of packed texts; kept in `work`."""
    file = work / f"texts-{name}-{first}-{count}.npy"
    if not file.exists():
        number = {w: i for i, w in enumerate(stories.vocabulary())}
        found = np.array([[number[w] for w in stories.text(first + i, test)] for i in range(count)], dtype=np.int16)
        work.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        with part.open("wb") as stream:
            np.save(stream, found)
        part.replace(file)
    return torch.from_numpy(np.load(file)).long()


def main(
    work: Path,
    out: Path,
    steps: int,
    batch: int,
    examples: int,
    seed: int,
    processes: int,
    scheme: Scheme = Scheme(),
    peak: float = 2e-3,
) -> list[dict[str, float]]:
    """Train, write `out`, return the log: nats per masked token, also of held-out texts at 95 % masking."""
    tokens = text_tokens(work, "train", 0, examples, test=False)
    test = text_tokens(work, "test", 10_000_000, 128, test=True)
    torch.manual_seed(seed)
    words = stories.vocabulary()
    net = xlnet(len(words))

    def loss(step):
        rng = np.random.default_rng([seed, step, 7])
        rows = tokens[torch.from_numpy(rng.integers(0, examples, batch))]
        order, m = draw_order(scheme, step, (batch, rows.shape[1]), rng)
        with torch.autocast("cpu", torch.bfloat16):
            nats = joint_nats(net, rows, order, m)
        return nats.sum() / (rows.numel() - m.sum()), {}

    @torch.inference_mode()
    def held_out() -> float:
        order, m = draw_order(
            Scheme(low=0.95, high=0.95, warmup=0, permutations=0),
            0,
            (len(test), test.shape[1]),
            np.random.default_rng(seed),
        )
        nats = [
            joint_nats(net, t, o, k).sum().item()
            for t, o, k in zip(test.split(32), order.split(32), m.split(32), strict=True)
        ]
        return sum(nats) / (test.numel() - int(m.sum()))

    log = []
    rows = train(
        {"net": net},
        loss,
        steps=steps,
        peak=peak,
        checkpoint=work / "xlnet.pt",
        average=0.99,
        warmup=scheme.warmup,
        hidden=lambda name: ".ff.layer" in name,
    )
    for row in rows:
        if row["step"] % 250 == 0:
            row["held_out"] = held_out()
        print(row, flush=True)
        log.append(row)
    log.append({"held_out_nats_at_95": held_out()})
    publish(net, out, {"network": net.config.to_diff_dict(), "words": words, "mask": 0, "scheme": asdict(scheme)})
    return log
