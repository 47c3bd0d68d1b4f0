"""`mtj` whose laws a small model carries over from one pass to the next: the coarse step of a parareal iteration."""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from parity.base.errors import ParityError
from parity.base.noise import Noise
from parity.decoders.discrete.mtj import Win, trajectories
from parity.decoders.steps import Step
from parity.decoders.trees import Tree
from parity.decoders.verification import slide
from parity.decoders.window import Window
from parity.models.discrete.protocol import TokenModel

CLAIM = "lossless"
REFILLS = True
COUPLED_WITH: dict = {}  # whatever its options
NEEDS = "draft"
FLOOR = -20.0  # of log-probabilities: a token that the settings leave out here may come back there
SOURCE = "this project, 2026: docs/explanation/jacobi.md; Lions, Maday & Turinici 2001 (parareal)"


class Parareal:
    """The law of a slot behind other tokens than it was computed behind: p q' / q, with q and q' the draft model's law
    behind the old tokens and the new."""

    def __init__(self, draft: TokenModel, rounds: int, power: float):
        """rounds  passes of the draft model over the window; power: how far q' / q is trusted."""
        self.draft, self.rounds, self.power = draft, rounds, power
        self.law: Tensor | None = None  # [B, W, V] log q of the nodes that gave the slots of the last pass their laws

    def hear(self, tree: Tree, path: Tensor, giver: Tensor) -> None:
        """See Redraft."""
        q = self.draft.tree(tree.tokens, tree.positions, tree.parents).log_softmax(-1).clamp(min=FLOOR)
        self.law = q.gather(1, giver[..., None].expand(-1, -1, q.shape[-1]))
        self.draft.keep(torch.where(path, torch.arange(path.shape[1], device=path.device), -1))

    def ratio(self, slots: Window, ratio: Tensor, draft: Tensor, e: Tensor, win: Win) -> Tensor:
        """See Redraft. A slot whose law was of no node, or of noise, has q' itself. At first no law moves."""
        assert self.law is not None
        given = ratio
        (old,), new = slide(slots.kept, slots.size, self.law)
        new = new | (slots.line.age == 1) if slots.line.newest <= 1 else new
        last, at = (ratio * e).log().clamp(min=FLOOR), (slots.where - 1).clamp(max=self.draft.length - 1)
        for _ in range(self.rounds):
            now = (
                self.draft.logits(torch.cat([slots.line.last(), draft[:, :-1]], 1), at).log_softmax(-1).clamp(min=FLOOR)
            )
            law = torch.where(new[..., None], now, last + self.power * (now - old)).softmax(-1)
            ratio = law / e
            draft = win(ratio, slots.where)
        return ratio if slots.line.newest else torch.where(slots.line.age[..., None] == 0, given, ratio)


def mtj_draft(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Field(ge=1, le=4096)] = 32,
    branches: Annotated[int, Field(ge=0, le=4096)] = 32,
    depth: Annotated[int, Field(ge=1, le=64)] = 8,
    ranks: Annotated[int, Field(ge=1, le=64)] = 3,
    sure: Annotated[float, Field(gt=0, le=100)] = 0.3,
    unsure: Annotated[float, Field(gt=0, le=100)] = 1.0,
    rounds: Annotated[int, Field(ge=1, le=64)] = 3,
    power: Annotated[float, Field(ge=0, le=2)] = 0.8,
) -> Iterator[Step]:
    """As `mtj`, but a correction moves the laws of all slots behind it before the next pass.

    window, branches, depth, ranks, sure, unsure  as in `mtj`
    rounds  passes of the draft model over the window between two passes of the target; one more reads the tree
    power   exponent of the ratio of the draft model's laws behind the new and the old tokens: how far it is trusted
    """
    draft = getattr(model, "draft", None)
    if draft is None:
        raise ParityError("mtj_draft: the model has no draft model; allowed: one whose attribute `draft` is one")
    coarse = Parareal(draft, rounds, power)
    return trajectories(model, start, noise, window, branches, depth, ranks, sure, unsure, True, coarse)
