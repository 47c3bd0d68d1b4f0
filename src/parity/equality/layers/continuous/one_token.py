"""Compare the distribution of one token under a decoder with the target's. All that comes before the token is fixed, so
draws are independent.

For each of a few images of plain decoding, cut at a random rank, the decoder under test draws that rank's token many
times, and so does the target. On a diffusion head neither distribution has a density in closed form, so samples are
compared. `compute_single_path` measures how far the last-step distributions p(x_0 | x_1) of target and draft are apart,
from which the acceptance ratio is made.
"""

from typing import Any

import numpy as np
import torch
from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from parity_decoders.continuous.mar import mar
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.continuous import (
    Chain,
    ContinuousModel,
    Pair,
    PathNoise,
    Start,
    TokenDistributions,
    make_path_noise,
)
from scipy import stats
from torch import Tensor

from parity.base.command import note
from parity.decode.continuous import DrawnImages, record
from parity.equality.layers import CellFiles
from parity.equality.targets.continuous import compute_energy_p
from parity.experiment.decoders import import_decoder
from parity.experiment.options import needs
from parity.metrics.estimates import log_mean
from parity.models.continuous import diffusion
from parity.models.continuous.load import load

ROLES = ("control", "method")
WHEN = "drafted"
READS = ("shards", "baseline", "checkpoint")
WRITES = ()
SETTINGS = ("forced", "conditions")  # the number of draws for each condition, and the number of conditions
ONE = {"gamma": 1, "prefill": 0.0}  # values of the options that count positions, where there is one position

Cut = tuple[Tensor, Tensor, int]  # tokens [L, D] and order [L] of an image, and the rank whose token is drawn again


def rows(cell: CellFiles) -> list[Row]:
    """Make the rows that compare a token's distribution under the decoder and under the target, for a few images of
    plain decoding. The layer's file also gets "ratios" (see `summarise_ratios`), {} for methods without a draft
    model."""
    spec, shard, n = cell.spec, cell.baseline.shards, cell.settings["forced"]
    loaded = load(cell.manifest, cell.device)
    has_draft = bool(needs("continuous", spec["method"]))
    decoder = import_decoder("continuous", spec["method"])
    options = {k: ONE.get(k, v) for k, v in spec["options"].items()}
    rng = np.random.default_rng([spec["seed"], 11])
    conditions = []
    for c in range(min(cell.settings["conditions"], len(shard.tokens))):
        tokens, order = (torch.from_numpy(column[c]).to(cell.device) for column in (shard.tokens, shard.order))
        rank = int(rng.integers(1, shard.order.shape[1]))
        conditions.append((loaded.pair(range(c, c + 1), spec["sampling"], has_draft), (tokens, order, rank)))
    seeds = (1000 + spec["seed"], 50_000 + spec["seed"])
    result = compare_conditions(conditions, decoder, options, n, seeds, **cell.columns, seed=spec["seed"])
    cell.extra_entries["ratios"] = {}
    if has_draft:
        single = loaded.family.FAMILY["single_path"]
        cell.extra_entries["ratios"] = summarise_ratios(conditions, decoder, options, n, seeds[0], single)
    return result


def summarise_ratios(
    conditions: list[tuple[Pair, Cut]], decoder: Any, options: dict[str, Any], n: int, seed: int, single: bool
) -> dict[str, dict[str, float]]:
    """Compute mean, median and number, over n drafts for each condition, of log p/q by the draft's path alone (if
    `single`) and by both paths, of the distance of draft and target, and of acceptance (1 or 0); of the ratios p/q also
    the logarithm of their mean."""
    values: dict[str, list[float]] = {"single_path": [], "two_paths": [], "distance": [], "acceptance": []}
    for c, (pair, cut) in enumerate(conditions):
        noise = counted_noise(seed, range(c * n, (c + 1) * n), torch.float32, cut[0].device)
        drawn = draw(pair, decoder, options, cut, noise)
        values["two_paths"] += drawn.log_ratio[:, 0].tolist()
        values["distance"] += drawn.distance[:, 0].tolist()
        values["acceptance"] += (drawn.accepted[:, 0] == 1).float().tolist()
        if single:
            values["single_path"] += compute_single_path(pair, cut, noise).tolist()
    statistics = {
        name: {"mean": float(np.mean(v)), "median": float(np.median(v)), "n": len(v)} for name, v in values.items() if v
    }
    for name in {"single_path", "two_paths"} & set(statistics):
        statistics[name]["log_mean"] = log_mean(np.array(values[name]))
    return statistics


class OneRank:
    """A model that draws one rank of one image (tokens [1, L, D], order [1, L]), what comes before it given, in `rows`
    rows: a `ContinuousModel` of one token."""

    def __init__(self, model: ContinuousModel, tokens: Tensor, order: Tensor, rank: int, rows: int):
        self.model, self.tokens, self.order, self.rank, self.rows = model, tokens, order, rank, rows
        self.length, self.dim, self.steps, self.raster = 1, model.dim, model.steps, model.raster

    def conditions(self, tokens: Tensor, order: Tensor, ranks: Tensor, n_known: Tensor) -> Any:
        """Compute the condition, which all rows share: one evaluation serves them where its result can be repeated."""
        n = ranks.numel()
        rank = torch.full((1, 1), self.rank, device=order.device)
        condition = self.model.conditions(self.tokens, self.order, rank, rank)
        if isinstance(condition, diffusion.Steps):
            return condition.take(torch.zeros(n, dtype=torch.int64, device=order.device))
        if isinstance(condition, Tensor):
            return condition.expand(n, -1)
        model = self.model.take(torch.zeros(n, dtype=torch.int64, device=order.device))
        rank = rank.expand(n, 1)
        return model.conditions(self.tokens.expand(n, -1, -1), self.order.expand(n, -1), rank, rank)

    def distribution(self, condition: Any, path: PathNoise) -> TokenDistributions:
        return self.model.distribution(condition, path)

    def chain(self, condition: Any) -> Chain:
        return self.model.chain(condition)

    def take(self, rows: Tensor) -> "OneRank":
        return OneRank(self.model, self.tokens, self.order, self.rank, len(rows))


