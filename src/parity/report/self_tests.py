"""What the tests of the tests come to: planted faults that must be found, correct decoders that must not be."""

from typing import Any

import pandas as pd

from parity.report.format import missing

ALPHA = 0.05  # as in parity_certify.result_rows
CORRECT = "none"  # the fault of a decoder that has none
RIGHT, WRONG = "as it must", "not as it must"


def split(tests: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows that test decoders, and rows that test the tests."""
    own = tests["self_test"].astype(bool)
    return tests[~own], tests[own]


def outcome(fault: str, hits: int, runs: int, always: bool, enough: bool = True) -> tuple[str, str]:
    """The sentence on a planted decoder that was rejected in `hits` of `runs` samples, and whether it is as it must be:
    "as it must", "not as it must", or "" where nothing is asked. always: in all samples of one model.

    A correct decoder is rejected by one sample in twenty; a fault of it would show in every sample.
    """
    if fault == CORRECT:
        if not hits:
            return f"correct, rejected in none of {runs} samples", RIGHT
        chance = "in all samples of a model: a false alarm" if always else "by chance, and not again on the fresh seed"
        return f"correct, rejected in {hits} of {runs} samples, {chance}", WRONG if always else RIGHT
    if hits == runs:
        return f"found in all {runs} samples", RIGHT
    if not enough:
        return f"found in {hits} of {runs} samples: too few sequences for it", ""
    return f"missed in {runs - hits} of {runs} samples", WRONG


def planted(tests: pd.DataFrame) -> list[dict[str, Any]]:
    """A row for each planted decoder: layer, decoder, fault, n, outcome, verdict, and of the sample with the largest
    p that, its effect and model. The fault is in column `key`; a sample is of a seed and a model, on long models of a
    seed and all of them."""
    result = []
    rows = tests[tests["p_value"].notna() & tests["decides"].astype(bool)]
    largest = rows.groupby(["layer", "method", "key"])["n"].transform("max")
    n = rows["n"].where(rows["layer"] == "mutants", largest)  # there a fault may be looked for in samples of two sizes
    for (layer, method, fault, size), own in rows.groupby(["layer", "method", "key", n], sort=False):
        p = own["p_holm"].astype(float).fillna(own["p_value"].astype(float))
        model = own["model"].where(own["layer"] != "long", "")
        samples = p.groupby([model, own["seed"]])
        runs, lowest = samples.min(), samples.idxmin()
        weakest = own.loc[int(lowest.iloc[int(runs.argmax())])]
        hit = runs <= ALPHA
        enough = "as_required" not in own or not all(missing(value) for value in own["as_required"])
        said, verdict = outcome(str(fault), int(hit.sum()), len(hit), bool(hit.groupby(level=0).all().any()), enough)
        row = {"layer": layer, "decoder": method, "fault": fault, "n": size, "effect": weakest["effect"]}
        result.append(
            row | {"outcome": said, "verdict": verdict, "largest_p": float(runs.max()), "model": weakest["model"]}
        )
    return result


def failures(tests: pd.DataFrame) -> str:
    """The sentence on planted decoders that did not go as they must; "" if all did."""
    wrong = [f"{f['decoder']} ({f['outcome']})" for f in planted(split(tests)[1]) if f["verdict"] == WRONG]
    if not wrong:
        return ""
    count = f"{len(wrong)} self-test{'s' * (len(wrong) > 1)} failed"
    return f"{count}, so verdicts of the same layers are in doubt: {'; '.join(wrong)}."
