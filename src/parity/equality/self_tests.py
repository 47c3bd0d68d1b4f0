"""Self-tests: do the tests find planted faults, and do they reject true hypotheses as seldom as they claim?

They test this package alone, on every machine with the same result, so they are no part of an experiment:
`snakemake self_tests` runs them and writes self_tests.json beside this module, which the report shows.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from parity_certify.import_by_name import import_named_module
from parity_certify.result_rows import Row

from parity.base.files import read_json
from parity.experiment import code_digest
from parity.experiment.options import KINDS

FILE = Path(__file__).with_suffix(".json")
MODULES = ("parity.equality.calibration", *(f"parity.equality.faults.{kind}" for kind in KINDS))
# The packages whose code the self-tests test: the result is out of date after an edit of a module of these.
TESTED = ("parity_certify", "parity_decoders", "parity.equality", "parity.models")
SEQUENCES = {"discrete": 10_000, "anysubset": 10_000, "continuous": 5000}  # in a sample on enumerable models
TOKENS = 65_536  # number of tokens in a sample on a long model
REPLICATES = 400  # number of data sets that are drawn under a true null hypothesis, for the size of each test
DRAWS = 1999  # number of draws of the Monte-Carlo null distribution
SEEDS = (0, 1)


@dataclass(frozen=True)
class SelfTests:
    """The result of a run.

    faults  a row for each planted decoder, or correct one, and model: kind, layer, decoder, fault ("" for a correct
            one), n, samples, hits, as_required (see `parity.equality.faults.Outcome`), and of the sample with the
            largest p that p, its model, test and effect
    sizes   a row for each test: how often it rejects true hypotheses (see `parity.equality.calibration.make_size_row`)
    """

    code: str  # digest of the code that was tested
    date: str
    seconds: float  # CPU seconds that the self-tests took
    faults: list[Row]
    sizes: list[Row]

    @cached_property
    def failures(self) -> list[Row]:
        """Select the rows of `faults` whose outcome is wrong: a fault not found, or a correct decoder rejected."""
        return [row for row in self.faults if row["as_required"] is False]

    def is_current(self) -> bool:
        """Tell whether the code is what was tested, docstrings and comments aside."""
        return self.code == digest_code()


def digest_code() -> str:
    return code_digest.digest(*MODULES, within=TESTED)


def describe_fault(kind: str, outcome: Any) -> Row:
    """Sum up the outcome of a trial, a `parity.equality.faults.Outcome`, in a row of `SelfTests.faults`."""

    def get_p(row: Row) -> float:
        return row["p_value"] if row["p_holm"] is None else row["p_holm"]

    deciding = [[r for r in rows if r["decides"] and r["p_value"] is not None] for rows in outcome.samples]
    weakest = max((min(rows, key=get_p) for rows in deciding), key=get_p)
    fault = outcome.trial.fault if outcome.trial.is_faulty() else ""
    about = {"kind": kind, "layer": weakest["layer"], "decoder": outcome.trial.method, "fault": fault}
    result = {"samples": len(outcome.samples), "hits": outcome.hits, "as_required": outcome.as_required}
    figures = {name: weakest[name] for name in ("model", "test", "effect")} | {"largest_p": get_p(weakest)}
    return about | result | figures | {"n": max(r["n"] for rows in deciding for r in rows)}


def try_faults(threads: int) -> Iterator[Row]:
    """Run the trials of faulty and correct decoders of every kind, and yield a row for each (`SelfTests.faults`)."""
    planted = import_named_module("parity.equality.faults")
    for kind in KINDS:
        module = import_named_module(f"parity.equality.faults.{kind}")
        trials = chain(module.make_trials(SEQUENCES[kind], SEEDS, DRAWS, threads), module.make_long_trials(TOKENS))
        yield from (describe_fault(kind, planted.try_out(trial, SEEDS)) for trial in trials)


def run(threads: int = 1) -> dict[str, Any]:
    """Run all self-tests, which takes long. Returns the fields of `SelfTests` by name; writes no file."""
    code = digest_code()
    sizes, _ = import_named_module("parity.equality.calibration").calibrate(REPLICATES)
    names = ("test", "n", "effect", "low", "high", "verdict")
    return {
        "code": code,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "faults": list(try_faults(threads)),
        "sizes": [{name: row[name] for name in names} for row in sizes],
        "seconds": round(time.process_time(), 1),
    }


def read(file: Path = FILE) -> SelfTests:
    """Read the result that ships. Raises ParityError if the file is damaged."""
    return SelfTests(**read_json(file))
