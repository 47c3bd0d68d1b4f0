"""Counted work and measured seconds of a known decoding; standard errors and tests on data of known answers."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd

from parity.base.errors import ParityError
from parity.base.files import dump_canonical
from parity.base.row_noise import batch_noise
from parity.decode.discrete import record
from parity.decode.shard_io import Shard
from parity.metrics import continuous_cost, estimates, infilling, passes, speed
from parity.metrics.estimates import columns_of, compare, mean_ratio, prompt_groups
from parity.metrics.tables import join_tables, read_table, write_table
from parity.models.discrete.tabular import TabularModel, random_table
from tests.tables import decode_table, make_table


def decode_cell(method=sjd, rows: int = 6, forced=None, **options) -> SimpleNamespace:
    """Decode a tabular model and replace the clock: a batch of four rows took 2 s, the others 1 s."""
    table = random_table(3, 6, torch.Generator().manual_seed(0))
    ids = [f"p{i}/0" for i in range(rows)]
    model = TabularModel(table, 6, rows, width=3)
    noise = batch_noise(0, ids, "cpu", torch.float64)
    start = torch.zeros(rows, dtype=torch.int64)
    decoded = record(model, start, method(model, start, noise=noise, **options))
    number = np.arange(rows)
    columns = {name: np.asarray(getattr(decoded, name)) for name in ("tokens", "step", "nfe", "nodes", "kept")}
    in_two = {"seconds": (2, 1), "network_seconds": (1, 0.5)}
    in_two |= {"draft_calls": (10, 8), "draft_tokens": (30, 24), "passes": (5, 4)}
    in_two |= dict.fromkeys(("batch", "at_once"), (4, rows - 4))
    columns |= {"ids": np.array(ids), **{name: np.where(number < 4, *values) for name, values in in_two.items()}}
    shard = Shard(columns, {"device": "cpu", "dtype": "float64"})
    return SimpleNamespace(shard=shard, groups=prompt_groups(shard.ids), forced=forced)


def assert_figures(figures, **expected):
    """Assert that figures have the expected values, all at once, so that a failure shows each that differs."""
    assert {name: figures[name] for name in expected} == expected


def test_plain_decoding_takes_one_pass_a_token():
    figures = columns_of(passes.measure(decode_cell(ar)))
    assert_figures(figures, nfe=6, nfe_se=0)
    assert figures["step_compression"] == figures["step_compression_low"] == figures["step_compression_high"] == 1
    assert figures["nodes_per_pass"] == figures["nodes_per_token"] == 1


def test_forced_tokens_are_not_counted_as_decoded():
    cell = decode_cell(forced=np.arange(6) == 5)
    assert (passes.free_tokens(cell.shard.step, cell.forced) == 5).all()
    assert passes.measure(cell)["tokens"] == 5
    filled_before_any_pass = np.where(cell.forced, 0, cell.shard.step)
    assert (passes.free_tokens(filled_before_any_pass) == 5).all()


FORCED = torch.tensor([-1, -1, 2, -1, -1, 2, 0])  # two rows of two tokens with a line token, and an end


def decode_lines(method, rows=40, **options):
    """Decode images with forced tokens; return the decoding and which tokens are forced."""
    return decode_table(method, make_table(4, 7), 7, rows, forced=FORCED, **options), (FORCED >= 0).numpy()


def test_step_compression_counts_forced_tokens_as_the_papers_do():
    """Plain decoding compresses nothing, though it reads forced tokens at no pass; another decoder has all seven tokens
    over its passes and the two that the papers' loops make at the end."""
    decoded, forced = decode_lines("ar")
    assert (decoded.nfe == 4).all()
    assert (passes.compress_steps(decoded.step.numpy(), decoded.nfe.numpy(), forced) == 1).all()
    decoded, forced = decode_lines("sjd", window=4)
    nfe = decoded.nfe.numpy()
    assert (nfe < 4).any()
    expected = np.where(nfe == 4, 1, 7 / (nfe + 2))
    assert np.allclose(passes.compress_steps(decoded.step.numpy(), nfe, forced), expected)
    free_alone = passes.free_tokens(decoded.step.numpy(), forced) / nfe
    assert not np.allclose(free_alone, expected)  # what was counted is noticed


