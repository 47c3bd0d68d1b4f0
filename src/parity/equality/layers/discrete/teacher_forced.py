"""Test a cell's own tokens, run once through the target. The log-probabilities serve the likelihood figures, too."""

from typing import Any

import numpy as np
import torch
from parity_certify.result_rows import Row, adjust_family, make_not_run_row
from parity_certify.teacher_forced import assign_slots, run_battery

from parity.base.command import note
from parity.base.machine import limit_rows
from parity.equality.layers import CellFiles
from parity.equality.row_dependence import RowDependence
from parity.experiment.options import claim
from parity.metrics.likelihood import log_probabilities, teacher_forced_logits, top_probabilities
from parity.models.discrete.load import load

ROLES = ("reference", "control", "method", "again")
WHEN = "always"
READS = ("shards", "inputs", "checkpoint")
WRITES = ("probs",)
SETTINGS = ("seeds",)
BATCH = 16  # number of rows that the target evaluates at once, if memory allows it (`limit_rows`)


def rows(cell: CellFiles) -> list[Row]:
    """Make the rows of the battery, and of the test whether rows of a batch depend on each other. Writes the
    distributions: logp of each token and top1, the largest probability of its distribution [n, L]; NaN where the
    grammar forces a token."""
    spec, shard = cell.spec, cell.shards
    loaded = load(cell.manifest, cell.device, getattr(torch, spec["dtype"]))
    logp: list[np.ndarray] = []
    top1: list[np.ndarray] = []
    # A token's slot is known before it is drawn only if each pass ends in a correction: in left-to-right verifiers.
    is_lossless = claim("discrete", spec["method"], spec["options"]) == "lossless"
    by_slot = is_lossless and not shard.lacks("step")
    seed = cell.settings["seeds"][0]
    dependence = RowDependence(shard.tokens, shard.batch, shard.at_once, shard.step if by_slot else None)

    def compute_probs(first: int, end: int) -> torch.Tensor:
        """Compute the distributions p [end - first, L, V] of rows first..end - 1; extend logp, top1 and `dependence` by
        them."""
        note(f"distributions of the target: {first} of {len(shard.tokens)} images")
        model = loaded.model({k: v[first:end] for k, v in cell.inputs.items()}, spec["sampling"])
        tokens = torch.from_numpy(shard.tokens[first:end]).to(loaded.device)
        logits = teacher_forced_logits(model, tokens)
        logp.append(log_probabilities(logits, tokens, model.forced).cpu().numpy())
        p = logits.softmax(-1)
        dependence.add(first, p)
        top1.append(top_probabilities(p, model.forced).cpu().numpy())
        return p

    groups = loaded.groups()
    at_once = limit_rows(BATCH, shard.tokens.shape[1], groups.shape[1])
    settings: dict[str, Any] = {"slot": assign_slots(shard.step) if by_slot else None, "groups": groups}
    strict = is_lossless and not shard.is_made  # tokens made elsewhere are judged, whatever they are
    settings |= {"chunk": at_once, "strict": strict, "seed": seed, **cell.columns}
    result = run_battery(shard.tokens, compute_probs, loaded.width, rng=np.random.default_rng(seed), **settings)
    result.append(dependence.make_row(seed=seed, **cell.columns))
    if shard.lacks("step"):
        needs = "the pass in which each token became final, column step"
        result.append(make_not_run_row("teacher-forced", "slots", 0, needs, seed=seed, **cell.columns))
    result = adjust_family(result)
    cell.write_probs(ids=shard.ids, logp=np.concatenate(logp), top1=np.concatenate(top1))
    return result
