"""A decoder that follows plain decoding's own path, against plain decoding under the same noise: how far apart the
tokens and the pictures are."""

import numpy as np
from parity_certify.result_rows import Row

from parity.decode import continuous, loop  # noqa: F401  (the loop imports the first by name: a source of this layer)
from parity.equality.layers import CellFiles
from parity.equality.pathwise import distance_row
from parity.experiment.options import plain_method, plain_options

ROLES = ("method",)
WHEN = "coupled"
READS = ("checkpoint",)
WRITES = ()
SETTINGS = ("pathwise",)


def rows(cell: CellFiles) -> list[Row]:
    """A few images decoded again by both in float64, each alone, so that rounding is no part of what is compared."""
    spec = cell.spec | {"dtype": "float64"}
    inputs = {"ids": np.array([str(image) for image in range(cell.settings["pathwise"])])}
    plain = {**spec, "method": plain_method("continuous"), "options": plain_options("continuous")}
    loaded, drawn, seen = loop.load("continuous", cell.manifest, spec, cell.device), [], []
    for one in (spec, plain):
        done = loop.decode("continuous", loaded, one, inputs, 1)
        drawn.append(done.tokens)
        seen.append(loaded.seen(done.tokens).cpu().numpy())
    place = {**cell.place, "seed": spec["seed"]}
    return [distance_row(np.stack(drawn), np.stack(seen), eps=spec["options"]["eps"], **place)]