def test_tpf_leaves_out_the_first_pass():
    shard = Shard({"step": np.array([[1, 2, 2, 2, 3, 3]]), "nfe": np.array([3]), "kept": np.array([[1, 3, 2]])})
    shard.columns |= {"nodes": np.array([9])}
    cell = SimpleNamespace(shard=shard, groups=np.array([0]), forced=None)
    figures = columns_of(passes.measure_passes(cell))
    assert_figures(figures, tpf=5 / 2, step_compression=2)
    assert columns_of(passes.measure_passes(decode_cell(ar)))["tpf"] == 1


def test_speed_counts_a_batch_once():
    cell = decode_cell()
    figures = columns_of(speed.measure(cell))
    assert speed.batches(cell.shard).tolist() == [0] * 4 + [1] * 2
    assert_figures(figures, batches=2, batch=4, device="cpu", network_share=0.5)
    assert figures["seconds_per_image"] == pytest.approx(3 / 6)
    assert figures["tokens_per_second"] == pytest.approx(36 / 3)
    assert figures["ms_per_forward"] == pytest.approx(3000 / 9)
    assert figures["ms_per_forward_q1"] < figures["ms_per_forward_median"] < figures["ms_per_forward_q3"]


def test_a_mean_ratio_is_geometric_with_students_interval():
    ratio = mean_ratio(np.array([2.0, 8.0, 4.0]), np.array([1.0, 1.0, 1.0]))
    assert ratio.value == pytest.approx(4)
    assert ratio.high == pytest.approx(4 * 2 ** (4.302653 / 3**0.5))
    assert ratio.low * ratio.high == pytest.approx(16)
    equal = mean_ratio(np.ones(4), np.ones(4))
    assert equal.low == equal.value == equal.high == 1
    assert mean_ratio(np.array([]), np.array([])).missing


def test_calls_of_a_speculator_are_added_to_passes():
    cell = decode_cell()
    figures = columns_of(passes.measure(cell))
    assert figures["calls"] == pytest.approx(figures["nfe"] + figures["draft_calls"])
    assert figures["draft_nodes"] == 3
    assert figures["draft_calls"] == pytest.approx(2 * figures["nfe"])  # two calls a pass in each batch
    assert "draft_share" not in figures
    cell.shard.provenance["parameters"] = {"target": 200, "draft": 50}
    assert passes.measure(cell)["draft_share"] == 0.25
    cell.shard.columns |= {"draft_calls": np.zeros(6), "draft_tokens": np.zeros(6)}
    without_speculator = columns_of(passes.measure(cell))
    assert without_speculator["calls"] == without_speculator["nfe"]
    assert "draft_share" not in without_speculator
    assert "draft_nodes" not in without_speculator


def test_work_of_texts_is_counted_by_token_and_loop():
    columns = {"nfe": [4, 2], "aux": [1, 3], "loops": [2, 2], "missing": [5, 3], "seconds": [6.0, 6.0], "batch": [2, 2]}
    columns |= {"accepted_drafts": [3, 1]}
    shard = Shard({k: np.array(v) for k, v in {**columns, "passes": [4, 4]}.items()})
    figures = columns_of(infilling.measure(SimpleNamespace(shard=shard)))
    assert_figures(figures, nfe=3, nfe_se=1, aux=2, accepted_drafts=4, nfe_per_token=6 / 8, tokens_per_loop=8 / 4)
    assert_figures(figures, seconds_per_row=3, seconds_per_pass=1.5)


