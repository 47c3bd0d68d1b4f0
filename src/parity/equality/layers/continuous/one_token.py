"""The law of one token, of a few images of plain decoding cut at random places: see parity.equality.one_token."""

from importlib import import_module
from typing import Any

import numpy as np
import torch
from parity_certify.result_rows import Row

from parity.base.noise import counted_noise
from parity.equality import one_token
from parity.equality.cell import CellFiles
from parity.experiment.options import needs
from parity.models.continuous.load import load
from parity.models.continuous.protocol import Pair

ROLES = ("control", "method")
WHEN = "drafted"
READS = ("baseline", "checkpoint")
WRITES = ()
SETTINGS = ("forced", "conditions")  # draws a condition, and conditions
ONE = {"gamma": 1, "prefill": 0.0}  # options that count places, where there is one


def rows(cell: CellFiles) -> list[Row]:
    """Beside the rows: how far the two last-step laws stand from each other ("ratios"), for methods with a draft."""
    spec, shard, n = cell.spec, cell.baseline.shards, cell.settings["forced"]
    loaded, drafted = load(cell.manifest, cell.device), bool(needs("continuous", spec["method"]))
    decoder = getattr(import_module(f"parity.decoders.continuous.{spec['method']}"), spec["method"])
    options = {k: ONE.get(k, v) for k, v in spec["options"].items()}
    rng, conditions = np.random.default_rng([spec["seed"], 11]), []
    for c in range(min(cell.settings["conditions"], len(shard.tokens))):
        image = [torch.from_numpy(column[c]).to(cell.device) for column in (shard.tokens, shard.order)]
        place = int(rng.integers(1, shard.order.shape[1]))
        conditions.append((loaded.pair(range(c, c + 1), spec["sampling"], drafted), (image[0], image[1], place)))
    seeds = (1000 + spec["seed"], 50_000 + spec["seed"])
    result = one_token.rows(conditions, decoder, options, n, seeds, **cell.place, seed=spec["seed"])
    cell.beside["ratios"] = {}
    if drafted:
        single = loaded.family.FAMILY["single_path"]
        cell.beside["ratios"] = ratios(conditions, decoder, options, n, seeds[0], single)
    return result


def ratios(
    conditions: list[tuple[Pair, one_token.Place]],
    decoder: Any,
    options: dict[str, Any],
    n: int,
    seed: int,
    single: bool,
) -> dict[str, dict[str, float]]:
    """Mean, median and number of log p/q by the draft's path alone (`single`, if there is a path) and by both paths,
    of the distance of draft and target, and of acceptance, over the drafts of all conditions."""
    drawn: dict[str, list[float]] = {"single_path": [], "two_paths": [], "distance": [], "acceptance": []}
    for c, (pair, image) in enumerate(conditions):
        noise = counted_noise(seed, range(c * n, (c + 1) * n), torch.float32, image[0].device)
        done = one_token.draw(pair, decoder, options, image, noise)
        drawn["two_paths"] += done.log_ratio[:, 0].tolist()
        drawn["distance"] += done.distance[:, 0].tolist()
        drawn["acceptance"] += (done.accepted[:, 0] == 1).float().tolist()
        if single:
            drawn["single_path"] += one_token.single_path(pair, image, noise).tolist()
    known = {name: (np.mean(v), np.median(v), len(v)) for name, v in drawn.items() if v}
    return {name: {"mean": float(m), "median": float(middle), "n": k} for name, (m, middle, k) in known.items()}
