"""Counted work and measured seconds: what a known decoding took, batches, forced tokens, drafts, speed beside plain
decoding, acceptance by slot."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd

from parity.base.files import dump_canonical
from parity.base.row_noise import batch_noise
from parity.decode.discrete import record
from parity.decode.shard_io import Shard
from parity.metrics import continuous_cost, infilling, passes, speed
from parity.metrics.estimates import columns_of, mean_ratio, prompt_groups
from parity.models.discrete.tabular import TabularModel, random_table


def discrete(method=sjd, rows: int = 6, forced=None, **options) -> SimpleNamespace:
    """A real decoding of a tabular model, its clock replaced: a batch of four rows in 2 s, the others in 1 s."""
    table = random_table(3, 6, torch.Generator().manual_seed(0))
    ids = [f"p{i}/0" for i in range(rows)]
    model = TabularModel(table, 6, rows, width=3)
    noise, start = batch_noise(0, ids, "cpu", torch.float64), torch.zeros(rows, dtype=torch.int64)
    done = record(model, start, method(model, start, noise=noise, **options))
    first = np.arange(rows) < 4
    columns = {name: np.asarray(getattr(done, name)) for name in ("tokens", "step", "nfe", "nodes", "kept")}
    columns |= {
        "ids": np.array(ids),
        "seconds": np.where(first, 2.0, 1.0),
        "plain_seconds": np.where(first, 3.0, np.nan),
        "network_seconds": np.where(first, 1.0, 0.5),
        "single_seconds": np.where(np.arange(len(first)) == 0, 0.5, np.nan),
        "plain_single_seconds": np.where(np.arange(len(first)) == 0, 1.5, np.nan),
        "single_pass_cost": np.where(np.arange(len(first)) == 0, 2.0, np.nan),
        "load": np.where(first, 1.5, np.nan),
        "draft_calls": np.where(first, 10, 8),
        "draft_tokens": np.where(first, 30, 24),
        "batch": np.where(first, 4, rows - 4),
        "at_once": np.where(first, 4, rows - 4),
        "passes": np.where(first, 5, 4),
    }
    shard = Shard(columns, {"device": "cpu", "dtype": "float64"})
    return SimpleNamespace(shard=shard, groups=prompt_groups(shard.ids), forced=forced)


def test_plain_decoding_takes_one_pass_a_token():
    found = columns_of(passes.measure(discrete(ar)))
    assert found["nfe"] == 6
    assert found["nfe_se"] == 0
    assert found["step_compression"] == found["step_compression_low"] == found["step_compression_high"] == 1
    assert found["nodes_per_pass"] == found["nodes_per_token"] == 1


def test_forced_tokens_are_not_counted_as_decoded():
    cell = discrete(forced=np.arange(6) == 5)
    assert (passes.free_tokens(cell.shard.step, cell.forced) == 5).all()
    assert passes.measure(cell)["tokens"] == 5
    filled_before_any_pass = np.where(cell.forced, 0, cell.shard.step)
    assert (passes.free_tokens(filled_before_any_pass) == 5).all()


def test_speed_counts_a_batch_once():
    cell = discrete()
    found = columns_of(speed.measure(cell))
    assert speed.batches(cell.shard).tolist() == [0] * 4 + [1] * 2
    assert found["batches"] == 2
    assert found["batch"] == 4
    assert found["singles"] == 1
    assert found["device"] == "cpu"
    assert found["seconds_per_image"] == pytest.approx(3 / 6)
    assert found["tokens_per_second"] == pytest.approx(36 / 3)
    assert found["ms_per_forward"] == pytest.approx(3000 / 9)
    assert found["ms_per_forward_q1"] < found["ms_per_forward_median"] < found["ms_per_forward_q3"]


def test_a_speed_is_of_the_batches_that_were_paired():
    figures = columns_of(speed.measure(discrete()))
    assert figures["speedup"] == pytest.approx(1.5)  # of one batch; the other says nothing
    assert figures["speedup_single"] == pytest.approx(3)
    assert figures["network_share"] == 0.5
    assert figures["load"] == 1.5
    assert figures["pairs"] == figures["singles"] == 1
    assert not {"speedup_low", "speedup_single_low"} & set(figures)  # of one pair there is no spread


def test_a_mean_ratio_is_geometric_with_students_interval():
    found = mean_ratio(np.array([2.0, 8.0, 4.0]), np.array([1.0, 1.0, 1.0]))
    assert found.value == pytest.approx(4)
    assert found.high == pytest.approx(4 * 2 ** (4.302653 / 3**0.5))
    assert found.low * found.high == pytest.approx(16)
    equal = mean_ratio(np.ones(4), np.ones(4))
    assert equal.low == equal.value == equal.high == 1
    assert mean_ratio(np.array([]), np.array([])).missing


def test_intervals_of_a_ratio_cover_as_often_as_they_say():
    """Pairs that share the machine's mood, which falls out of a ratio."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        mood, noise = np.exp(rng.normal(0, 1, 4)), np.exp(rng.normal(0, 0.2, (2, 4)))
        found = mean_ratio(3 * mood * noise[0], mood * noise[1])
        hits += found.low < 3 < found.high
    assert 0.93 < hits / 1000 < 0.97


