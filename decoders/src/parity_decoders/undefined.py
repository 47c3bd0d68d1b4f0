"""Logits that have no distribution: NaN, +inf, or -inf for every token. Softmax makes them NaN, and a draw from that is
token 0 without a word.

A window may well evaluate such logits after a draft that is later rejected. They are an error where a token that
becomes final would be drawn from them.
"""

from typing import Any

import torch
from torch import Tensor

from parity_decoders import verification
from parity_decoders.errors import DecodingError


def subtract_largest(logits: Tensor) -> Tensor:
    """Subtract the largest logit [...] of [..., V] from itself: 0, or NaN where there is no distribution, because the
    largest is NaN where any is NaN, and -inf where every token is banned."""
    largest = logits.amax(-1)
    return largest - largest


def find_undefined(logits: Tensor) -> Tensor:
    """Find which logits [..., V] have no distribution, [...] bool."""
    return subtract_largest(logits) != 0


class Undefined:
    """Which positions of a batch have logits without a distribution.

    A pass sets flags in place and reads none, so it can be captured; `at` is read with the tokens. Logits without a
    distribution are replaced by zeros, so that drafts after them are tokens of the vocabulary.

    at        [B, L + 1] bool: whether the logits last stored for a position have no distribution; column L is not read
    is_clear  whether no flag was ever set; a CPU then writes none
    """

    def __init__(self, rows: int, length: int, device: torch.device):
        """Begin with no flags."""
        self.at = torch.zeros(rows, length + 1, dtype=torch.bool, device=device)
        self.is_clear = True

    def replace(self, logits: Tensor, positions: Tensor) -> Tensor:
        """Return logits [B, S, V] of what follows positions [B, S], zeros where they have no distribution."""
        if (is_undefined := self._find(logits)) is None:
            return logits
        self.at.scatter_(1, self._follow(positions), is_undefined)
        return logits.masked_fill(is_undefined[..., None], 0.0)

    def replace_nodes(self, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Do as `replace` for the nodes of a tree, and return their flags [B, S], None if there are none: `keep` sets
        those of nodes that are final."""
        if (is_undefined := self._find(logits)) is None:
            return logits, None
        return logits.masked_fill(is_undefined[..., None], 0.0), is_undefined

    def keep(self, is_undefined: Tensor | None, positions: Tensor, nodes: Tensor) -> None:
        """Set the flags after the nodes [B, W] of a tree at positions [B, S], -1 for none: of node 0, which is always
        final. is_undefined: what `replace_nodes` returned."""
        if is_undefined is not None:
            following, flags = (x.gather(1, nodes.clamp(min=0)) for x in (self._follow(positions), is_undefined))
            self.at.scatter_(1, following, flags)

    def _find(self, logits: Tensor) -> Tensor | None:
        """Find which logits [B, S, V] have no distribution, [B, S] bool; None if a CPU sees that there is no flag to
        set."""
        zero = subtract_largest(logits)
        if self.is_clear and verification.is_idle_on_cpu(zero):
            return None
        if not torch.compiler.is_compiling():  # a graph is compiled for one value
            self.is_clear = False
        return zero != 0

    def _follow(self, positions: Tensor) -> Tensor:
        """Return the positions that follow, at most L."""
        return (positions + 1).clamp(max=self.at.shape[1] - 1)


def refuse_undefined(model: Any, rows: Tensor | None = None) -> None:
    """Raise DecodingError if a token of rows [B] bool (None: of all) that are done was drawn from logits without a
    distribution: of the model, or of its draft model."""
    for name, network in (("model", model), ("draft model", getattr(model, "draft", None))):
        undefined: Undefined | None = getattr(network, "undefined", None)
        if undefined is None:
            continue
        found = undefined.at[:, :-1] if rows is None else undefined.at[:, :-1] & rows[:, None].to(undefined.at.device)
        if not bool(found.any()):
            continue
        row, position = found.nonzero()[0].tolist()
        raise DecodingError(
            f"{name}: its logits of row {row}, position {position} are NaN or infinite, or allow no token; allowed: "
            "numbers, of which one at least is allowed (a weight, or an overflow of its dtype)"
        )
