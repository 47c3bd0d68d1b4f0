"""From a model's logits to the law that is sampled: guidance, temperature, top-k, top-p, grammar.

`Sampled` wraps a model and satisfies the same protocol, so a decoder sees one law and acceptance ratios use it on both
sides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity_decoders.errors import DecodingError
from parity_decoders.undefined import Undefined


@dataclass(frozen=True)
class TokenSampling:
    """How a token is drawn from a model's logits: part of what the law is, so the same for every method."""

    guidance: float = 1.0  # scale s of classifier-free guidance u + s (c - u); 1 is none
    temperature: float = 1.0
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0


def top_k_filter(logits: Tensor, k: int) -> Tensor:
    """Set all but the k largest of the last dimension to -inf; ties with the k-th are kept."""
    return logits.masked_fill(logits < logits.topk(min(k, logits.shape[-1])).values[..., -1:], float("-inf"))


def top_p_filter(logits: Tensor, p: float, at_least: int = 1) -> Tensor:
    """Set all but the smallest set of most likely tokens whose mass reaches p, of at_least tokens, to -inf (Holtzman et
    al. 2020); of equal tokens the first are kept. Only values are sorted, on a CPU by numpy, ten times faster than
    torch."""
    if logits.device.type == "cpu":
        ordered = torch.from_numpy(np.sort(logits.detach().numpy())).flip(-1)
    else:
        ordered = logits.sort(descending=True).values
    mass = ordered.softmax(-1).cumsum(-1, dtype=torch.float64)
    # a token is kept if the mass of likelier ones is less than p
    n_kept = ((mass[..., :-1] < p).sum(-1, keepdim=True) + 1).clamp(min=min(at_least, logits.shape[-1]))
    least = ordered.gather(-1, n_kept - 1)
    n_equal = n_kept - (logits > least).sum(-1, keepdim=True)
    is_equal = logits == least
    excluded = (logits < least) | (is_equal & (is_equal.cumsum(-1, dtype=torch.int32) > n_equal))
    return logits.masked_fill(excluded, float("-inf"))


class Sampled:
    """A model under sampling settings: the same protocol, but its logits are those of the law that is drawn from."""

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
    def grammar(self) -> bool:
        """Whether the model forces any token."""
        return bool((self.forced >= 0).any())

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute logits [B, S, V] of the law after tokens at positions [B, S]. See TokenModel."""
        if self.undefined is None:
            self.undefined = Undefined(len(tokens), self.length, tokens.device)
        return self.undefined.replace(self._law(self.model.logits, tokens, positions), positions)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [B, S, V] of the law after nodes: tokens, positions, parents [B, S]. See TokenModel."""
        if self.undefined is None:
            self.undefined = Undefined(len(tokens), self.length, tokens.device)
        return self.undefined.replace_nodes(self._law(self.model.tree, tokens, positions, parents), positions)

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
        """The model's drafter, whose laws are under the same settings."""
        return self._sample(self.model.drafter, "logits", "tree")

    @cached_property
    def draft(self) -> "Sampled | None":
        """The model's draft model under the same settings; None if it has none."""
        inner = getattr(self.model, "draft", None)
        return None if inner is None else Sampled(inner, self.sampling)

    @property
    def heads(self) -> Any:
        """The model's heads, whose laws are under the same settings; None if it has none."""
        inner = getattr(self.model, "heads", None)
        if inner is None:
            return None
        heads = self._sample(inner, "continue_tree", "logits", "tree")
        heads.keep = lambda nodes: inner.keep(self._repeat_rows(nodes))
        return heads

    def _sample(self, network: Any, *calls: str) -> SimpleNamespace:
        """Make a network whose calls of these names give logits of the law."""
        return SimpleNamespace(**{name: partial(self._law, getattr(network, name)) for name in calls})

    def _repeat_rows(self, rows: Tensor) -> Tensor:
        """Return rows [B, ...] twice, [2B, ...], if the model is guided: it has B conditional, then B unconditional
        rows."""
        return rows if self.sampling.guidance == 1 else torch.cat([rows, rows])

    def _law(self, logits_of: Callable[..., Tensor], tokens: Tensor, positions: Tensor, *others: Tensor) -> Tensor:
        """Call `logits_of` and apply guidance, temperature, top-k, top-p and the grammar to its logits [B, S, V]. A
        token that the grammar forces at the next position has probability 1. others: further tensors [B, ...] for the
        call."""
        s = self.sampling
        logits = logits_of(*map(self._repeat_rows, (tokens, positions, *others)))
        if s.guidance != 1:
            conditional, unconditional = logits.chunk(2)
            logits = torch.lerp(unconditional, conditional, s.guidance)
        if logits.dtype.itemsize < 4:
            logits = logits.float()
        if s.temperature != 1:
            logits = logits / s.temperature
        if s.top_k:
            logits = top_k_filter(logits, s.top_k)
        if s.top_p < 1:
            logits = top_p_filter(logits, s.top_p)
        if self.grammar:
            forced = self.forced[(positions + 1).clamp(max=self.length - 1)][..., None]
            is_forced = torch.arange(self.vocab, device=logits.device) == forced
            one_hot = torch.where(is_forced, logits.new_zeros(()), float("-inf"))
            logits = torch.where(forced >= 0, one_hot, logits)
        return logits


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
