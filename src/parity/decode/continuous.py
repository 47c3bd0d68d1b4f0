"""Decoding with continuous decoders: how a batch of images begins, what a run records, clocks of network and head."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from parity_decoders.noise import Noise
from parity_decoders.protocols.continuous import (
    Chain,
    ContinuousModel,
    Pair,
    PathNoise,
    Start,
    TokenDistributions,
    draw_order,
)
from parity_decoders.steps import Draw
from torch import Tensor

from parity.base.weights import count_parameters
from parity.decode.clock import Clock
from parity.decode.output_buffer import TimedCanvas, now
from parity.experiment.options import needs


@dataclass
class DrawnImages:
    """A batch of decoded images and their cost. A place is a position's turn in the order of decoding."""

    tokens: Tensor  # [B, L, D] in raster order of the grid
    steps: Tensor  # [B] steps a row took part in
    step: Tensor  # [B, L] int16, by place: the step, from 1, in which its token became final
    accepted: Tensor  # [B, L] int8, by place: 1 an accepted draft, 0 a rejected one, -1 never drafted
    tries: Tensor  # [B] draws of the acceptance-rejection sampler of residuals
    gave_up: Tensor  # [B] times that this sampler ended without an accepted draw
    accepted_drafts: Tensor  # [B] accepted tokens, or steps of their walks; -1 where the decoder does not draft
    log_ratio: Tensor  # [B, L] log p / q of the draft at each place, NaN where nothing was verified
    distance: Tensor  # [B, L] distance of draft and target at each place, NaN where nothing was verified
    order: Tensor  # [B, L] position of the token of each place
    seconds: float  # wall time of the batch


def record(model: Pair, start: Start, steps: Iterator[Draw]) -> DrawnImages:
    """Run a decoder to its end and record its tokens and their cost.

    Raises ParityError that names row and position if it stops early, draws a token that is not finite, or verifies a
    draft whose densities have no ratio.
    """
    order, (B, L), device = start.order, start.order.shape, start.order.device
    canvas = TimedCanvas(torch.zeros(B, L, model.target.dim, dtype=torch.float64, device=device))
    first_place, steps_of_row, tries, gave_up = (torch.zeros(B, dtype=torch.int64, device=device) for _ in range(4))
    accepted = torch.full((B, L + 1), -1, dtype=torch.int8, device=device)  # column L takes unverified drafts
    drafts = torch.full((B,), -1, device=device)
    log_ratio, distance = (torch.full((B, L + 1), float("nan"), device=device) for _ in range(2))
    dtype = torch.float32
    for d in steps:
        i, dtype = torch.arange(d.tokens.shape[1], device=device), d.tokens.dtype
        places = (first_place[:, None] + i).clamp(max=L)
        position = order.gather(1, places.clamp(max=L - 1))
        canvas.write(torch.where((i < d.kept[:, None]) & (places < L), position, L), d.tokens)
        if d.verified is not None and d.accepted is not None and d.log_ratio is not None and d.distance is not None:
            width = d.verified.shape[1]  # the last token of a step may be no draft
            verified_places = torch.where(d.verified, places[:, :width], L)
            accepted.scatter_(1, verified_places, d.accepted.to(torch.int8))
            log_ratio.scatter_(1, verified_places, d.log_ratio.float())
            distance.scatter_(1, verified_places, d.distance.float())
        tries += 0 if d.tries is None else d.tries
        gave_up += 0 if d.gave_up is None else d.gave_up
        drafts = drafts if d.accepted_drafts is None else drafts.clamp(min=0) + d.accepted_drafts
        steps_of_row += d.kept > 0
        first_place += d.kept
    seconds = canvas.finish(torch.ones_like(order, dtype=torch.bool))
    canvas.refuse(~canvas.tokens.isfinite().all(-1), "the decoder drew a token that is not finite")
    accepted, log_ratio, distance = accepted[:, :L], log_ratio[:, :L], distance[:, :L]
    lost = torch.zeros_like(order, dtype=torch.bool).scatter_(1, order, (accepted >= 0) & log_ratio.isnan())
    canvas.refuse(lost, "the densities of target and draft have no ratio: one is not finite")
    step = canvas.step.gather(1, order).to(torch.int16)
    return DrawnImages(
        canvas.tokens.to(dtype), steps_of_row, step, accepted, tries, gave_up, drafts, log_ratio, distance, order,
        seconds,
    )  # fmt: skip


def make_starter(loaded: Any, spec: dict[str, Any]) -> Callable[[dict[str, np.ndarray], Noise], tuple[Pair, Start]]:
    """Make a function of (rows, noise) that gives a fresh pair of target and draft model (None if the method needs
    none), which counts and times its calls, and the images' orders. `ids` of rows are the images' numbers."""
    draft = needs("continuous", spec["method"]) == "draft"

    def start(rows: dict[str, np.ndarray], noise: Noise) -> tuple[Pair, Start]:
        images = [int(image) for image in rows["ids"]]
        target, speculator = loaded.pair(images, spec["sampling"], draft)
        order = draw_order(noise, len(images), target.length, target.raster)
        return Pair(*(m and Clocked.clock_batch(m, order) for m in (target, speculator))), Start(order)

    return start


def count_plain_passes(model: Pair, start: Start, options: dict[str, Any]) -> int:
    return options["iterations"] or model.target.length


def time_networks(model: Pair, clock: Clock) -> Pair:
    """Return the model as it is, because its networks are `Clocked` already."""
    return model


