"""Put together what the metrics of a kind find of one cell: flat figures, a record per row, arrays for pages and
paired tests.

A metric is a module of this folder that declares KINDS, the kinds of model whose samples it measures, and MEASURES,
its figures by name: (label, unit, direction). It has

    measure(sample) -> dict     figures, those with an error as an `Estimate`. {} where the metric does not apply
    rows(sample) -> dict        if it has columns of the records, a value a row: what `measure` finds in `sample.rows`
    arrays(sample) -> dict      if it keeps arrays for the pages and the paired tests

`sample` is of `parity.metrics.samples`. A module without MEASURES is a helper. Nothing lists the metrics: a file is
enough.
"""

import argparse
import importlib
from dataclasses import fields
from types import ModuleType
from typing import Any

import numpy as np

from parity.base.errors import ParityError
from parity.base.files import write_arrays, write_json
from parity.experiment import study
from parity.metrics.estimates import columns_of
from parity.metrics.protocols import name_with_digest
from parity.metrics.samples import Files
from parity.metrics.tables import write_table


def metrics(kind: str) -> list[ModuleType]:
    """The metrics of a kind of model; ConfigError that names the file of one that declares too little."""
    return [importlib.import_module(f"parity.metrics.{name}") for name in study.metrics(kind)]


def columns(sample: Any, modules: list[ModuleType]) -> dict[str, Any]:
    """Columns of the records, kept in `sample.rows`; ParityError for one that has not a value for each row."""
    n = len(sample.shard.ids)
    for module in modules:
        for name, values in module.rows(sample).items() if hasattr(module, "rows") else ():
            if len(values) != n:
                raise ParityError(f"{module.__file__}: {len(values)} values of {name}; needed: {n}, one a row")
            sample.rows[name] = values
    return sample.rows


def figures(sample: Any, modules: list[ModuleType]) -> dict[str, Any]:
    """Every figure of a cell; its columns come first."""
    values: dict[str, Any] = {"n": len(sample.shard.ids)}
    for module in modules:
        values |= module.measure(sample)
    return values


def run(a: argparse.Namespace) -> None:
    named = {f.name: getattr(a, f.name) for f in fields(Files) if hasattr(a, f.name)}
    sample = importlib.import_module(f"parity.metrics.samples.{a.kind}").Sample(**named)
    modules, ids = metrics(a.kind), sample.shard.ids
    place = {"model": sample.spec["model"], "method": sample.spec["method"], "key": a.cell.name.rsplit("-", 1)[1]}
    place |= {"seed": sample.spec["seed"], **sample.labels}
    constant = {name: np.full(len(ids), value) for name, value in place.items()}
    records = {"id": ids, **constant, **columns(sample, modules)}
    values = figures(sample, modules) | ({"protocol": name_with_digest(sample.protocol)} if sample.protocol else {})
    arrays = {k: v for m in modules if hasattr(m, "arrays") for k, v in m.arrays(sample).items()}
    write_table(a.records, records)
    write_arrays(a.features, ids=ids, **arrays)
    write_json(a.out, columns_of(values))
