"""Test a cell's own texts, run once through the any-subset network. Their log-probabilities serve the figures, too."""

from typing import Any

import numpy as np
import torch
from parity_certify.result_rows import Row, adjust_family
from parity_certify.teacher_forced import assign_slots, run_battery
from parity_decoders.protocols.anysubset import Infilling

from parity.base.command import note
from parity.base.machine import limit_rows
from parity.equality.layers import CellFiles
from parity.equality.row_dependence import RowDependence
from parity.experiment.options import declaration
from parity.metrics.text_likelihood import joint_probs, log_probability
from parity.models.anysubset.load import load

ROLES = ("reference", "control", "method", "again")
WHEN = "always"
READS = ("shards", "checkpoint")
WRITES = ("probs",)
SETTINGS = ()
BATCH = 32  # number of rows that the network evaluates at once, if memory allows it (`limit_rows`)


def rows(cell: CellFiles) -> list[Row]:
    """Make the rows of the battery over the missing tokens in their order, and of the test whether rows of a batch
    depend on each other. Only infilled texts that miss equally many words and were decoded by this network are tested;
    [] for others. The distributions of every cell are written: log p of the missing words [n], nats."""
    spec, method, shard = cell.spec, cell.spec["method"], cell.shards
    model = load(cell.manifest, cell.device).subset(True)
    arrays = (shard.tokens, shard.order, shard.begin, shard.end)
    start = Infilling(*(torch.from_numpy(x).to(cell.device) for x in arrays))
    is_by_judge = declaration("anysubset", method).NETWORK == "judge"
    is_tested = spec["task_kind"] == "infilling" and not is_by_judge and bool((shard.missing == shard.missing[0]).all())
    length = int(shard.missing[0])
    if is_tested:
        order = np.take_along_axis(shard.order, shard.begin[:, None] + np.arange(length), 1)
        tokens, step = (np.take_along_axis(x, order, 1) for x in (shard.tokens, shard.step.astype(np.int64)))
        predictable = declaration("anysubset", method).SLOTS
        dependence = RowDependence(tokens, shard.batch, shard.at_once, step if predictable else None)
    logp: list[torch.Tensor] = []
    at_once = limit_rows(BATCH, int(shard.missing.max()), model.vocab)

    def compute_probs(first: int, end: int) -> torch.Tensor:
        """Compute the distributions p [end - first, S, V] of rows first..end - 1; extend logp and, if tested,
        `dependence`."""
        note(f"distributions of the target: {first} of {len(shard.ids)} texts")
        probs, words, is_missing = joint_probs(model, Infilling(*(x[first:end] for x in start)))
        logp.append(log_probability(probs, words, is_missing).cpu())
        if is_tested:
            dependence.add(first, probs)
        return probs

    result: list[Row] = []
    if is_tested:
        columns = {**cell.columns, "model": "text", "seed": spec["seed"]}
        slot = assign_slots(step) if predictable else None
        settings: dict[str, Any] = {"slot": slot, "chunk": at_once, "strict": False, **columns}
        result = run_battery(tokens, compute_probs, length, rng=np.random.default_rng([spec["seed"], 9]), **settings)
        result.append(dependence.make_row(**columns))
        result = adjust_family(result)
    else:
        for first in range(0, len(shard.ids), at_once):
            compute_probs(first, first + at_once)
    cell.write_probs(ids=shard.ids, logp=torch.cat(logp).numpy())
    return result
