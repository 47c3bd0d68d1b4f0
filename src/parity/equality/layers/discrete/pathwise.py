"""Test whether a decoder that is coupled to plain decoding by shared noise returns plain decoding's very tokens."""

from parity_certify.result_rows import Row

from parity.decode import discrete, loop  # noqa: F401  (the loop imports the first by name: a source of this layer too)
from parity.equality.layers import CellFiles
from parity.equality.pathwise import make_token_row
from parity.experiment.options import find_plain_method, make_plain_options

ROLES = ("method",)
WHEN = "coupled"
READS = ("inputs", "checkpoint")
WRITES = ()
SETTINGS = ("pathwise",)
BATCH = 16  # number of rows that are decoded at once


def rows(cell: CellFiles) -> list[Row]:
    """Decode a few images again by the method and plainly, in float64 and in the cell's dtype; compare their tokens in
    a row for each dtype. A difference rejects in float64 alone."""
    inputs = {k: v[: cell.settings["pathwise"]] for k, v in cell.inputs.items()}
    result = []
    for dtype in dict.fromkeys(["float64", cell.spec["dtype"]]):
        spec = cell.spec | {"dtype": dtype}
        plain = spec | {"method": find_plain_method("discrete"), "options": make_plain_options("discrete")}
        loaded = loop.load("discrete", cell.manifest, spec, cell.device)
        a, b = (loop.decode("discrete", loaded, one, inputs, BATCH).tokens for one in (spec, plain))
        columns = {**cell.columns, "seed": spec["seed"], "test": f"same tokens, {dtype}"}
        result.append(make_token_row(a, b, exact=dtype == "float64", **columns))
        del loaded  # before the networks are loaded in the other dtype
    return result
