"""What a model reads before the first new token."""

from typing import Any, NamedTuple

from torch import Tensor

from parity_decoders.families import find_family
from parity_decoders.grid import Grid


class Inputs(NamedTuple):
    """The prompts of a batch as the network reads them.

    ids           [B, P] tokens; those of source images stand where the prompt holds place
    position_ids  [n, B, P + L] of prompts and L new tokens, if the model does not count them from 0
    grid          where the new tokens stand in their images, if the model says it
    """

    ids: Tensor
    position_ids: Tensor | None = None
    grid: Grid | None = None


def list_keywords(model: Any) -> tuple[str, ...]:
    """List the keywords of `generate` that only this model's adapter reads."""
    return getattr(find_family(model), "KEYWORDS", ())


def read_inputs(model: Any, ids: Tensor, unpadded: Tensor, keywords: dict[str, Any], length: int) -> Inputs:
    """Read the prompts ids [B, P], unpadded [B, P] false on padding, and the keywords that the model's adapter lists,
    for `length` new tokens. Raises DecodingError for what the model does not draw."""
    read = getattr(find_family(model), "read_inputs", None)
    return Inputs(ids) if read is None else read(model, ids, unpadded, keywords, length)
