"""A model under sampling settings: `Sampled` wraps a model and satisfies the same protocol, so a decoder sees the
distribution that is sampled."""

from collections.abc import Callable
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from parity_decoders.distribution import Distribution, TokenSampling, make_distribution
from parity_decoders.errors import DecodingError
from parity_decoders.undefined import Undefined


class Sampled:
    """A model under sampling settings: the same protocol, but its logits are scores of the distribution."""

    def __init__(self, model: Any, sampling: TokenSampling):
        """Wrap a model. Its codebook and embeddings are passed on, None where it has none."""
        self.model, self.sampling = model, sampling
        self.vocab = model.vocab
        self.length = model.length
        self.width = model.width
        self.grid = getattr(model, "grid", None)
        self.forced = model.forced
        self.static = getattr(model, "static", False)
        self.undefined: Undefined | None = None  # of the rows of the first pass
        vectors = ("codebook", "raw_codebook", "embeddings")
        self.codebook, self.raw_codebook, self.embeddings = (getattr(model, name, None) for name in vectors)

    @cached_property
    def distribution(self) -> Distribution:
        """What the settings and the forced tokens make of the model's logits."""
        return make_distribution(self.sampling, self.forced)

    @cached_property
    def grammar(self) -> bool:
        """Whether the model forces any token."""
        return self.distribution.grammar is not None

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute scores [B, S, V] after tokens at positions [B, S]. See TokenModel."""
        if self.undefined is None:
            self.undefined = Undefined(len(tokens), self.length, tokens.device)
        return self.undefined.replace(self._score(self.model.logits, tokens, positions), positions)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute scores [B, S, V] after nodes: tokens, positions, parents [B, S]. See TokenModel."""
        if self.undefined is None:
            self.undefined = Undefined(len(tokens), self.length, tokens.device)
        return self.undefined.replace_nodes(self._score(self.model.tree, tokens, positions, parents), positions)

    def keep(self, nodes: Tensor) -> None:
        """Store the nodes [B, W] of the last tree. See TokenModel."""
        self.model.keep(self._repeat_rows(nodes))
        if self.undefined is not None:
            self.undefined.keep(nodes)

    @property
    def prefix(self) -> int:
        """How many slots a model keeps for prompts: where a longer one joins, there are more, and its buffers move."""
        return getattr(self.model, "prefix", 0)

    def attend(self, positions: int) -> None:
        """Let the passes of a `static` model attend to the prompt and the first so many positions alone."""
        self.model.attend(positions)

    def join(self, rows: Tensor, fresh: "Sampled") -> None:
        """Replace the rows [B] bool by those of the fresh model. See TokenModel. Raises DecodingError: see
        `refuse_undefined`."""
        refuse_undefined(self, rows)
        if self.undefined is not None:
            self.undefined.at[rows] = False
        self.model.join(self._repeat_rows(rows), fresh.model)

    @cached_property
    def drafter(self) -> Any:
        """The model's drafter, under the same settings."""
        return self._sample(self.model.drafter, "logits", "tree")

    @cached_property
    def draft(self) -> "Sampled | None":
        """The model's draft model under the same settings; None if it has none."""
        inner = getattr(self.model, "draft", None)
        return None if inner is None else Sampled(inner, self.sampling)

    @property
    def heads(self) -> Any:
        """The model's heads, under the same settings; None if it has none."""
        inner = getattr(self.model, "heads", None)
        if inner is None:
            return None
        heads = self._sample(inner, "continue_tree", "logits", "tree")
        heads.keep = lambda nodes: inner.keep(self._repeat_rows(nodes))
        return heads

    def _sample(self, network: Any, *calls: str) -> SimpleNamespace:
        """Make a network whose calls of these names give scores of the distribution."""
        return SimpleNamespace(**{name: partial(self._score, getattr(network, name)) for name in calls})

    def _repeat_rows(self, rows: Tensor) -> Tensor:
        """Return rows [B, ...] twice, [2B, ...], if the model is guided: it has B conditional, then B unconditional
        rows."""
        return rows if self.sampling.guidance == 1 else torch.cat([rows, rows])

    def _score(self, logits_of: Callable[..., Tensor], tokens: Tensor, positions: Tensor, *others: Tensor) -> Tensor:
        """Call `logits_of` and turn its logits into scores [B, S, V] of the distribution. others: further tensors
        [B, ...] for the call."""
        logits = logits_of(*map(self._repeat_rows, (tokens, positions, *others)))
        return self.distribution.apply(logits, positions)


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
