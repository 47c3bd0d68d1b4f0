"""`mtj` whose distributions light heads on the target's features correct to the tokens before them."""

from collections.abc import Iterator
from typing import Annotated

from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.discrete.mtj import decode_trajectories
from parity_decoders.discrete.mtj_draft import Parareal
from parity_decoders.errors import DecodingError
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel, TreePass
from parity_decoders.steps import Step
from parity_decoders.trees import Tree

CLAIM = "lossless"
ORIGIN = "project"
MARK = "ours; heads from others' account"
REFILLS = True
COUPLED_WITH: dict = {}  # its tokens are those of `ar` whatever its options
NEEDS = "heads"
SOURCE = (
    "this project, 2026: docs/explanation/jacobi.md; the heads after Spatially Speculative Decoding, arXiv 2606.20543,"
    " as others describe it"
)


class PararealHeads(Parareal):
    """Predicts as `Parareal`, with q and q' of heads that continue the features of the last pass: to the right by a
    token, and one row down for slots that no pass has seen."""

    predicts_first_pass = False

    def read_tree(self, tree: Tree, evaluated: TreePass, path: Tensor, source: Tensor) -> Tensor:
        """Compute the heads' logits [B, S, V] after the nodes of the last pass, and let them keep the feature that each
        slot's distribution is from. path, source: see Foresight."""
        logits: Tensor = self.draft.continue_tree(evaluated)
        self.draft.keep(evaluated, source)
        return logits

    def grow(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute the heads' logits [B, S, V] after the nodes of a tree: tokens, positions, parents [B, S]."""
        logits: Tensor = self.draft.tree(tokens, positions, parents)
        return logits


def mtj_heads(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 32,
    branches: Annotated[int, Interval(ge=0, le=4096)] = 32,
    depth: Annotated[int, Interval(ge=1, le=64), Counts("positions", small=2)] = 3,
    ranks: Annotated[int, Interval(ge=1, le=64)] = 8,
    rounds: Annotated[int, Interval(ge=1, le=64)] = 1,
    sure: Annotated[float, Interval(gt=0, le=100)] = 0.12,
    unsure: Annotated[float, Interval(gt=0, le=100)] = 0.9,
    doubt: Annotated[float, Interval(ge=0, le=1)] = 0.6,
) -> Iterator[Step]:
    """Run `mtj` with heads that predict how distributions change with the token before them: after a correction, and on
    each branch. A head sees one token and one feature of the target, so that no second network runs over the window.

    window, branches, depth, ranks  as in `mtj`
    rounds                          calls of the heads over the window between two passes of the target
    sure, unsure, doubt             as in `mtj_draft`
    """
    heads = getattr(model, "heads", None)
    if heads is None:
        raise DecodingError("mtj_heads: the model has no heads; allowed: one whose attribute `heads` is a `Heads`")
    foresight = PararealHeads(heads, rounds, sure, unsure, doubt)
    return decode_trajectories(model, start, noise, window, branches, depth, ranks, True, foresight)
