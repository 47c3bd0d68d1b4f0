"""The exact layer: test a decoder on models whose distribution is known.

    exact(decoder, targets, options, n=1_000_000, seeds=[0, 1]) -> rows      targets: see parity.equality.targets

All is in float64. The seeds are a fixed list: the first is the run, the second repeats what the run rejected (column
`repeat`). A row also has `tokens`, the length of its model; `accepted_drafts` of its whole sample, None if the decoder
does not draft; and `passes` of a sequence on average, None if the decoder is not one of discrete tokens.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from parity_certify import result_rows as R
from parity_certify.import_by_name import get_function_name
from parity_certify.result_rows import Row
from parity_decoders.steps import Step

from parity.equality.targets import Decoder


def adjust_over_targets(rows: list[Row]) -> list[Row]:
    """Copy rows, with the p-values and verdicts of each test corrected over all models (Holm)."""
    return R.adjust_families(rows, lambda r: r["test"])


def count_drafts(decoder: Decoder, counts: list[tuple[int, int | None]]) -> Decoder:
    """Make a decoder that decodes likewise and, after each batch, appends to `counts` (accepted drafts, passes), summed
    over rows. A pass of a discrete decoder draws one token itself, so what it makes final beyond that are accepted
    drafts. For other kinds passes are None, and nothing is appended if the decoder does not draft."""

    def decode(model: Any, start: Any, **options: Any) -> Iterator[Any]:
        passes = torch.zeros((), dtype=torch.int64)
        accepted = None
        for step in decoder(model, start, **options):
            if isinstance(step, Step):
                passes = passes + (step.kept > 0)
            elif step.accepted_drafts is not None:
                accepted = int(step.accepted_drafts.sum()) + (accepted or 0)
            yield step
        if passes.ndim:
            accepted = int(((model.forced < 0).sum() - passes).clamp(min=0).sum())
        if accepted is not None:
            counts.append((accepted, int(passes.sum()) if passes.ndim else None))

    return decode


def exact(
    decoder: Decoder,
    targets: Sequence[Any],
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
    """Test one decoder on every target, and a second time, on the next seed, on those that reject it; return all rows.

    options  the decoder's options
    claim    a decoder that claims to be "lossless" may not draw what has probability zero (ParityError); of a "lossy"
             one it is a rejection, and the note counts how often
    n        number of sequences drawn from the decoder for each target
    draws    number of draws of the Monte-Carlo null
    family   what Holm's correction runs over: "targets" (all models of a test) or "all" deciding rows of a run
    layer    name of the layer, a column of the rows
    """
    about = {"method": method or get_function_name(decoder)}

    def run(selected: Sequence[Any], repeat: int) -> list[Row]:
        seed = seeds[repeat]
        rows = []
        for target in selected:
            counts: list[tuple[int, int | None]] = []
            counted = count_drafts(decoder, counts)
            drawn = target.draw(counted, n, seed, options or {}, threads, strict=claim == "lossless")
            accepted = sum(number for number, _ in counts) if counts else None
            passes = sum(number or 0 for _, number in counts) / n or None
            columns = {"repeat": repeat, "tokens": target.length, "accepted_drafts": accepted, "passes": passes}
            rows += [r | about | columns for r in target.make_rows(drawn, layer, seed, draws)]
        if family == "targets":
            return adjust_over_targets(rows)
        return R.adjust_deciding(rows)

    first = run(targets, 0)
    rejected = {r["model"] for r in first if r["decides"] and r["verdict"] == "rejected"}
    repeated = [t for t in targets if t.name in rejected]
    return first + (run(repeated, 1) if repeated and len(seeds) > 1 else [])
