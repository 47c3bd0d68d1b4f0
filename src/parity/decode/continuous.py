"""What a continuous decoder yields, and the caller that runs one, counts and times."""

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from parity.decoders.steps import Draw
from parity.models.continuous.protocol import ContinuousModel, Law, PathNoise


@dataclass
class Image:
    """A batch of decoded images and what they cost."""

    tokens: Tensor  # [B, L, D] in raster order of the grid
    steps: Tensor  # [B] steps a row took part in
    step: Tensor  # [B, L] the step, from 1, in which the token of a place became final
    accepted: Tensor  # [B, L] int8, by place: 1 an accepted draft, 0 a rejected one, -1 never drafted
    tries: Tensor  # [B] draws of the acceptance-rejection sampler
    gave_up: Tensor  # [B] times it ended with none
    log_ratio: Tensor  # [B, L] by place, NaN where nothing was verified
    distance: Tensor  # [B, L] by place, likewise
    order: Tensor  # [B, L]
    seconds: float


def run(order: Tensor, dim: int, steps: Iterator[Draw]) -> Image:
    """Write every step's tokens in their places. ValueError if a decoder stops early or yields what is not finite."""
    B, L = order.shape
    tokens = torch.empty(0)
    step, accepted = torch.zeros(B, L, dtype=torch.int32), torch.full((B, L), -1, dtype=torch.int8)
    log_ratio, distance = torch.full((B, L), float("nan")), torch.full((B, L), float("nan"))
    begin = torch.zeros(B, dtype=torch.int64, device=order.device)
    taken, tries, gave_up = (torch.zeros(B, dtype=torch.int64, device=order.device) for _ in range(3))
    clock = time.perf_counter()
    for number, d in enumerate(steps, 1):
        if number == 1:
            tokens = torch.full((B, L, dim), float("nan"), dtype=d.tokens.dtype, device=order.device)
        at = begin[:, None] + torch.arange(d.tokens.shape[1], device=order.device)
        new = (at < (begin + d.kept)[:, None]) & (at < L)
        b, w = new.nonzero(as_tuple=True)
        tokens[b, at[b, w]] = d.tokens[b, w].to(tokens.dtype)
        if not bool(tokens[b, at[b, w]].isfinite().all()):
            bad = int((~tokens[b, at[b, w]].isfinite().all(-1)).nonzero()[0])
            raise ValueError(
                f"place {int(at[b, w][bad])}, row {int(b[bad])}: the decoder drew a token that is not finite"
            )
        step[b.cpu(), at[b, w].cpu()] = number
        if d.verified is not None and d.accepted is not None and d.log_ratio is not None and d.distance is not None:
            b, w = d.verified.nonzero(as_tuple=True)  # W may be one less than the tokens: the last is nobody's draft
            where = (b.cpu(), at[b, w].cpu())
            if bool((wrong := d.log_ratio[b, w].isnan()).any()):
                bad = int(wrong.nonzero()[0])
                raise ValueError(
                    f"place {int(at[b, w][bad])}, row {int(b[bad])}: the densities of target and draft have no ratio: one is not finite"
                )
            accepted[where] = d.accepted[b, w].to(torch.int8).cpu()
            log_ratio[where], distance[where] = d.log_ratio[b, w].float().cpu(), d.distance[b, w].float().cpu()
        tries, gave_up = (
            tries + (d.tries if d.tries is not None else 0),
            gave_up + (d.gave_up if d.gave_up is not None else 0),
        )
        taken, begin = taken + (d.kept > 0), begin + d.kept
    seconds = time.perf_counter() - clock
    if int(begin.min()) < L:
        row = int(begin.argmin())
        raise ValueError(f"row {row}: the decoder stopped at place {int(begin[row])} of {L}")
    raster = torch.empty_like(tokens).scatter(1, order[..., None].expand(-1, -1, dim), tokens)
    return Image(
        raster, taken.cpu(), step, accepted, tries.cpu(), gave_up.cpu(), log_ratio, distance, order.cpu(), seconds
    )


def now(device: torch.device) -> float:
    """Seconds on a clock that waits for what was launched on `device`."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass
class ClockedLaw:
    """Laws that time what a test of drafts asks of them: densities, and the draws of its residual."""

    law: Law
    counts: dict[str, float]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.law, name)

    def propose(self, path: PathNoise) -> Tensor:
        begin = now(self.log_sigma.device)
        found = self.law.propose(path)
        self.counts["residual_seconds"] += now(found.device) - begin
        return found

    def log_density(self, x: Tensor, inner: float = 1.0) -> Tensor:
        begin = now(x.device)
        found = self.law.log_density(x, inner)
        self.counts["density_seconds"] += now(x.device) - begin
        return found

    def rows(self, which: Tensor) -> "ClockedLaw":
        return ClockedLaw(self.law.rows(which), self.counts)


@dataclass
class Clocked:
    """A model that counts and times its two halves for the caller: conditions (the network) and laws (its head)."""

    model: ContinuousModel
    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def conditions(self, tokens: Tensor, order: Tensor, places: Tensor, known: Tensor) -> Any:
        begin = now(tokens.device)
        found = self.model.conditions(tokens, order, places, known)
        self.counts["network_seconds"] += now(tokens.device) - begin
        self.counts["passes"] += 1
        self.counts["conditions"] += places.numel()
        return found

    def law(self, condition: Any, path: PathNoise) -> Law:
        begin = time.perf_counter()
        found = self.model.law(condition, path)
        self.counts["head_seconds"] += now(found.log_sigma.device) - begin
        self.counts["head_calls"] += self.model.steps
        return ClockedLaw(found, self.counts)

    def take(self, rows: Tensor) -> "Clocked":
        return Clocked(self.model.take(rows), self.counts)