def parameters(loaded: Any) -> dict[str, int]:
    """Count the parameters of the loaded networks by role: the target and, if the method has one, its draft model."""
    return {network: count_parameters(net) for network, net in loaded.nets.items()}


def columns(rows: dict[str, np.ndarray], model: Pair, start: Start, drawn: DrawnImages) -> dict[str, Any]:
    """Make the columns of a shard by name: the fields of `drawn`, an image's share of each network's counts and seconds
    (target_passes, draft_head_seconds, ...), and the passes, depth and seconds of the batch."""
    counts = {name: network.counts for name, network in model._asdict().items() if network is not None}
    shares = {
        f"{network}_{name}": spent / len(start.order) for network, c in counts.items() for name, spent in c.items()
    }
    depth = sum(network.depth for network in model if isinstance(network, Clocked))
    waited = sum(c[name] for c in counts.values() for name in ("network_seconds", "head_seconds"))
    drafting = counts.get("draft", {})
    calls = {"draft_calls": int(drafting.get("passes", 0)), "draft_tokens": int(drafting.get("conditions", 0))}
    passes = {"passes": int(counts["target"]["passes"]), "depth": depth, "network_seconds": waited}
    return vars(drawn) | shares | passes | calls


@contextmanager
def add_time(counts: dict[str, float], name: str, device: torch.device) -> Iterator[None]:
    """Context manager: add the seconds that the block takes on `device` to counts[name]."""
    started = now(device)
    yield
    counts[name] += now(device) - started


@dataclass
class ClockedDistributions:
    """Distributions that time what a test of drafts asks of them: densities, and the draws of its residual."""

    distribution: TokenDistributions
    counts: dict[str, float]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.distribution, name)

    def propose(self, path: PathNoise) -> Tensor:
        with add_time(self.counts, "residual_seconds", self.log_sigma.device):
            return self.distribution.propose(path)

    def log_density(self, x: Tensor, inner: float = 1.0) -> Tensor:
        with add_time(self.counts, "density_seconds", x.device):
            return self.distribution.log_density(x, inner)

    def rows(self, which: Tensor) -> "ClockedDistributions":
        return ClockedDistributions(self.distribution.rows(which), self.counts)


@dataclass
class Clocked:
    """A model that counts and times its two halves: conditions (the network) and its head, by distributions or step by
    step."""

    model: ContinuousModel
    row: Tensor  # [n] for each row of the model, the row of the batch that it is
    depth: Tensor  # [B] calls that an image waits for, one after another; `take` shares this tensor and the counts
    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    @classmethod
    def clock_batch(cls, model: ContinuousModel, order: Tensor) -> "Clocked":
        """Make the clocked model of a whole batch, whose orders are `order` [B, L], with all counts at 0."""
        row = torch.arange(len(order), device=order.device)
        return cls(model, row, torch.zeros_like(row))

    def conditions(self, tokens: Tensor, order: Tensor, places: Tensor, known: Tensor) -> Any:
        """Compute the model's conditions; add the time, one pass, and the number of evaluated conditions to counts."""
        with add_time(self.counts, "network_seconds", tokens.device):
            condition = self.model.conditions(tokens, order, places, known)
        self.counts["passes"] += 1
        evaluated = self.row[:, None] * order.shape[1] + known  # places that know the same tokens are evaluated once
        together = known.shape[1] == 1
        self.counts["conditions"] += places.numel() if together else len(evaluated.unique())
        self.depth[self.row] += 1
        return condition

    def distribution(self, condition: Any, path: PathNoise) -> TokenDistributions:
        """Compute the model's distributions, clocked; add the time and a call of the head for each of its steps to
        counts."""
        with add_time(self.counts, "head_seconds", self.depth.device):
            distribution = self.model.distribution(condition, path)
        self.counts["head_calls"] += self.model.steps
        self.counts["head_rows"] += self.model.steps * len(distribution.log_sigma)
        self.depth[self.row] += self.model.steps
        return ClockedDistributions(distribution, self.counts)

    def chain(self, condition: Any) -> "ClockedChain":
        chain = self.model.chain(condition)
        return ClockedChain(chain, self, self.row.repeat_interleave(len(chain) // len(self.row)))

    def take(self, rows: Tensor) -> "Clocked":
        return Clocked(self.model.take(rows), self.row[rows], self.depth, self.counts)


@dataclass
class ClockedChain:
    """Steps that count and time their predictions."""

    chain: Chain
    clock: Clocked
    row: Tensor  # [N] row of the batch that each token belongs to

    def __getattr__(self, name: str) -> Any:
        return getattr(self.chain, name)

    def __len__(self) -> int:
        return len(self.row)

    def predict(self, x: Tensor, i: int | Tensor) -> Tensor:
        return self.count(x[..., 0].numel(), self.chain.predict, x, i)

    def predict_where(self, wanted: Tensor, x: Tensor, i: Tensor) -> Tensor:
        return self.count(int(wanted.sum()), self.chain.predict_where, wanted, x, i)

    def count(self, points: int, predict: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """Return predict(*inputs); add its time, one call of the head, `points` rows and a depth of 1 to the clock."""
        with add_time(self.clock.counts, "head_seconds", self.row.device):
            prediction = predict(*inputs)
        self.clock.counts["head_calls"] += 1
        self.clock.counts["head_rows"] += points
        self.clock.depth += torch.zeros_like(self.clock.depth).index_fill_(0, self.row, 1)
        return prediction

    def take(self, which: Tensor) -> "ClockedChain":
        return ClockedChain(self.chain.take(which), self.clock, self.row[which])
