"""Speeds: predicted for every method, and measured in turns with plain decoding for the best."""

import numpy as np
import pytest

from parity.experiment.options import make_plain_options, options
from parity.tune import bench
from parity.tune import speed as command
from parity.tune.bench import CAPTURED, EAGER, PAIRS, Cost, Images, Variant, run_duels
from parity.tune.speed import Counted


class Fake:
    """A bench whose methods take the seconds of a table for a row, and a random share more; None means that two rows
    do not fit in memory. It lists what it decoded."""

    kind = "discrete"
    compiles = fast = False

    def __init__(self, seconds, spread=0.0):
        self.seconds = seconds
        self.spread = spread
        self.rng = np.random.default_rng(0)
        self.decoded = []

    def rows(self, first, count):
        return first, count

    def decode(self, variant, rows):
        self.decoded.append((variant.method, rows))
        if self.seconds[variant.method] is None and rows[1] > 1:
            raise MemoryError
        noise = 1 + self.spread * self.rng.random()
        return Cost((self.seconds[variant.method] or 0.1) * rows[1] * noise, 1.0)

    def pilot(self, variant):
        variant.piloted = self.decode(variant, self.rows(0, 1)).seconds

    def predict(self, variant, batch):
        return 0.1


def duel(seconds, spread, limit=1e12):
    """Time methods in turns; return their variants and what was decoded."""
    fake = Fake(seconds, spread)
    turns = run_duels(fake, [Variant(method, {}) for method in seconds], 2, limit)
    return turns, fake.decoded


@pytest.mark.parametrize(
    ("spread", "rounds"), [(0.01, range(10, 15)), (0.5, range(10, PAIRS)), (8.0, range(PAIRS, PAIRS + 1))]
)
def test_a_duel_ends_when_its_interval_is_narrow(spread, rounds):
    (plain, fast), _ = duel({"ar": 1.0, "sjd": 0.5}, spread)
    assert len(fast.seconds) in rounds
    assert len(plain.seconds) == len(fast.seconds)
    speed = fast.compare(plain.seconds)
    assert speed.low < 2 < speed.high


def test_rounds_decode_the_same_new_rows_and_each_begins_in_turn():
    _, decoded = duel({"ar": 1.0, "sjd": 0.5}, 0.5)
    rounds = [decoded[i : i + 2] for i in range(0, len(decoded), 2)]
    assert [first[0] for first, _ in rounds[:4]] == ["ar", "sjd", "ar", "sjd"]
    assert all(first[1] == second[1] for first, second in rounds)
    assert len({first[1] for first, _ in rounds}) == len(rounds)


def test_two_rounds_are_timed_however_little_time_there_is():
    turns, _ = duel({"ar": 1.0, "sjd": 0.5}, 0.5, limit=0.0)
    assert [len(variant.seconds) for variant in turns] == [2, 2]


def count(method, predicted, **chosen):
    """Make a variant of images whose seconds a row are predicted."""
    complete = make_plain_options("discrete") if method == "ar" else options("discrete", method, chosen)
    variant = Variant(method, complete, predicted=predicted)
    return Counted(variant, [f"{method} {chosen}"], {}, 10.0, 2.0, 0.1, 4)


def test_the_best_lossless_methods_and_the_named_ones_are_timed():
    group = [count("ar", 1.0), count("sjd", 0.6), count("sjd", 0.5, window=8), count("mtj", 0.4), count("gsd", 0.1)]
    group += [count("sjd_coupled", 0.3), count("jacobi", 0.9), count("spec", 5.0)]
    chosen = [(c.variant.method, c.variant.predicted) for c in command.choose_rivals("discrete", group, [])]
    assert chosen == [("sjd", 0.5), ("mtj", 0.4), ("sjd_coupled", 0.3)]  # gsd is lossy, spec is slow
    named = [c.variant.method for c in command.choose_rivals("discrete", group, ["gsd"])]
    assert named == ["sjd", "mtj", "gsd", "sjd_coupled"]
    assert command.choose_rivals("discrete", group, "all") == group[1:]


def test_every_method_has_a_speed_and_how_it_is_known():
    group = [count("ar", 0.0), count("sjd", 0.0), count("spec", 0.0)]
    seconds = {"ar": 1.0, "sjd": 0.5, "spec": 4.0}
    columns = command.time_group(Fake(seconds), group, 1, [], 1e9)
    plain, timed, predicted = (columns[c.keys[0]] for c in group)
    assert (plain["speedup_single"], plain["speedup_single_how"]) == (1.0, "timed")
    assert (timed["speedup_single"], timed["speedup_single_how"]) == (pytest.approx(2), "timed")
    assert timed["singles"] >= 2
    assert (predicted["speedup_single"], predicted["speedup_single_how"]) == (0.25, "predicted")
    assert predicted["singles"] == 0
    assert "speedup" not in plain  # batch 1 is single rows