def make_continuous_cell() -> SimpleNamespace:
    """Make a cell of two images of three tokens: the first to decode has no draft, half of the drafts are accepted."""
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
    figures = columns_of(continuous_cost.measure(make_continuous_cell()))
    assert_figures(figures, drafted=4, acceptance=0.5, accepted_drafts=2, steps=2, distance=2.5, distance_se=1)
    assert_figures(figures, target_conditions=3, draft_conditions=None)
    assert_figures(figures, seconds=4, head_share=3 / 4, target_head_seconds=2, test_seconds=0.5, test_share=0.5 / 4)
    assert make_continuous_cell().rows["log_ratio"].tolist() == [2, 2]


def test_acceptance_is_given_by_rank_and_by_position():
    arrays = continuous_cost.arrays(make_continuous_cell())
    assert np.array_equal(arrays["by_place"], [np.nan, 1, 0], equal_nan=True)
    assert np.array_equal(arrays["by_cell"], [0.5, 0.5, np.nan], equal_nan=True)


def test_without_drafts_there_is_no_acceptance():
    cell = make_continuous_cell()
    cell.shard.columns["accepted"] = np.full((2, 3), -1, np.int8)
    cell.shard.columns["accepted_drafts"] = np.array([-1, -1])
    cell.rows = continuous_cost.rows(cell)
    figures = columns_of(continuous_cost.measure(cell))
    assert figures["acceptance"] is None
    assert figures["accepted_drafts"] is None
    assert figures["drafted"] == 0
    assert figures["distance"] is None
    assert np.isnan(continuous_cost.arrays(cell)["by_cell"]).all()
    assert figures["test_share"] is None


def test_requests_have_a_length_rate_and_latency():
    shard = SimpleNamespace(
        kept=np.array([[2, 2, 1], [2, 1, 2]]), step=np.tile([1, 1, 2, 2, 3], (2, 1)), seconds=np.array([2.0, 2.0]),
        first_seconds=np.array([0.25, 0.25]),
        batch=np.array([2, 2]), at_once=np.array([2, 2]), nfe=np.array([3, 3]), passes=np.array([6, 6]),
    )  # fmt: skip
    shard.columns = vars(shard).copy()
    figures = columns_of(passes.measure_requests(SimpleNamespace(shard=shard, forced=None, groups=np.arange(2))))
    assert figures["acceptance_length"] == pytest.approx(10 / 6)
    assert figures["request_tokens_per_second"] == 2.5
    assert figures["first_token_seconds"] == 0.25
    assert figures["acceptance_by_slot"] == dump_canonical([0.75])
    forced = SimpleNamespace(shard=shard, forced=np.arange(5) == 0, groups=np.arange(2))
    assert passes.measure_requests(forced)["request_tokens_per_second"].value == 2  # forced tokens are not counted
    shard.at_once = np.array([1, 1])  # rows decoded one after another wait for their own passes alone
    figures = columns_of(passes.measure_requests(SimpleNamespace(shard=shard, forced=None, groups=np.arange(2))))
    assert figures["request_tokens_per_second"] == 5


def test_error_of_a_mean_counts_prompts_and_not_images():
    x = np.random.default_rng(0).standard_normal(50)
    mean, error = estimates.mean_and_error(x, np.arange(50))
    assert mean == pytest.approx(x.mean())
    assert error == pytest.approx(x.std(ddof=1) / np.sqrt(50))
    assert estimates.mean_error(x) == pytest.approx((mean, error))
    assert estimates.mean_and_error(x.repeat(4), np.arange(50).repeat(4))[1] == pytest.approx(error)
    assert estimates.mean_error(x.repeat(4))[1] < 0.6 * error  # smaller, since repeats are taken for independent here
    assert np.isnan(estimates.mean_and_error(x, np.zeros(50, dtype=int))[1])


def test_error_of_a_ratio_is_near_its_spread():
    """Ratios of sums over 40 batches of unequal length, 400 times."""
    rng = np.random.default_rng(0)

    def draw():
        denominators = rng.uniform(1, 3, 40)
        return estimates.ratio_and_error(2 * denominators + rng.normal(size=40), denominators)

    values, errors = np.array([draw() for _ in range(400)]).T
    assert values.mean() == pytest.approx(2, abs=0.02)
    assert errors.mean() == pytest.approx(values.std(), rel=0.15)
    assert np.isnan(estimates.ratio_and_error(np.ones(1), np.ones(1))[1])


