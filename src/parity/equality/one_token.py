"""The law of one token under a decoder, against the target's: everything before the token is held fixed, so the draws are independent.

For each of a few images of plain sampling, cut at a random place, the decoder under test draws that place's token many times, and so does the
target. On a diffusion head neither law has a density that could be written down; what is compared are samples. The rest of the row says how
far the two last-step laws, p(x_0 | x_1) of target and draft, stand from each other: the ratio that accepts drafts is made of them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from parity.base.noise import Noise, counted_noise
from parity.decode.continuous import Image, run
from parity.decoders.continuous.mar import mar
from parity.equality import rows as R
from parity.equality.mixtures import energy_p
from parity.equality.rows import Row
from parity.models.continuous import diffusion
from parity.models.continuous.protocol import ContinuousModel, Law, Pair, PathNoise, Start, path_noise

Place = tuple[Tensor, Tensor, int]  # tokens [L, D] and order [L] of an image, and a place in it


@dataclass(frozen=True)
class OnePlace:
    """A model that draws one place of one image, with what comes before it given, in `rows` rows: satisfies `ContinuousModel` with one token."""

    model: ContinuousModel
    tokens: Tensor  # [1, L, D]
    order: Tensor  # [1, L]
    place: int
    rows: int
    length = 1

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def steps(self) -> int:
        return self.model.steps

    @property
    def raster(self) -> bool:
        return self.model.raster

    def conditions(self, tokens: Tensor, order: Tensor, places: Tensor, known: Tensor) -> Any:
        """All rows know the same: one evaluation serves them, where its result can be repeated."""
        n, at = places.numel(), torch.full((1, 1), self.place, device=order.device)
        one = self.model.conditions(self.tokens, self.order, at, at)
        if isinstance(one, diffusion.Steps):
            return one.repeat(n)
        if isinstance(one, Tensor):
            return one.expand(n, -1)
        model = self.model.take(torch.zeros(n, dtype=torch.int64, device=order.device))
        return model.conditions(
            self.tokens.expand(n, -1, -1), self.order.expand(n, -1), at.expand(n, 1), at.expand(n, 1)
        )

    def law(self, condition: Any, path: PathNoise) -> Law:
        return self.model.law(condition, path)

    def take(self, rows: Tensor) -> "OnePlace":
        return OnePlace(self.model, self.tokens, self.order, self.place, len(rows))


def draw(pair: Pair, decoder: Any, options: dict[str, Any], image: Place, noise: Noise) -> Image:
    """`rows` draws of one place of an image (tokens [L, D], order [L], place) under a decoder."""
    tokens, order, place = image
    n = len(noise.keys)
    target = OnePlace(pair.target, tokens[None], order[None], place, n)
    one = Pair(target, None if pair.draft is None else OnePlace(pair.draft, tokens[None], order[None], place, n))
    start = torch.zeros(n, 1, dtype=torch.int64, device=order.device)
    return run(start, tokens.shape[-1], decoder(one, Start(start), noise=noise, **options))


def single_path(pair: Pair, image: Place, noise: Noise) -> Tensor:
    """log p(Y) / q(Y) [n] of the draft's own trajectories (eq. 2), for models with a diffusion head."""
    tokens, order, place = image
    n = len(noise.keys)
    here = torch.zeros(n, 1, dtype=torch.int64, device=order.device)
    steps = []
    for model in pair:
        assert model is not None
        steps.append(OnePlace(model, tokens[None], order[None], place, n).conditions(tokens, here, here, here))
    path = path_noise(noise, "draft", here, pair.target.steps, tokens.shape[-1])
    return diffusion.single_path_log_ratio(steps[0], steps[1], path)


def rows(
    conditions: list[tuple[Pair, Place]],
    decoder: Any,
    options: dict[str, Any],
    n: int,
    seeds: tuple[int, int],
    **place: Any,
) -> list[Row]:
    """Tests of n draws a condition against the target alone, one family (Holm over conditions and tests); if it rejects, all of it is repeated
    on fresh draws (repeat 1).

    energy  two-sample energy test of the token, numbers divided by the target's deviations
    KS      of each number, Holm within
    shift   how far the mean moved, and how the spread did, in the target's deviations: diagnostics, no tests
    """
    found: list[Row] = []
    for repeat in range(2):
        family: list[Row] = []
        for c, (pair, image) in enumerate(conditions):
            here = {**place, "model": f"{place['model']}, condition {c}, place {image[2]}", "repeat": repeat}
            fresh, dtype = range((2 * c + repeat) * n, (2 * c + repeat + 1) * n), image[0].dtype
            mine = draw(pair, decoder, options, image, counted_noise(seeds[0], fresh, dtype))
            theirs = draw(Pair(pair.target), mar, {}, image, counted_noise(seeds[1], fresh, dtype))
            x, y = (i.tokens[:, 0].double().cpu().numpy() for i in (mine, theirs))
            spread = y.std(0) + 1e-9
            statistic, p = energy_p(x / spread, y / spread, np.random.default_rng([seeds[0], c, repeat]), 1999)
            family.append(
                R.row(
                    "teacher-forced",
                    "energy",
                    n,
                    statistic=statistic,
                    p_value=p,
                    effect=max(statistic, 0.0) ** 0.5,
                    **here,
                )
            )
            each = [stats.ks_2samp(x[:, d], y[:, d], method="asymp") for d in range(x.shape[1])]
            first = int(np.argmin([k.pvalue for k in each]))
            p_ks = float(R.holm([k.pvalue for k in each]).min())
            family.append(
                R.row(
                    "teacher-forced",
                    "KS",
                    n,
                    statistic=each[first].statistic,
                    p_value=p_ks,
                    effect=each[first].statistic,
                    **here,
                )
            )
            if repeat == 0:
                moved = float(np.sqrt((((x.mean(0) - y.mean(0)) / spread) ** 2).mean()))
                ratio = float(np.exp(np.log((x.std(0) + 1e-9) / spread).mean()))
                for test, effect in (("mean shift", moved), ("spread ratio", ratio)):
                    found.append(
                        R.row(
                            "teacher-forced", test, n, effect=effect, **here | {"decides": False, "verdict": "measured"}
                        )
                    )
        R.family(family)
        found += family
        if not any(r["verdict"] == "rejected" for r in family):
            break
    return found