def test_no_seconds_predict_every_speed():
    group = [count("ar", 0.0), count("sjd", 0.0)]
    columns = command.time_group(Fake({"ar": 1.0, "sjd": 0.5}), group, 1, "all", 0)
    sjd = columns[group[1].keys[0]]
    assert (sjd["speedup_single"], sjd["speedup_single_how"], sjd["singles"]) == (2, "predicted", 0)


def test_a_method_beyond_the_memory_has_no_speed(monkeypatch):
    group = [count("ar", 0.0), count("sjd", 0.0)]
    fake = Fake({"ar": 1.0, "sjd": 0.5})
    pilot = fake.pilot

    def fail(variant):
        if variant.method == "sjd":
            raise MemoryError
        pilot(variant)

    monkeypatch.setattr(fake, "pilot", fail)
    assert list(command.time_group(fake, group, 1, [], 1e9)) == group[0].keys


class Graphs(Fake):
    """A bench whose plain decoding and `mtj` can be captured, in a fifth of the time; `sjd` here cannot."""

    def decode(self, variant, rows):
        cost = super().decode(variant, rows)
        captured = variant.captures and variant.method != "sjd"
        return cost._replace(seconds=cost.seconds / (5 if captured else 1), way=CAPTURED if captured else EAGER)

    def pilot(self, variant):
        cost = self.decode(variant, self.rows(0, 1))
        variant.piloted, variant.way = cost.seconds, cost.way


def time_graphs(methods, named=()):
    """Time methods beside plain decoding where that is captured; return the columns of each, and the bench."""
    group = [count("ar", 0.0), *(count(method, 0.0) for method in methods)]
    fake = Graphs({"ar": 1.0, "sjd": 0.5, "mtj": 0.4})
    columns = command.time_group(fake, group, 1, list(named), 1e9)
    return {c.variant.method: columns[c.keys[0]] for c in group}, fake


@pytest.mark.parametrize("named", [(), ("sjd",)])
def test_a_speed_is_over_plain_decoding_that_runs_likewise(named):
    """Predicted, and measured if it is named: over the captured one it is slow."""
    columns, _ = time_graphs(["sjd", "mtj"], named)
    assert [columns[m]["runs_as"] for m in ("ar", "sjd", "mtj")] == [CAPTURED, EAGER, CAPTURED]
    assert columns["sjd"]["speedup_single"] == pytest.approx(2)
    assert columns["sjd"]["speedup_single_over_captured"] == pytest.approx(0.4)
    assert columns["sjd"]["speedup_single_how"] == ("timed" if named else "predicted")
    assert columns["mtj"]["speedup_single"] == pytest.approx(2.5)
    assert "speedup_single_over_captured" not in columns["mtj"]
    assert columns["ar"]["speedup_single"] == 1


def test_without_such_a_method_plain_decoding_is_timed_in_one_way():
    _, fake = time_graphs(["mtj"])
    turns = [method for method, _ in fake.decoded]
    assert turns.count("ar") == turns.count("mtj") + 1  # the first decoding is not counted


@pytest.mark.parametrize(("fewest", "holds"), [(2, False), (10, True)])
def test_an_interval_that_ends_a_duel_holds_the_speed_as_often_as_it_says(monkeypatch, fewest, holds):
    """With two rounds it is narrow by chance too often."""
    monkeypatch.setattr(bench, "FEWEST", fewest)
    rng = np.random.default_rng(0)
    held = []
    for _ in range(600):
        method, plain = Variant("sjd", {}), np.ones(PAIRS)
        for seconds in np.exp(rng.normal(0, 0.2, PAIRS)):
            method.seconds.append(float(seconds))
            if len(method.seconds) > 1 and method.is_known(plain.tolist()):
                break
        speed = method.compare(plain.tolist())
        held.append(speed.low <= 1 <= speed.high)
    assert (np.mean(held) > 0.92) == holds


@pytest.mark.parametrize(("nodes", "timed"), [(1, {1}), (20, {16, 32}), (64, {64}), (128, {64})])
def test_a_pass_is_timed_at_the_nearest_widths_alone(nodes, timed):
    images = object.__new__(Images)
    images.costs = {}
    images.time_pass = lambda n, batch, fast: 0.5 + 0.01 * n
    assert images.pass_seconds(nodes, 8, False) == pytest.approx((0.5 + 0.01 * min(nodes, 64)) * max(1, nodes / 64))
    assert set(images.costs[8, False]) == timed