def test_calls_of_a_companion_count_beside_passes():
    cell = discrete()
    found = columns_of(passes.measure(cell))
    assert found["calls"] == pytest.approx(found["nfe"] + found["draft_calls"])
    assert found["draft_nodes"] == 3
    assert found["draft_calls"] == pytest.approx(2 * found["nfe"])  # two a pass, in either batch
    assert found["pass_cost"] == 2
    assert "draft_share" not in found
    cell.shard.provenance["parameters"] = {"target": 200, "draft": 50}
    assert passes.measure(cell)["draft_share"] == 0.25
    cell.shard.columns |= {"draft_calls": np.zeros(6), "draft_tokens": np.zeros(6)}
    alone = columns_of(passes.measure(cell))
    assert alone["calls"] == alone["nfe"]
    assert "draft_share" not in alone
    assert "draft_nodes" not in alone


def test_work_of_texts_is_by_token_and_loop():
    columns = {"nfe": [4, 2], "aux": [1, 3], "loops": [2, 2], "missing": [5, 3], "seconds": [6.0, 6.0], "batch": [2, 2]}
    columns |= {"accepted_drafts": [3, 1]}
    shard = Shard({k: np.array(v) for k, v in {**columns, "passes": [4, 4]}.items()})
    found = columns_of(infilling.measure(SimpleNamespace(shard=shard)))
    assert found["nfe"] == 3
    assert found["nfe_se"] == 1
    assert found["aux"] == 2
    assert found["accepted_drafts"] == 4
    assert found["nfe_per_token"] == 6 / 8
    assert found["tokens_per_loop"] == 8 / 4
    assert found["seconds_per_row"] == 3
    assert found["seconds_per_pass"] == 1.5


def continuous() -> SimpleNamespace:
    """Two images of three places, of which the first in the order has no draft; half of the drafts are accepted."""
    accepted = np.array([[-1, 1, 0], [-1, 1, 0]], np.int8)
    columns = {
        "accepted": accepted,
        "order": np.array([[2, 0, 1], [2, 1, 0]]),
        "log_ratio": np.where(accepted >= 0, [[0, 1, 3]], np.nan).astype(np.float32),
        "distance": np.where(accepted >= 0, [[0, 1, 2], [0, 3, 4]], np.nan).astype(np.float32),
        "seconds": np.array([8.0, 8.0]),
        "batch": np.array([2, 2]),
        "at_once": np.array([2, 2]),
        **{name: np.array([1, 3]) for name in ("steps", "tries", "gave_up", "depth", "target_head_rows")},
        "accepted_drafts": np.array([1, 1]),
    }
    costs = {"target_conditions": [3, 3], "target_network_seconds": [1, 1], "target_head_seconds": [2, 2]}
    costs |= {"draft_head_seconds": [1, 1], "target_density_seconds": [0.5, 0.5]}
    cell = SimpleNamespace(shard=Shard(columns), costs={k: np.array(v, float) for k, v in costs.items()}, rows={})
    cell.rows |= continuous_cost.rows(cell)
    return cell


