"""The tables of the papers' settings say what the experiment files say."""

import copy
from functools import cache
from typing import Any

import pytest
import yaml

from docs.reference import EXPERIMENTS, read_settings
from parity.base.files import dump_canonical
from parity.experiment import checks, pins
from parity.experiment.cells import kinds
from parity.experiment.options import KINDS
from parity.experiment.schema import Config, validate

ROWS = read_settings()


@cache
def load_file(name: str) -> dict[str, Any]:
    """Load an experiment file as a mapping with all defaults filled in, without its data and its networks' commits."""
    raw = yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text())
    config = validate(Config, pins.fill_pins(copy.deepcopy(raw), lambda name: pins.NONE), "")
    for kind in kinds(config):
        checks.complete_methods(kind, getattr(config, KINDS[kind]).methods)
    loaded = config.model_dump()
    for model, spec in raw.get("models", {}).items():
        loaded["models"][model] |= {"files": spec.get("files", {})}
    return loaded


def find_values(value: Any, key: list[str]) -> list[Any]:
    """Find the values at a key, a list of names and places, in nested mappings and lists; "*" is every part, and also
    the mapping itself where it has the rest of the key. Raises KeyError if there is none."""
    if not key:
        return [value]
    first, *rest = key
    if first == "*":
        if isinstance(value, dict) and rest and rest[0] in value:
            return find_values(value, rest)
        parts = list(value.values()) if isinstance(value, dict) else value
        return [found for part in parts for found in find_values(part, rest)]
    if isinstance(value, list):
        return find_values(value[int(first)], rest)
    return find_values(value[first], rest)


def read_value(config: dict[str, Any], key: str) -> Any:
    """Read the value of a key; of a key with * the distinct values in a list, or the only one."""
    found = find_values(config, key.split("."))
    distinct = list({dump_canonical(value): value for value in found}.values())
    return distinct[0] if len(distinct) == 1 else distinct


def list_faults(row: dict[str, str]) -> list[str]:
    """List what is wrong with a row of a table of settings."""
    faults = []
    if row["equal"] not in ("yes", "no", "unprinted") or not row["words"]:
        faults.append(f"equal {row['equal']!r}, words {row['words']!r}")
    if (row["equal"] == "yes") == bool(row["why"]):
        faults.append(f"equal {row['equal']}: why {row['why']!r}")
    wanted = yaml.safe_load(row["value"])
    for pattern in row["file"].split():
        names = sorted(file.stem for file in EXPERIMENTS.glob(f"{pattern}.yaml"))
        if not names:
            faults.append(f"{pattern}: no file")
        for name in names:
            config = load_file(name)
            try:
                value = read_value(config, row["key"])
            except (KeyError, IndexError, ValueError, TypeError):
                faults.append(f"{name}: no key {row['key']}")
                continue
            if value != wanted:
                faults.append(f"{name}: {row['key']} = {value!r}, not {wanted!r}")
    return faults


@pytest.mark.parametrize("paper", dict.fromkeys(row["paper"] for row in ROWS))
def test_each_row_is_what_its_files_say(paper):
    rows = [row for row in ROWS if row["paper"] == paper]
    assert [(row["section"], row["words"], fault) for row in rows for fault in list_faults(row)] == []


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"value": "1999"}, "sjd-table2: image.sampling.top_k = 2000, not 1999"),
        ({"key": "image.sampling.topk"}, "sjd-table2: no key image.sampling.topk"),
        ({"key": "image.methods.jacobi.1.window"}, "sjd-table2: no key image.methods.jacobi.1.window"),
        ({"file": "sjd-table99"}, "sjd-table99: no file"),
        ({"equal": "no"}, "equal no: why ''"),
        ({"why": "ours to choose"}, "equal yes: why 'ours to choose'"),
        ({"equal": "perhaps"}, "equal 'perhaps', words 'K is set to 2000'"),
    ],
)
def test_a_wrong_row_is_named(changed, fault):
    row = {"file": "sjd-table2", "words": "K is set to 2000", "key": "image.sampling.top_k", "value": "2000"}
    row |= {"equal": "yes", "why": ""}
    assert list_faults(row) == []
    assert fault in list_faults(row | changed)