def test_bootstrap_interval_covers():
    """The nominal coverage is 95 %, at which fewer than 170 of 200 have probability below 1e-6."""
    hits = 0
    for s in range(200):
        drawn = np.random.default_rng(s).standard_normal(40)
        low, high = estimates.bootstrap_interval(drawn, np.arange(40), count=400, seed=s)
        hits += low <= 0 <= high
    assert hits >= 170


def test_t_tests_see_a_difference_and_allow_constants():
    rng = np.random.default_rng(0)
    a = rng.normal(size=200)
    assert compare(a, rng.normal(size=200))["p_welch"] > 0.01
    assert compare(a + 0.5, rng.normal(size=200))["p_welch"] < 1e-3
    shared = 10 * rng.normal(size=200)
    moved = compare(shared + a + 0.5, shared + rng.normal(size=200))
    assert moved["p_paired"] < 1e-3 < 0.05 < moved["p_welch"]
    constant = np.full(5, 3.0)
    assert compare(constant, constant) == {"difference": 0.0, "p_welch": 1.0, "p_paired": 1.0}
    assert compare(constant, constant + 1)["p_welch"] == 0.0


COLUMNS = {
    "id": np.array(["a", "b", "c"]),
    "caption": np.array(["é", "", "x y"]),
    "nfe": np.arange(3),
    "clip": np.array([0.5, np.nan, 1.0], dtype=np.float32),
    "step": [[1, 2], [], [3]],
}


def test_a_table_is_read_back_as_plain_parquet(tmp_path):
    write_table(tmp_path / "t.parquet", COLUMNS)
    table = read_table(tmp_path / "t.parquet")
    theirs = pd.read_parquet(tmp_path / "t.parquet")
    assert table.equals(theirs.drop(columns="step"))
    assert table["nfe"].tolist() == [0, 1, 2]
    assert [list(s) for s in theirs["step"]] == COLUMNS["step"]
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "theirs.parquet")
    assert read_table(tmp_path / "theirs.parquet")["x"].tolist() == [1]
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "gone.parquet")


def test_joined_tables_have_all_rows_and_columns(tmp_path):
    write_table(tmp_path / "a.parquet", COLUMNS)
    write_table(
        tmp_path / "b.parquet", {"id": ["d"], "method": ["old"], "nfe": np.array([1.5]), "loops": np.array([4])}
    )
    files = [(tmp_path / f"{name}.parquet", {"method": name}) for name in "ab"]
    join_tables(tmp_path / "joined.parquet", files)
    joined = pd.read_parquet(tmp_path / "joined.parquet")
    assert list(joined)[:2] == ["method", "id"]
    assert joined["method"].tolist() == ["a"] * 3 + ["b"]
    assert joined["nfe"].tolist() == [0, 1, 2, 1.5]
    assert joined["loops"].isna().tolist() == [True, True, True, False]
    assert list(joined["step"][0]) == [1, 2]
    assert joined["step"][3] is None


def test_a_changed_bit_and_a_cut_table_are_one_line(tmp_path):
    write_table(tmp_path / "t.parquet", {"x": np.random.default_rng(0).random(1000)})
    data = (tmp_path / "t.parquet").read_bytes()
    for bit in np.linspace(8 * 200, 8 * (len(data) - 1000), 20).astype(int):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / "t.parquet").write_bytes(changed)
        with pytest.raises(ParityError, match=r"t\.parquet: damaged"):
            read_table(tmp_path / "t.parquet")
    for cut in (b"", data[:-9], data[:40]):
        (tmp_path / "t.parquet").write_bytes(cut)
        with pytest.raises(ParityError, match=r"t\.parquet: damaged"):
            read_table(tmp_path / "t.parquet")
