"""What an option of a decoder counts: an annotation beside its type and bounds, read from the decoder's signature.

window: Annotated[int, Interval(ge=1), Counts("positions", small=3, most="length")] = 16
"""

from dataclasses import dataclass

WHAT = {
    "positions": "positions that a pass covers",
    "lag": "positions that a row of the image trails the row above",
    "steps": "steps that a pass covers of the walk that each position takes",
    "nodes": "nodes that a pass evaluates",
    "passes": "passes, or rounds of drafts",
    "tokens": "tokens of the vocabulary",
    "share": "a share of the positions",
}
SIZES = ("length", "row", "vocab", "vocab - 1")  # sizes of a model: positions, those of a row of the image, tokens


@dataclass(frozen=True)
class Counts:
    """The unit of an option, a key of WHAT, and two limits.

    small  its largest value on models of a few positions, where the default would cover the whole sequence
    most   the size of a model, one of SIZES, that it may not exceed

    Raises ValueError for a unit or a size that does not exist.
    """

    what: str
    small: float | None = None
    most: str = ""

    def __post_init__(self) -> None:
        for value, allowed in ((self.what, [*WHAT]), (self.most, ["", *SIZES])):
            if value not in allowed:
                raise ValueError(f"Counts: {value!r}; allowed: {', '.join(filter(None, allowed))}")
