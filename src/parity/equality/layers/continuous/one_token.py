"""The law of one token under a decoder, against the target's. Everything before the token is fixed, so draws are
independent.

For each of a few images of plain decoding, cut at a random place, the decoder under test draws that place's token many
times, and so does the target. On a diffusion head neither law has a density in closed form, so samples are compared.
`single_path` measures how far the last-step laws p(x_0 | x_1) of target and draft are apart, from which the acceptance
ratio is made.
"""

from importlib import import_module
from typing import Any

import numpy as np
import torch
from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from parity_decoders.continuous.mar import mar
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.continuous import Chain, ContinuousModel, Law, Pair, PathNoise, Start, make_path_noise
from scipy import stats
from torch import Tensor

from parity.decode.continuous import Drawn, record
from parity.equality.layers import CellFiles
from parity.equality.targets.continuous import energy_p
from parity.experiment.options import needs
from parity.models.continuous import diffusion
from parity.models.continuous.load import load

ROLES = ("control", "method")
WHEN = "drafted"
READS = ("baseline", "checkpoint")
WRITES = ()
SETTINGS = ("forced", "conditions")  # draws a condition, and conditions
ONE = {"gamma": 1, "prefill": 0.0}  # length options where there is one position

Place = tuple[Tensor, Tensor, int]  # tokens [L, D] and order [L] of an image, and a place in it


def rows(cell: CellFiles) -> list[Row]:
    """Rows of the tests; the layer's file also gets "ratios", of the two last-step laws, for methods with a draft."""
    spec, shard, n = cell.spec, cell.baseline.shards, cell.settings["forced"]
    loaded, drafted = load(cell.manifest, cell.device), bool(needs("continuous", spec["method"]))
    decoder = getattr(import_module(f"parity_decoders.continuous.{spec['method']}"), spec["method"])
    options = {k: ONE.get(k, v) for k, v in spec["options"].items()}
    rng, conditions = np.random.default_rng([spec["seed"], 11]), []
    for c in range(min(cell.settings["conditions"], len(shard.tokens))):
        tokens, order = (torch.from_numpy(column[c]).to(cell.device) for column in (shard.tokens, shard.order))
        place = int(rng.integers(1, shard.order.shape[1]))
        conditions.append((loaded.pair(range(c, c + 1), spec["sampling"], drafted), (tokens, order, place)))
    seeds = (1000 + spec["seed"], 50_000 + spec["seed"])
    result = compare_conditions(conditions, decoder, options, n, seeds, **cell.place, seed=spec["seed"])
    cell.beside["ratios"] = {}
    if drafted:
        single = loaded.family.FAMILY["single_path"]
        cell.beside["ratios"] = ratios(conditions, decoder, options, n, seeds[0], single)
    return result


def ratios(
    conditions: list[tuple[Pair, Place]], decoder: Any, options: dict[str, Any], n: int, seed: int, single: bool
) -> dict[str, dict[str, float]]:
    """Over the drafts of all conditions: mean, median and number of log p/q by the draft's path alone (`single`, if
    there is a path) and by both paths, of the distance of draft and target, and of acceptance."""
    drawn: dict[str, list[float]] = {"single_path": [], "two_paths": [], "distance": [], "acceptance": []}
    for c, (pair, image) in enumerate(conditions):
        noise = counted_noise(seed, range(c * n, (c + 1) * n), torch.float32, image[0].device)
        done = draw(pair, decoder, options, image, noise)
        drawn["two_paths"] += done.log_ratio[:, 0].tolist()
        drawn["distance"] += done.distance[:, 0].tolist()
        drawn["acceptance"] += (done.accepted[:, 0] == 1).float().tolist()
        if single:
            drawn["single_path"] += single_path(pair, image, noise).tolist()
    return {
        name: {"mean": float(np.mean(v)), "median": float(np.median(v)), "n": len(v)} for name, v in drawn.items() if v
    }


class OnePlace:
    """A model that draws one place of one image (tokens [1, L, D], order [1, L]), what comes before it given, in `rows`
    rows: a `ContinuousModel` of one token."""

    def __init__(self, model: ContinuousModel, tokens: Tensor, order: Tensor, place: int, rows: int):
        self.model, self.tokens, self.order, self.place, self.rows = model, tokens, order, place, rows
        self.length, self.dim, self.steps, self.raster = 1, model.dim, model.steps, model.raster

    def conditions(self, tokens: Tensor, order: Tensor, places: Tensor, known: Tensor) -> Any:
        """All rows have one condition, so one evaluation serves them where its result can be repeated."""
        n, at = places.numel(), torch.full((1, 1), self.place, device=order.device)
        one = self.model.conditions(self.tokens, self.order, at, at)
        if isinstance(one, diffusion.Steps):
            return one.take(torch.zeros(n, dtype=torch.int64, device=order.device))
        if isinstance(one, Tensor):
            return one.expand(n, -1)
        model = self.model.take(torch.zeros(n, dtype=torch.int64, device=order.device))
        at = at.expand(n, 1)
        return model.conditions(self.tokens.expand(n, -1, -1), self.order.expand(n, -1), at, at)

    def law(self, condition: Any, path: PathNoise) -> Law:
        return self.model.law(condition, path)

    def chain(self, condition: Any) -> Chain:
        return self.model.chain(condition)

    def take(self, rows: Tensor) -> "OnePlace":
        return OnePlace(self.model, self.tokens, self.order, self.place, len(rows))


