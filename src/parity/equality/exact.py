"""Layer 1, exact: a decoder on models whose law is known.

    exact(decoder, targets, options, n=1_000_000, seeds=[0, 1]) -> rows      targets: see parity.equality.targets

All in float64. The seeds are a fixed list: the first is the run, the second repeats what it rejected; both are kept
(column `repeat`).
"""

from collections.abc import Sequence
from typing import Any

from parity_certify import rows as R
from parity_certify.named import name_of
from parity_certify.rows import Row

from parity.equality.targets import Decoder, Target


def over_targets(rows: list[Row]) -> list[Row]:
    """The rows, each test's corrected as one family."""
    for test in dict.fromkeys(r["test"] for r in rows):
        R.family(r for r in rows if r["test"] == test)
    return rows


def exact(
    decoder: Decoder,
    targets: Sequence[Target],
    options: dict[str, Any] | None = None,
    *,
    method: str = "",
    claim: str = "lossless",
    n: int = 1_000_000,
    seeds: Sequence[int] = (0, 1),
    draws: int = 9999,
    threads: int = 1,
    family: str = "targets",
    layer: str = "exact",
) -> list[Row]:
    """Rows of one decoder on every target, and a second time, on the next seed, on those that reject it.

    options  of the decoder
    claim    a decoder that claims to be "lossless" may not draw what has probability zero (ParityError); of a "lossy"
             one it is a rejection, and the note counts how often
    draws    of the Monte-Carlo null
    family   what Holm's correction runs over: see parity.equality.targets
    layer    of the rows
    """

    about = {"method": method or name_of(decoder)}

    def run(some: Sequence[Target], repeat: int) -> list[Row]:
        rows, seed = [], seeds[repeat]
        for target in some:
            drawn = target.draw(decoder, n, seed, options or {}, threads, strict=claim == "lossless")
            rows += [r | about | {"repeat": repeat} for r in target.rows_of(drawn, layer, seed, draws)]
        if family == "targets":
            return over_targets(rows)
        R.family(r for r in rows if r["decides"])
        return rows

    first = run(targets, 0)
    rejected = {r["model"] for r in first if r["decides"] and r["verdict"] == "rejected"}
    again = [t for t in targets if t.name in rejected]
    return first + (run(again, 1) if again and len(seeds) > 1 else [])
