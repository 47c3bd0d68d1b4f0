"""Decoders written for Parity, certified: what `parity-certify` (certify/) does for anyone's sampler.

from parity.certify import certify
print(certify(my_decoder, window=4))
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from parity_certify import verdict
from parity_certify.certificate import FEW_ROUNDS, Certificate
from parity_certify.import_by_name import get_function_name
from parity_certify.result_rows import Row
from parity_certify.sampler import check_settings

from parity.experiment.schema import MARGIN


def find_gaps(rows: Sequence[Row]) -> list[str]:
    """List, as sentences, what speculation in the exact layer's rows did not meet: an accepted draft, a second pass."""
    first = [r for r in rows if r["repeat"] == 0 and r["passes"] is not None]
    if first and not any(r["accepted_drafts"] for r in first):
        return ["speculation: no draft was accepted, every pass kept one token"]
    most = max((r["passes"] for r in first), default=None)
    if most is None or most >= FEW_ROUNDS:
        return []
    return [
        f"a second pass: there were {most:.2f} a sequence at most; with options that draft fewer tokens there are more"
    ]


def certify(
    decoder: Any,
    *,
    n: int = 100_000,
    models: str = "full",
    seeds: Sequence[int] = (0, 1),
    margin: float = MARGIN,
    claim: str = "lossless",
    threads: int = 1,
    **options: Any,
) -> Certificate:
    """Draw n sequences from every target of the exact layer with decoder(model, start, noise=..., **options), and judge
    them.

    decoder  f(model, start, *, noise, **options) -> iterator of parity_decoders.steps.Step
    models   "full" (31 targets) or "small" (6)
    seeds    the first is the run; what it rejects is repeated on the second
    margin   the TV below which a bound certifies: by default that of an experiment, for which no target needs more than
             92,200 draws (`parity_certify.evidence.needed`)
    claim    "lossy" lets the decoder sample tokens of probability zero (counted); under "lossless" that is a
             ParityError
    options  of the decoder; bind one whose name is taken above with functools.partial
    """
    from parity.equality.exact import exact  # imported here because it brings torch, which other commands do not need
    from parity.equality.targets.discrete import targets

    check_settings(seeds)
    name = get_function_name(decoder)
    rows = exact(decoder, targets(models), options, claim=claim, n=n, seeds=seeds, threads=threads)
    value = verdict.judge_decoders(rows, {name: claim}, margin)[0]["value"]
    defaults = {k: p.default for k, p in inspect.signature(decoder).parameters.items() if p.default is not p.empty}
    used = " ".join(f"{k}={v}" for k, v in (defaults | options).items())
    gaps = find_gaps(rows)
    value = replace(
        value,
        tested=(
            f"the joint distribution of all tokens on each of {len(targets(models))} models",
            f"options {used or 'none'}",
        ),
        untested=(*["other options"] * bool(used), "other models and longer outputs", *gaps),
    )
    return Certificate(value, rows, name, claim, {"warnings": gaps})
