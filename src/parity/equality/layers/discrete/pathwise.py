"""A decoder coupled to plain decoding by shared noise, against plain decoding itself: the very same tokens."""

from parity_certify.result_rows import Row

from parity.decode import discrete, loop  # noqa: F401  (the loop imports the first by name: a source of this layer too)
from parity.equality.layers import CellFiles
from parity.equality.pathwise import token_row
from parity.experiment.options import plain_method, plain_options

ROLES = ("method",)
WHEN = "coupled"
READS = ("inputs", "checkpoint")
WRITES = ()
SETTINGS = ("pathwise",)
BATCH = 16  # rows decoded at once


def rows(cell: CellFiles) -> list[Row]:
    """A few images decoded again by both, in float64 and in the cell's dtype."""
    spec = cell.spec
    inputs = {k: v[: cell.settings["pathwise"]] for k, v in cell.inputs.items()}
    plain, result = {"method": plain_method("discrete"), "options": plain_options("discrete")}, []
    for dtype in dict.fromkeys(["float64", spec["dtype"]]):
        both = ({**spec, "dtype": dtype}, {**spec, "dtype": dtype, **plain})
        loaded = loop.load("discrete", cell.manifest, both[0], cell.device)
        mine, theirs = (loop.decode("discrete", loaded, s, inputs, BATCH).tokens for s in both)
        place = {**cell.place, "seed": spec["seed"]}
        result.append(token_row(mine, theirs, exact=dtype == "float64", test=f"same tokens, {dtype}", **place))
    return result
