"""Begin a decoder or a metric: one file, and its test.

    parity new decoder NAME [--kind discrete] [--like sjd]
    parity new metric NAME [--kind discrete]

A decoder begins as a copy of another of its kind, plain decoding if none is named, under its own name; a metric counts
the distinct tokens of a row. Both work as they stand.
"""

import argparse
import ast
import keyword
import re
import sys
from collections.abc import Callable
from pathlib import Path

from parity.base.command import one_line
from parity.base.errors import ParityError
from parity.experiment.module_metadata import PACKAGE, modules
from parity.experiment.options import KINDS, methods, plain_method

ROOT = PACKAGE.parents[1]
# How a test makes a decoder of each kind wrong: a name that its module imports, and what takes its place.
WRONG = {
    "discrete": ("race", "parity.decoders.verification", "race(weights.sqrt(), noise)", "weights, noise"),
    "anysubset": ("race", "parity.decoders.verification", "race(weights.sqrt(), noise)", "weights, noise"),
    "continuous": (
        "path_noise",
        "parity.models.continuous.protocol",
        "lambda *asked: 1.5 * path_noise(*given)(*asked)",
        "*given",
    ),
}
DECODER_TEST = '''"""{name} draws from the law of models whose law is known; a fault planted in it is found."""

from parity.decoders.{kind} import {name}
from parity.equality.exact import exact
from parity.equality.faults import altered
from parity.equality.targets.{kind} import targets
from {source} import {wrong}


def rejected(decoder):
    rows = exact(decoder, targets("small")[:2], n=10_000, draws=199, claim="lossy")
    return any(row["decides"] and row["verdict"] == "rejected" and row["repeat"] for row in rows)


def test_{name}_draws_from_the_law():
    assert not rejected({name}.{name})


def test_the_test_can_fail():
    def faulty({arguments}):
        return {call}

    assert rejected(altered("parity.decoders.{kind}.{name}", {wrong}=faulty).{name})
'''
METRIC = '''"""{name}: what it measures in a sentence, and the paper and section it is from."""

from typing import Any

import numpy as np

from parity.metrics.estimates import Estimate, means

KINDS = ("{kind}",)
MEASURES = {{"{name}": ("distinct tokens of a row", "", "none")}}  # its figures: label, unit, which way is better


def rows(sample: Any) -> dict[str, np.ndarray]:
    """A column of the records: a value for each row [n] of `sample`."""
    return {{"{name}": np.array([len(np.unique(tokens, axis=0)) for tokens in sample.shard.tokens])}}


def measure(sample: Any) -> dict[str, Estimate]:
    """Their mean, and its standard error."""
    return means({name}=sample.rows["{name}"])
'''
METRIC_TEST = '''"""{name}: a value that is known, and one that differs."""

from types import SimpleNamespace

import numpy as np

from parity.metrics import {name}


def value(tokens):
    sample = SimpleNamespace(shard=SimpleNamespace(tokens=np.array(tokens)), rows={{}})
    sample.rows |= {name}.rows(sample)
    return {name}.measure(sample)["{name}"].value


def test_{name}_of_rows_that_are_known():
    assert value([[1, 1, 1], [1, 2, 3]]) == 2
    assert value([[1, 1, 1], [1, 1, 1]]) == 1
'''


def decoder(name: str, kind: str, like: str) -> str:
    """The source of a decoder under a new name; without PLAIN, for a kind has one plain decoding."""
    text = (PACKAGE / "decoders" / kind / f"{like}.py").read_text(encoding="utf-8")
    kept, drop = text.splitlines(keepends=True), set()
    for node in ast.parse(text).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "PLAIN" and node.end_lineno:
            drop |= set(range(node.lineno - 1, node.end_lineno))
    text = "".join(line for i, line in enumerate(kept) if i not in drop)
    head = f'"""{name}, begun as a copy of `{like}`: say here what differs, and the paper and section it is from.\n\n'
    return re.sub(rf"^def {like}\(", f"def {name}(", text.replace('"""', head, 1), count=1, flags=re.MULTILINE)


def checked(name: str, package: str) -> str:
    """A name for a module of a folder; ParityError for one that is none, or is taken."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ParityError(f"NAME = {name!r}: allowed: a Python name of lower-case letters, digits and _")
    if name in modules(package) or (PACKAGE / package / name).exists():
        raise ParityError(f"NAME = {name!r}: src/parity/{package} has it already; allowed: another name")
    if not (ROOT / "Snakefile").is_file():
        raise ParityError(f"{PACKAGE}: not in a clone of the project; allowed: run it by a clone's `uv run parity new`")
    return name


def written(files: dict[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


def new_decoder() -> None:
    """Write a decoder that decodes, and its test."""
    parser = argparse.ArgumentParser(prog="parity new decoder", description=new_decoder.__doc__)
    parser.add_argument("name")
    parser.add_argument("--kind", choices=list(KINDS), default="discrete", help="of model")
    parser.add_argument("--like", default="", help="a decoder to begin from; plain decoding if none is named")
    a = parser.parse_args(sys.argv[2:])
    like, package = a.like or plain_method(a.kind), f"decoders/{a.kind}"
    if like not in methods(a.kind):
        raise ParityError(f"--like {like}: no decoder of kind {a.kind}; allowed: {', '.join(methods(a.kind))}")
    name = checked(a.name, package)
    wrong, source, call, arguments = WRONG[a.kind]
    text = decoder(name, a.kind, like)
    files = {PACKAGE / package / f"{name}.py": text}
    if re.search(rf"\b{wrong}\b", text) and not a.like:
        fields = {"wrong": wrong, "source": source, "call": call, "arguments": arguments}
        files[ROOT / f"tests/decoders/test_{name}.py"] = DECODER_TEST.format(name=name, kind=a.kind, **fields)
    written(files)
    print(
        f"its exact layer, and the rest small: snakemake --cores all --config '{KINDS[a.kind]}={{methods: {{{name}:"
        f" [{{}}]}}}}' scale=0.1\nits test: pytest tests/contracts tests/decoders -k {name}"
    )


def new_metric() -> None:
    """Write a metric that measures, and its test."""
    parser = argparse.ArgumentParser(prog="parity new metric", description=new_metric.__doc__)
    parser.add_argument("name")
    parser.add_argument("--kind", choices=list(KINDS), default="discrete", help="of model")
    a = parser.parse_args(sys.argv[2:])
    name = checked(a.name, "metrics")
    written(
        {
            PACKAGE / f"metrics/{name}.py": METRIC.format(name=name, kind=a.kind),
            ROOT / f"tests/metrics/test_{name}.py": METRIC_TEST.format(name=name),
        }
    )
    print(f"its figures: a column of summary.csv in the next run\nits test: pytest tests/metrics/test_{name}.py")


WHAT: dict[str, Callable[[], None]] = {"decoder": new_decoder, "metric": new_metric}


def main() -> None:
    given = sys.argv[1:2]
    if given in (["-h"], ["--help"]):
        print(__doc__)
    elif not given or given[0] not in WHAT:
        raise ParityError(f"new {' '.join(given)}: allowed: {', '.join(WHAT)}, then a name")
    else:
        WHAT[given[0]]()


if __name__ == "__main__":
    one_line(main)
