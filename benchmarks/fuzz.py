"""Fuzz configurations: each must be taken, or refused in one line.

    python benchmarks/fuzz.py --cases 50000 [--seed 0]
    python benchmarks/fuzz.py --case 1234            one case, as it is read, with its traceback

A case is one of the experiments here, changed at one to four places: values of other types and beyond any bound,
unknown keys, missing and doubled parts. It goes through what a run does before its first job.
"""

import argparse
import copy
import datetime
import math
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from parity.base.errors import ParityError
from parity.experiment import cells, checks, config_overlay, options, paths, pins, weights
from parity.inputs import readers

ROOT = Path(__file__).parents[1]
SECONDS = 10  # a case that takes longer is a TimeoutError
STRINGS = (
    "", " ", "x", "\n", "a\nb", "\x00", "\ud800", "\u202e", "é" * 300, "a" * 5000, "../../etc/passwd", "/dev/zero",
    "/dev/null", "/", "~", "$(touch x)", "`x`", "; rm -rf .", "'", '"', "{x}", "{{x}}", "%s", "<script>", "null",
    "true", "1e-3", "1_000", "0x10", "nan", "inf", "-1", "2026-01-01", "hub:o/n", "hub:o/n@" + "a" * 40,
    "datasets:x", "classes:10", "prompts/scenes.txt", "config.yaml", "embedded", "files", "hub", "off",
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 3, 7, 10**6, 10**18, 10**30, -(10**30), 0.0, -0.0, 0.5, 1.5, 1e-300, 1e308, math.nan, math.inf,
           -math.inf, True, False)  # fmt: skip
OTHERS = (None, [], {}, [[]], [None], {"": None}, {"a": {"b": {"c": []}}}, b"bytes", {1, 2}, (1, 2),
          datetime.date(2026, 1, 1), {1: 2}, {None: 1}, [1] * 2000, [{}, {}], {"x": 1}, 1j)  # fmt: skip


def load_experiments() -> list[dict[str, Any]]:
    """Load the default experiment and those of workflow/experiments."""
    files = [ROOT / "config.yaml", *sorted((ROOT / "workflow/experiments").glob("*.yaml"))]
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path, a tuple of keys and indices, to each value inside `value`, which `path` leads to."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from list_paths(item, (*path, key))


def read_value(value: Any, path: tuple[Any, ...]) -> Any:
    """Read the value at a path."""
    for key in path:
        value = value[key]
    return value


def make_strange_value(rng: random.Random, value: Any) -> Any:
    """Make a random value to put in place of `value`: of another type, beyond its bounds, or doubled."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(STRINGS)
    if kind == 1:
        return rng.choice(NUMBERS)
    if kind == 2:
        return copy.deepcopy(rng.choice(OTHERS))
    if kind == 3 and isinstance(value, int | float) and not isinstance(value, bool):
        return rng.choice((-value, value * 10**6, value + 0.5, str(value), [value], value / 1e9))
    if kind == 4:
        return [value, value] if rng.random() < 0.5 else {rng.choice(STRINGS): value}
    return str(value) + rng.choice(STRINGS)


def change_configuration(rng: random.Random, raw: dict[str, Any]) -> None:
    """Change a configuration in place at one random path: add, remove, move or replace a value."""
    all_paths = list(list_paths(raw))
    if not all_paths:
        return
    path = rng.choice(all_paths)
    holder, key = read_value(raw, path[:-1]), path[-1]
    kind = rng.randrange(5)
    if kind == 0 and isinstance(holder, dict):
        holder[rng.choice((*STRINGS, "limit", "window", "models", 3, None, True))] = make_strange_value(rng, None)
    elif kind == 1:
        del holder[key]
    elif kind == 2 and isinstance(holder, dict):
        copied = read_value(raw, rng.choice(all_paths[: all_paths.index(path) + 1]))
        holder[key] = copy.deepcopy(copied) if copied is not holder else None
    else:
        holder[key] = make_strange_value(rng, holder[key])


def make_case(number: int, seed: int, experiments: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the case of a number in a run with this seed: a random experiment with one to four random changes."""
    rng = random.Random(f"{seed} {number}")
    raw = copy.deepcopy(rng.choice(experiments))
    for _ in range(rng.randint(1, 4)):
        change_configuration(rng, raw)
    return raw


def refuse_stand_ins(names: Sequence[str], published: bool) -> dict[str, Any]:
    """Raise ParityError in place of writing stand-ins."""
    raise ParityError("stand_in: none are written here")


def plan_run(raw: dict[str, Any]) -> int:
    """Plan a configuration before any job; return its number of cells plus of kinds. Raises ParityError if refused."""
    published = sorted((ROOT / "workflow/published").glob("*.csv"))
    plan = checks.make_plan(
        config_overlay.overlay_config(raw, {}), str, lambda name: pins.NONE, published, refuse_stand_ins
    )
    for task in cells.list_text_tasks(plan.config):
        embedded = weights.list_models(plan.config, "anysubset")[task["model"]].source == "embedded"
        readers.check(task["kind"], task["settings"], embedded=embedded)
    for cell in plan.cells:
        cells.variant(plan.config, cell)
        cells.long_variant(plan.config, cell)
    paths.manifests(plan.config)
    return len(plan.cells) + len(options.KINDS)


def try_configuration(raw: dict[str, Any]) -> str:
    """Plan within SECONDS; return "taken", "refused", "not one line" of a longer refusal, or another error's name."""

    def raise_timeout(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(SECONDS)
    try:
        plan_run(raw)
    except ParityError as error:
        text = f"{error}"
        return "refused" if len(text.splitlines()) == 1 and text.isprintable() else "not one line"
    except BaseException as error:
        return type(error).__name__
    finally:
        signal.alarm(0)
    return "taken"


def main() -> None:
    """Try --cases configurations and count outcomes; exit with 1 if any is unexpected. With --case try only that."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int)
    a = parser.parse_args()
    experiments = load_experiments()
    if a.case is not None:
        raw = make_case(a.case, a.seed, experiments)
        print(raw)
        try:
            print("taken:", plan_run(raw))
        except Exception:
            traceback.print_exc()
        return
    counts: Counter[str] = Counter()
    for number in range(a.cases):
        outcome = try_configuration(make_case(number, a.seed, experiments))
        counts[outcome] += 1
        if outcome not in ("taken", "refused"):
            print(f"case {number}: {outcome}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    sys.exit(bool(set(counts) - {"taken", "refused"}))


if __name__ == "__main__":
    main()
