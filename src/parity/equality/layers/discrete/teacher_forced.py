"""Test a cell's own tokens, run once through the target. The log-probabilities serve the likelihood figures, too."""

from typing import Any

import numpy as np
import torch
from parity_certify.result_rows import Row, adjust_family, make_not_run_row
from parity_certify.teacher_forced import assign_slots, loosen, make_border_row, run_battery
from torch.nn.functional import one_hot

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
ROUNDED = ("bfloat16", "float16")  # in these the border of top-k moves between a pass over one token and over a row
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
    at_border = 0  # tokens that are excluded, but not by options half as strict
    dependence = RowDependence(shard.tokens, shard.batch, shard.at_once, shard.step if by_slot else None)

    def compute_probs(first: int, end: int) -> torch.Tensor:
        """Compute the distributions p [end - first, L, V] of rows first..end - 1; extend logp, top1 and `dependence` by
        them."""
        nonlocal at_border
        note(f"distributions of the target: {first} of {len(shard.tokens)} images")
        inputs = {k: v[first:end] for k, v in cell.inputs.items()}
        model = loaded.model(inputs, spec["sampling"])
        tokens = torch.from_numpy(shard.tokens[first:end]).to(loaded.device)
        logits = teacher_forced_logits(model, tokens)
        logp.append(log_probabilities(logits, tokens, model.forced).cpu().numpy())
        p = logits.softmax(-1)
        is_excluded = p.gather(-1, tokens.long()[..., None])[..., 0] == 0
        if spec["dtype"] in ROUNDED and is_excluded.any():
            looser = teacher_forced_logits(loaded.model(inputs, loosen(spec["sampling"])), tokens).softmax(-1)
            is_excluded &= looser.gather(-1, tokens.long()[..., None])[..., 0] > 0
            at_border += int(is_excluded.sum())
            p[is_excluded] = one_hot(tokens[is_excluded].long(), p.shape[-1]).to(p)  # only their number is tested
        dependence.add(first, p)
        top1.append(top_probabilities(p, model.forced).cpu().numpy())
        return p

    groups = loaded.groups()
    at_once = limit_rows(BATCH, shard.tokens.shape[1], groups.shape[1])
    settings: dict[str, Any] = {"slot": assign_slots(shard.step) if by_slot else None, "groups": groups}
    strict = is_lossless and not shard.is_made  # tokens made elsewhere are judged, whatever they are
    settings |= {"chunk": at_once, "strict": strict, "seed": seed, **cell.columns}
    result = run_battery(shard.tokens, compute_probs, loaded.width, rng=np.random.default_rng(seed), **settings)
    if spec["dtype"] in ROUNDED:
        result.append(make_border_row(at_border, shard.tokens.size, seed=seed, **cell.columns))
    result.append(dependence.make_row(seed=seed, **cell.columns))
    if shard.lacks("step"):
        needs = "the pass in which each token became final, column step"
        result.append(make_not_run_row("teacher-forced", "slots", 0, needs, seed=seed, **cell.columns))
    result = adjust_family(result)
    cell.write_probs(ids=shard.ids, logp=np.concatenate(logp), top1=np.concatenate(top1))
    return result
