"""The batch loop and its clock, on models that count what they are asked."""

import numpy as np
import pytest
import torch

from parity.decode.loop import decode
from parity.decode.shard_io import TIMES
from parity.experiment.options import options
from parity.models.discrete.tabular import TabularModel
from tests.tables import table

L = 5


class Counting(TabularModel):
    """A table that counts its passes."""

    passes = 0

    def logits(self, tokens, positions):
        self.passes += 1
        return super().logits(tokens, positions)


class Loaded:
    """Networks of a job that remember the models they gave, in turn."""

    device = torch.device("cpu")

    def __init__(self):
        self.models = []

    def model(self, rows, sampling):
        self.models.append(Counting(table(3, L), L, len(rows["ids"]), width=L))
        return self.models[-1]


def cell(method="sjd", **given):
    return {"method": method, "options": options("discrete", method, given), "sampling": {}, "seed": 0}


ROWS = {"ids": np.array([f"{i}" for i in range(7)]), "captions": np.array(["c"] * 7)}


@pytest.mark.parametrize("paced", [0, 1, 2])
def test_plain_decoding_is_timed_on_networks_of_its_own_and_changes_nothing(paced):
    """A first call is nobody's; then plain decoding, a pass a token, beside each of the first batches, and the first
    rows alone by both."""
    loaded = Loaded()
    shard = decode("discrete", loaded, cell(window=3), ROWS, 2, paced)
    passes = [m.passes for m in loaded.models]
    kept = [p for _, p in sorted({(int(i) // 2, int(p)) for i, p in zip(ROWS["ids"], shard.passes, strict=True)})]
    beside = [1, L, L, int(shard.nfe[0]), L, int(shard.nfe[1])]
    plain = [*beside, kept[0], L, *kept[1:]] if paced == 2 else [*beside, *kept] if paced else kept
    assert passes == plain and max(kept) < L + 1
    assert np.isfinite(shard.plain_seconds).tolist() == [i < 2 * paced for i in range(7)]
    for single in (shard.single_seconds, shard.plain_single_seconds):
        assert np.isfinite(single).tolist() == [paced > 0] * 2 + [False] * 5
    assert ((shard.network_seconds > 0) & (shard.network_seconds < shard.seconds)).all()
    unpaced = decode("discrete", Loaded(), cell(window=3), ROWS, 2)
    for name in set(shard.columns) - {*TIMES, "first_seconds"}:
        assert np.array_equal(shard.columns[name], unpaced.columns[name]), name


def test_batches_of_other_numbers_of_passes_are_one_shard():
    """`kept` has a column a pass: as wide as the longest batch, zeros behind the end of a shorter one."""
    shards = [decode("discrete", Loaded(), cell(window=3), ROWS, batch) for batch in (1, 2, 7)]
    for s in shards:
        assert s.kept.shape == (7, s.nfe.max()) and (s.kept.sum(1) == L).all()
        assert np.array_equal((s.kept > 0).sum(1), s.nfe) and (s.passes >= s.nfe).all()
        assert np.array_equal(s.tokens, shards[0].tokens) and np.array_equal(s.kept, shards[0].kept)
    assert len(set(shards[0].passes)) > 1