def at_one_place(pair: Pair, image: Place, rows: int) -> Pair:
    """A pair that draws one place of an image in `rows` rows."""
    tokens, order, place = image
    one = [model and OnePlace(model, tokens[None], order[None], place, rows) for model in pair]
    return Pair(*one)  # type: ignore[arg-type]


def draw(pair: Pair, decoder: Any, options: dict[str, Any], image: Place, noise: Noise) -> Drawn:
    """Draws of one place of an image under a decoder, one a row of the noise."""
    one, start = at_one_place(pair, image, len(noise.keys)), Start(torch.zeros_like(noise.keys)[:, None])
    return record(one, start, decoder(one, start, noise=noise, **options))


def single_path(pair: Pair, image: Place, noise: Noise) -> Tensor:
    """log p(Y) / q(Y) [n] of the draft's own trajectories (eq. 2), for models with a diffusion head."""
    tokens, here = image[0], torch.zeros_like(noise.keys)[:, None]
    both = (model for model in at_one_place(pair, image, len(here)) if model is not None)
    target, draft = (model.conditions(tokens, here, here, here) for model in both)
    path = make_path_noise(noise, "draft", here, pair.target.steps, tokens.shape[-1])
    return diffusion.compute_single_path_log_ratio(target, draft, path)


def tests_of(x: np.ndarray, y: np.ndarray, rng: np.random.Generator, **place: Any) -> list[Row]:
    """Of draws x [n, D] of the decoder and y of the target: an energy test of the token, numbers divided by the
    target's deviations, and KS of each number, Holm within."""
    n, spread = len(x), y.std(0) + 1e-9
    statistic, p = energy_p(x / spread, y / spread, rng, 1999)
    values = {"statistic": statistic, "p_value": p, "effect": max(statistic, 0.0) ** 0.5}
    rows = [R.make_row("teacher-forced", "energy", n, **values, **place)]
    each = [stats.ks_2samp(x[:, d], y[:, d], method="asymp") for d in range(x.shape[1])]
    largest, p = each[int(np.argmin([k.pvalue for k in each]))].statistic, float(R.holm([k.pvalue for k in each]).min())
    return [*rows, R.make_row("teacher-forced", "KS", n, statistic=largest, p_value=p, effect=largest, **place)]


def shifts(x: np.ndarray, y: np.ndarray, **place: Any) -> list[Row]:
    """How far the mean moved, and how the spread did, in the target's deviations: diagnostics, no tests."""
    spread = y.std(0) + 1e-9
    effects = {
        "mean shift": float(np.sqrt((((x.mean(0) - y.mean(0)) / spread) ** 2).mean())),
        "spread ratio": float(np.exp(np.log((x.std(0) + 1e-9) / spread).mean())),
    }
    place |= {"decides": False, "verdict": "measured"}
    return [R.make_row("teacher-forced", test, len(x), effect=effect, **place) for test, effect in effects.items()]


def compare_conditions(
    conditions: list[tuple[Pair, Place]],
    decoder: Any,
    options: dict[str, Any],
    n: int,
    seeds: tuple[int, int],
    **place: Any,
) -> list[Row]:
    """Tests of n draws a condition against the target alone, one family (Holm over conditions and tests); if it
    rejects, all of it is repeated on fresh draws (repeat 1)."""
    result: list[Row] = []
    for repeat in range(2):
        family: list[Row] = []
        for c, (pair, image) in enumerate(conditions):
            here = {**place, "model": f"{place['model']}, condition {c}, place {image[2]}", "repeat": repeat}
            fresh, how = range((2 * c + repeat) * n, (2 * c + repeat + 1) * n), (image[0].dtype, image[0].device)
            own = draw(pair, decoder, options, image, counted_noise(seeds[0], fresh, *how))
            plain = draw(Pair(pair.target), mar, {}, image, counted_noise(seeds[1], fresh, *how))
            x, y = (done.tokens[:, 0].double().cpu().numpy() for done in (own, plain))
            family += tests_of(x, y, np.random.default_rng([seeds[0], c, repeat]), **here)
            result += shifts(x, y, **here) if repeat == 0 else []
        R.adjust_family(family)
        result += family
        if not any(r["verdict"] == "rejected" for r in family):
            break
    return result