def test_drafts_are_counted_where_they_were_verified():
    found = columns_of(continuous_cost.measure(continuous()))
    assert found["drafted"] == 4
    assert found["acceptance"] == 0.5
    assert found["accepted_drafts"] == 2
    assert found["distance"] == 2.5
    assert found["distance_se"] == 1
    assert found["steps"] == 2
    assert found["target_conditions"] == 3
    assert found["draft_conditions"] is None
    assert continuous().rows["log_ratio"].tolist() == [2, 2]
    assert found["seconds"] == 4
    assert found["head_share"] == 3 / 4
    assert found["target_head_seconds"] == 2
    assert found["test_seconds"] == 0.5
    assert found["test_share"] == 0.5 / 4


def test_acceptance_by_place_and_on_the_grid():
    kept = continuous_cost.arrays(continuous())
    assert np.array_equal(kept["by_place"], [np.nan, 1, 0], equal_nan=True)
    assert np.array_equal(kept["by_cell"], [0.5, 0.5, np.nan], equal_nan=True)


def test_without_drafts_there_is_no_acceptance():
    cell = continuous()
    cell.shard.columns["accepted"] = np.full((2, 3), -1, np.int8)
    cell.shard.columns["accepted_drafts"] = np.array([-1, -1])
    cell.rows = continuous_cost.rows(cell)
    found = columns_of(continuous_cost.measure(cell))
    assert found["acceptance"] is None
    assert found["accepted_drafts"] is None
    assert found["drafted"] == 0
    assert found["distance"] is None
    assert np.isnan(continuous_cost.arrays(cell)["by_cell"]).all()
    assert found["test_share"] is None


def drawn(shares, rows, length, seed=0):
    """kept [rows, passes] of a decoder that accepts slot j with probability shares[j - 1] given the one before, up to
    `length` tokens; the last pass is cut."""
    rng, every = np.random.default_rng(seed), []
    for _ in range(rows):
        made = []
        while sum(made) < length:
            k = 1 + int(np.cumprod(rng.random(len(shares)) < np.array(shares)).sum())
            made.append(min(k, length - sum(made)))
        every.append(made)
    wide = max(map(len, every))
    return np.array([made + [0] * (wide - len(made)) for made in every], dtype=np.int16)


def test_shares_given_are_shares_found():
    shares = [0.9, 0.6, 0.3]
    found = passes.compute_slot_shares(drawn(shares, 200, 150))
    assert found == pytest.approx(shares, abs=0.03)
    assert passes.compute_slot_shares(drawn(shares[::-1], 200, 150))[0] < 0.4  # the order of slots is seen


def test_the_pass_that_the_picture_cuts_short_is_left_out():
    kept = np.array([[3, 3, 1, 0], [3, 2, 0, 0]])
    assert passes.drop_last_pass(kept).tolist() == [3, 3, 3]
    assert passes.compute_slot_shares(kept) == [1.0, 1.0]
    assert passes.compute_slot_shares(np.ones((4, 9))) == [] == passes.compute_slot_shares(np.array([[5], [4]]))


def test_figures_of_requests():
    shard = SimpleNamespace(
        kept=np.array([[2, 2, 1], [2, 1, 2]]), step=np.tile([1, 1, 2, 2, 3], (2, 1)), seconds=np.array([2.0, 2.0]),
        single_seconds=np.array([0.5, np.nan]), first_seconds=np.array([0.25, 0.25]),
        batch=np.array([2, 2]), at_once=np.array([2, 2]), nfe=np.array([3, 3]), passes=np.array([6, 6]),
    )  # fmt: skip
    shard.columns = vars(shard).copy()
    found = columns_of(passes.measure_requests(SimpleNamespace(shard=shard, forced=None, groups=np.arange(2))))
    assert found["acceptance_length"] == pytest.approx(10 / 6)
    assert found["request_tokens_per_second"] == 2.5
    assert found["request_tokens_per_second_single"] == 10
    assert found["first_token_seconds"] == 0.25
    assert found["acceptance_by_slot"] == dump_canonical([0.75])
    forced = SimpleNamespace(shard=shard, forced=np.arange(5) == 0, groups=np.arange(2))
    assert passes.measure_requests(forced)["request_tokens_per_second"].value == 2  # a forced token is no work
    shard.at_once = np.array([1, 1])  # in the other's place when it was done: each waits for its own passes alone
    found = columns_of(passes.measure_requests(SimpleNamespace(shard=shard, forced=None, groups=np.arange(2))))
    assert found["request_tokens_per_second"] == 5
