"""A cell's own texts, once through the any-subset network. Their log-probabilities serve the figures of every cell."""

import numpy as np
import torch
from parity_certify.result_rows import Row, adjust_family
from parity_certify.teacher_forced import assign_slots, run_battery, wrap_law
from parity_decoders.protocols.anysubset import Infilling

from parity.equality.alike import Alike
from parity.equality.layers import CellFiles
from parity.experiment.options import declaration
from parity.metrics.text_likelihood import joint_laws, log_probability
from parity.models.anysubset.load import load

ROLES = ("reference", "control", "method", "again")
WHEN = "always"
READS = ("shards", "checkpoint")
WRITES = ("laws",)
SETTINGS = ()
BATCH = 32  # rows of the network's forward


def rows(cell: CellFiles) -> list[Row]:
    """The battery over the missing tokens in their order, and whether rows of a batch are alike, of infilled texts that
    miss equally many and were decoded by this network; [] for others. laws: log p of the missing part [n], nats, of
    every cell."""
    spec, method, shard = cell.spec, cell.spec["method"], cell.shards
    model = load(cell.manifest, cell.device).subset(True)
    columns = (shard.tokens, shard.order, shard.begin, shard.end)
    start = Infilling(*(torch.from_numpy(x).to(cell.device) for x in columns))
    judged = declaration("anysubset", method).NETWORK == "judge"
    tested = spec["task_kind"] == "infilling" and not judged and bool((shard.missing == shard.missing[0]).all())
    length = int(shard.missing[0])
    if tested:
        order = np.take_along_axis(shard.order, shard.begin[:, None] + np.arange(length), 1)
        tokens, step = (np.take_along_axis(x, order, 1) for x in (shard.tokens, shard.step.astype(np.int64)))
        ordered = declaration("anysubset", method).SLOTS
        alike = Alike(tokens, shard.batch, shard.at_once, step if ordered else None)
    logp, p = [], []
    for i in range(0, len(shard.ids), BATCH):
        laws, own, inside = joint_laws(model, Infilling(*(x[i : i + BATCH] for x in start)))
        logp.append(log_probability(laws, own, inside).cpu())
        if tested:
            p.append(laws.cpu())
            alike.add(i, laws)
    cell.write_laws(ids=shard.ids, logp=torch.cat(logp).numpy())
    if not tested:
        return []
    place = {**cell.place, "model": "text", "seed": spec["seed"]}
    rng, slot = np.random.default_rng([spec["seed"], 9]), assign_slots(step) if ordered else None
    result = run_battery(tokens, wrap_law(torch.cat(p)), length, rng=rng, slot=slot, strict=False, **place)
    result.append(alike.row(**place))
    adjust_family(result)
    return result