def cut_pair(pair: Pair, cut: Cut, rows: int) -> Pair:
    """Make a pair of models of a single token: the one at the rank of `cut`, given those before it, in `rows` rows."""
    tokens, order, rank = cut
    models = [model and OneRank(model, tokens[None], order[None], rank, rows) for model in pair]
    return Pair(*models)  # type: ignore[arg-type]


def draw(pair: Pair, decoder: Any, options: dict[str, Any], cut: Cut, noise: Noise) -> DrawnImages:
    """Draw the token at the rank of `cut` by a decoder, once for each row of the noise, as images of one token."""
    models = cut_pair(pair, cut, len(noise.keys))
    start = Start(torch.zeros_like(noise.keys)[:, None])
    return record(models, start, decoder(models, start, noise=noise, **options))


def compute_single_path(pair: Pair, cut: Cut, noise: Noise) -> Tensor:
    """Compute log p(Y) / q(Y) [n] of the draft's trajectories Y, one for each row of the noise (CSpD, eq. 2)."""
    tokens = cut[0]
    zeros = torch.zeros_like(noise.keys)[:, None]
    models = (model for model in cut_pair(pair, cut, len(zeros)) if model is not None)
    target, draft = (model.conditions(tokens, zeros, zeros, zeros) for model in models)
    path = make_path_noise(noise, "draft", zeros, pair.target.steps, tokens.shape[-1])
    return diffusion.compute_single_path_log_ratio(target, draft, path)


def compare_draws(x: np.ndarray, y: np.ndarray, rng: np.random.Generator, **columns: Any) -> list[Row]:
    """Make two rows that compare draws x [n, D] of the decoder with y [n, D] of the target: an energy test of tokens
    divided by the target's deviations, and KS of each number, the smallest p by Holm."""
    n = len(x)
    spread = y.std(0) + 1e-9
    statistic, p = compute_energy_p(x / spread, y / spread, rng, 1999)
    values = {"statistic": statistic, "p_value": p, "effect": max(statistic, 0.0) ** 0.5}
    rows = [R.make_row("teacher-forced", "energy", n, **values, **columns)]
    ks = [stats.ks_2samp(x[:, d], y[:, d], method="asymp") for d in range(x.shape[1])]
    statistic = ks[int(np.argmin([k.pvalue for k in ks]))].statistic
    p = float(R.holm([k.pvalue for k in ks]).min())
    return [*rows, R.make_row("teacher-forced", "KS", n, statistic=statistic, p_value=p, effect=statistic, **columns)]


def measure_shifts(x: np.ndarray, y: np.ndarray, **columns: Any) -> list[Row]:
    """Make two diagnostic rows, no tests: how far the mean of draws x [n, D] is from that of y, in y's deviations, and
    the ratio of deviations."""
    spread = y.std(0) + 1e-9
    effects = {
        "mean shift": float(np.sqrt((((x.mean(0) - y.mean(0)) / spread) ** 2).mean())),
        "spread ratio": float(np.exp(np.log((x.std(0) + 1e-9) / spread).mean())),
    }
    columns |= {"decides": False, "verdict": "measured"}
    return [R.make_row("teacher-forced", test, len(x), effect=effect, **columns) for test, effect in effects.items()]


def compare_conditions(
    conditions: list[tuple[Pair, Cut]],
    decoder: Any,
    options: dict[str, Any],
    n: int,
    seeds: tuple[int, int],
    **columns: Any,
) -> list[Row]:
    """Compare n draws by the decoder with n of the target alone for each condition, one family (Holm over conditions
    and tests); if it rejects, all is repeated on new draws (repeat 1). Returns these rows and diagnostics. `seeds` are
    those of the decoder's and the target's draws."""
    result: list[Row] = []
    for repeat in range(2):
        family: list[Row] = []
        for c, (pair, cut) in enumerate(conditions):
            note(f"tests of one token: condition {c + 1} of {len(conditions)}")
            model = f"{columns['model']}, condition {c}, place {cut[2]}"
            of_condition = {**columns, "model": model, "repeat": repeat}
            noise_rows = range((2 * c + repeat) * n, (2 * c + repeat + 1) * n)
            noises = [counted_noise(seed, noise_rows, cut[0].dtype, cut[0].device) for seed in seeds]
            drawn = draw(pair, decoder, options, cut, noises[0])
            plain = draw(Pair(pair.target), mar, {}, cut, noises[1])
            x, y = (sample.tokens[:, 0].double().cpu().numpy() for sample in (drawn, plain))
            family += compare_draws(x, y, np.random.default_rng([seeds[0], c, repeat]), **of_condition)
            result += measure_shifts(x, y, **of_condition) if repeat == 0 else []
        family = R.adjust_family(family)
        result += family
        if not any(r["verdict"] == "rejected" for r in family):
            break
    return result
