"""The engine: a causal network with the cache of a batch, and the distribution that is sampled from its logits.

A decoder calls `Sampled`, which calls a `Network`, which calls a causal model as transformers' are called:

    model(inputs_embeds=x, attention_mask=mask, position_ids=ids, past_key_values=cache) -> logits, hidden states
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from parity_decoders.cache import ActiveRows, SlotCache, compact_rows
from parity_decoders.distribution import Distribution, TokenSampling, make_distribution
from parity_decoders.protocols.discrete import TreePass
from parity_decoders.undefined import Undefined, refuse_undefined


class Output(NamedTuple):
    """What a causal model of this project returns."""

    logits: Tensor  # [R, S, V]
    hidden: Tensor  # [R, S, dim] what its output layer reads


class Stored(NamedTuple):
    """Where a network stored the nodes of a tree, of the rows that it computes."""

    places: Tensor  # [G, S] slots that nodes take if they are kept
    first: int  # the first slot at which nodes are stored until then


def run_in_inference() -> Any:
    """Enter inference mode, which a compiled graph may not: as a part of one a pass runs in its caller's."""
    return nullcontext() if torch.compiler.is_compiling() else torch.inference_mode()


class Network:
    """A causal model with the cache of a batch of prompts, which computes the logits that follow any tokens at any
    positions: a `TokenModel` of its own logits.

    Rows come in pairs where guidance is on: the first B are conditional, the last B unconditional. Position -1 is the
    last of the prompt: it is read whatever token is given there. A hole, a position that was never fed before one that
    was, is masked.

    length, forced, width, grid, codebook, raw_codebook  see TokenModel
    states  [R, P - 1, dim] hidden states of the prompts but their last positions, for speculators that read them
    """

    def __init__(
        self,
        model: Any,
        prompts: Tensor,
        unpadded: Tensor,
        forced: Tensor,
        width: int,
        embeddings: Tensor,
        *,
        padding: Tensor | None = None,
        static: bool = False,
        run: Callable[..., Any] | None = None,
        grid: Any = None,
        codebooks: tuple[Tensor | None, Tensor | None] = (None, None),
    ):
        """Feed the prompts without their last positions.

        prompts     [R, P, dim] embeddings, padded on the left; unpadded [R, P] bool, false on padding
        forced      [L], width, grid: see TokenModel
        embeddings  [V, dim] of tokens
        padding     [R] slots before each row's position 0, by default those of padding
        static      whether shapes of passes are fixed
        run         the model, compiled; a prompt is read uncompiled, because its shape is run once
        codebooks   vectors of the image tokenizer, unit length and as stored
        """
        R, P = prompts.shape[:2]
        self.model, self.run = model, run or model
        self.embeddings = embeddings
        self.forced, self.length, self.width, self.grid = forced, len(forced), width, grid
        self.codebook, self.raw_codebook = codebooks
        self.last = prompts[:, -1:].clone()
        self.padding = ((~unpadded).sum(1) if padding is None else padding.clone())[:, None]
        self.active = ActiveRows(R, prompts.device)
        self.cache = self.make_cache(unpadded, static)
        self.states: Tensor | None = None
        if P > 1:
            slots = torch.arange(P - 1, device=prompts.device).expand(R, -1)
            with run_in_inference():
                visible = self.cache.begin_pass(slots, self.cache.find_visible(slots, P - 1))
                self.states = self.read_prompts(prompts[:, :-1], slots, visible)

    def make_cache(self, unpadded: Tensor, static: bool) -> SlotCache:
        """Make the cache of prompts unpadded [R, P]."""
        return SlotCache(len(self.model.layers), unpadded, self.length, static)

    def read_prompts(self, prompts: Tensor, slots: Tensor, visible: Tensor) -> Tensor | None:
        """Read prompts [R, P - 1] or [R, P - 1, dim], and return their hidden states, if the model gives them."""
        out = self.model(**self.prepare({"inputs_embeds": prompts}, slots, slots, visible), logits_to_keep=1)
        states: Tensor = out.hidden
        return states

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return len(self.embeddings)

    @property
    def static(self) -> bool:
        """Whether shapes of passes are fixed. See TokenModel."""
        return self.cache.static

    @property
    def prefix(self) -> int:
        """Slots of the prompts: where a longer one joins, there are more, and buffers move."""
        return self.cache.prefix

    def attend(self, positions: int) -> None:
        """Let the passes of a `static` model attend to the prompt and that many first positions alone."""
        self.cache.attend(positions)

    def embed(self, tokens: Tensor, positions: Tensor) -> dict[str, Tensor]:
        """Look up what the model reads for tokens at positions [G, S]."""
        x = embedding(tokens.clamp(0, len(self.embeddings) - 1), self.embeddings)
        return {"inputs_embeds": torch.where((positions < 0)[..., None], self.last, x)}

    def prepare(self, inputs: dict[str, Tensor], slots: Tensor, places: Tensor, visible: Tensor) -> dict[str, Any]:
        """Prepare the arguments of the model for a pass: inputs; slots [G, S] where tokens are stored, places [G, S]
        where each stands in its row, padding included; visible [G, S, T]: which slots it sees."""
        return inputs | {
            "attention_mask": self.make_mask(slots, places, visible),
            "position_ids": self.number_positions(places),
            "past_key_values": self.cache,
        }

    def number_positions(self, places: Tensor) -> Tensor:
        """Return the position ids [G, S] of tokens at places [G, S], counted from each row's first token."""
        return (places - self.padding).clamp(min=0)

    def make_mask(self, slots: Tensor, places: Tensor, visible: Tensor) -> Any:
        """Make the additive mask [G, 1, S, T] of `visible` [G, S, T]. slots, places: see `prepare`."""
        return make_additive(visible, self.embeddings.dtype)

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute the logits [R, S, V] that follow tokens at positions [R, S], and store the tokens there. See
        TokenModel."""
        with run_in_inference():
            R = len(tokens)
            tokens, positions = self.active.select(tokens, positions)
            slots, visible = self.cache.feed(positions)
            out = self.run(**self.prepare(self.embed(tokens, positions), slots, slots, visible))
            return self.active.restore(out.logits, R)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> TreePass:
        """Compute the logits [R, S, V] that follow the nodes of a tree: tokens, positions, parents [R, S]. They are
        stored after all that was fed, until the next pass, or until `keep` moves them. See TokenModel."""
        with run_in_inference():
            R = len(tokens)
            tokens, positions, parents = self.active.select(tokens, positions, parents)
            places, first, visible = self.cache.feed_tree(positions, parents)
            out = self.run(**self.prepare(self.embed(tokens, positions), self.cache.slots, places, visible))
            logits, hidden = self.active.restore(out.logits, R), getattr(out, "hidden", None)
            return TreePass(logits, tokens, positions, parents, hidden, Stored(places, first))

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Move the nodes [R, W] of a tree, -1 for none, to the slots of their positions. See TokenModel."""
        with run_in_inference():
            self.cache.keep(tree.state.places, tree.state.first, *self.active.select(nodes))

    def join(self, rows: Tensor, fresh: "Network") -> None:
        """Restart rows [R] bool as those of `fresh`, which has read its prompts. See TokenModel."""
        with run_in_inference():
            index, gap, more = self.cache.take_prompts(rows, fresh.cache)
            self.padding = self.padding + more
            self.padding[index] = fresh.padding + gap
            self.last[index] = fresh.last

    def release(self, done: Tensor) -> None:
        """Compute the rows that are `done` [R] bool no more. See TokenModel."""
        with run_in_inference():
            if (active := self.active.drop(done)) is not None:
                self.drop_rows(active)

    def drop_rows(self, active: Tensor) -> None:
        """Drop the rows that are not `active` [G] bool; the others change their order (`compact_rows`)."""
        self.cache.drop_rows(active)
        self.last, self.padding = (compact_rows(x, active) for x in (self.last, self.padding))


def make_additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn visible [R, S, T] into an additive mask [R, 1, S, T]: 0 where true, else the smallest number of `dtype`."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]


class Sampled:
    """A token model under sampling settings: the same protocol, but its logits are those of the distribution that is
    sampled, which drafts are accepted by, too.

    network       the model: a `Network`, or any TokenModel
    distribution  what makes of its logits those of the distribution
    speculators   "drafter", "draft" and "heads" beside the network, which reads no other; by default its attributes
    queue         rows that wait for a place; None: none does
    written       the tokens before each slot, if the distribution depends on them
    """

    def __init__(
        self,
        network: Any,
        distribution: Distribution | TokenSampling,
        speculators: Mapping[str, Any] | None = None,
        queue: Any = None,
        written: Any = None,
    ):
        """Wrap a network. distribution: a `Distribution`, or settings of one."""
        self.network = network
        self.speculators = speculators
        self.queue = queue
        self.written = written
        self.vocab, self.length, self.width, self.forced = network.vocab, network.length, network.width, network.forced
        if isinstance(distribution, TokenSampling):
            distribution = make_distribution(distribution, self.forced)
        self.distribution = distribution
        self.grid = getattr(network, "grid", None)
        self.static = getattr(network, "static", False)
        self.undefined: Undefined | None = None  # of the rows of the first pass
        names = ("codebook", "raw_codebook", "embeddings")
        self.codebook, self.raw_codebook, self.embeddings = (getattr(network, name, None) for name in names)

    def replace_networks(self, change: Callable[[str, Any], Any]) -> "Sampled":
        """Make the same model of other networks: change(role, network) of "target" and of each speculator."""
        speculators = {name: change(name, network) for name, network in (self.speculators or {}).items()}
        network = change("target", self.network)
        return Sampled(network, self.distribution, speculators, self.queue, self.written)

    @cached_property
    def grammar(self) -> bool:
        """Whether the model forces any token."""
        return bool((self.forced >= 0).any())

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute logits [B, S, V] of the distribution after tokens at positions [B, S]. See TokenModel."""
        prefixes = self.written and self.written.read(tokens, positions)
        raw = self.network.logits(self.repeat_rows(tokens), self.repeat_rows(positions))
        return self.flags(tokens).replace(self.distribution.apply(raw, positions, prefixes), positions)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> TreePass:
        """Compute logits [B, S, V] of the distribution after the nodes of a tree. See TokenModel."""
        prefixes = self.written and self.written.follow(tokens, positions, parents)
        inner = self.network.tree(*map(self.repeat_rows, (tokens, positions, parents)))
        logits = self.distribution.apply(inner.logits, positions, prefixes)
        logits, undefined = self.flags(tokens).replace_nodes(logits, positions)
        return TreePass(logits, tokens, positions, parents, inner.hidden, (inner, undefined))

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Store the nodes [B, W] of a tree, -1 for none. See TokenModel."""
        inner, undefined = tree.state
        if self.written:
            self.written.keep(tree, nodes)
        self.network.keep(inner, self.repeat_rows(nodes))
        if (drafter := (self.speculators or {}).get("drafter")) is not None:  # a network's own reads no hidden states
            drafter.keep(inner, self.repeat_rows(nodes))
        self.flags(nodes).keep(undefined, tree.positions, nodes)

    def flags(self, tokens: Tensor) -> Undefined:
        """Return which positions of the rows of tokens [B, S] have logits without a distribution."""
        if self.undefined is None:
            self.undefined = Undefined(len(tokens), self.length, tokens.device)
        return self.undefined

    def explain(self, row: int, position: int, tokens: Tensor) -> str:
        """Say why the logits of a row's position have no distribution: the network is asked once more. tokens [B, L]:
        new tokens, final up to there."""
        active: ActiveRows | None = getattr(self.network, "active", None)
        if active is not None and row not in active.index.tolist():
            return (
                "its logits were NaN or infinite, or allowed no token; allowed: numbers, one of them at least allowed"
            )
        with run_in_inference():
            fed = tokens[:, max(position - 1, 0)][:, None]
            last = torch.full_like(fed, position - 1)
            prefixes = self.written and self.written.read(fed, last)
            raw = self.network.logits(self.repeat_rows(fed), self.repeat_rows(last))
            return self.distribution.explain(row, raw, last, prefixes)

    @property
    def prefix(self) -> int:
        """How many slots the network keeps for prompts: where a longer one joins, there are more, and buffers move."""
        return getattr(self.network, "prefix", 0)

    def attend(self, positions: int) -> None:
        """Let the passes of a `static` network attend to the prompt and that many first positions alone."""
        self.network.attend(positions)

    def join(self, rows: Tensor, fresh: "Sampled") -> None:
        """Replace the rows [B] bool by those of the fresh model. See TokenModel. Raises DecodingError: see
        `refuse_undefined`."""
        refuse_undefined(self, rows)
        if self.undefined is not None:
            self.undefined.at[rows] = False
        self.network.join(self.repeat_rows(rows), fresh.network)
        for name, speculator in (self.speculators or {}).items():
            speculator.join(self.repeat_rows(rows), (fresh.speculators or {})[name])

    def release(self, done: Tensor) -> None:
        """Let networks compute rows that are `done` [B] bool no more, those that can. See TokenModel."""
        for network in (self.network, *(self.speculators or {}).values()):
            if hasattr(network, "release"):
                network.release(self.repeat_rows(done))

    def find_speculator(self, name: str) -> Any:
        """Return the network beside this one, None if there is none."""
        return getattr(self.network, name, None) if self.speculators is None else self.speculators.get(name)

    @cached_property
    def drafter(self) -> "SampledDrafter":
        """The network's drafter under the same settings."""
        return SampledDrafter(self, self.find_speculator("drafter"))

    @cached_property
    def draft(self) -> "Sampled | None":
        """The draft model under the same settings; None if there is none."""
        inner = self.find_speculator("draft")
        written = self.written and self.written.begin_anew()
        return None if inner is None else Sampled(inner, self.distribution, written=written)

    @cached_property
    def heads(self) -> "SampledHeads | None":
        """The network's heads under the same settings; None if there are none."""
        inner = self.find_speculator("heads")
        return None if inner is None else SampledHeads(self, inner)

    def repeat_rows(self, rows: Tensor) -> Tensor:
        """Return rows [B, ...] twice, [2B, ...], if the model is guided: it has B conditional, then B unconditional
        rows."""
        return torch.cat([rows, rows]) if self.distribution.guidance else rows


class SampledDrafter:
    """A `Drafter` under the settings of its target."""

    def __init__(self, target: Sampled, drafter: Any):
        """Wrap a drafter."""
        self.target, self.drafter = target, drafter

    def logits(self, tokens: Tensor, positions: Tensor, sources: Tensor) -> Tensor:
        """Compute logits [B, S, V] after final tokens. See Drafter."""
        inputs = map(self.target.repeat_rows, (tokens, positions, sources))
        return self.target.distribution.apply(self.drafter.logits(*inputs), positions)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [B, S, V] after more nodes of the tree. See Drafter."""
        inputs = map(self.target.repeat_rows, (tokens, positions, parents))
        return self.target.distribution.apply(self.drafter.tree(*inputs), positions)


class SampledHeads:
    """`Heads` under the settings of their target."""

    def __init__(self, target: Sampled, heads: Any):
        """Wrap heads."""
        self.target, self.heads = target, heads

    def continue_tree(self, tree: TreePass) -> Tensor:
        """Compute logits [B, S, V] after the nodes of a tree of the target. See Heads."""
        return self.target.distribution.apply(self.heads.continue_tree(tree.state[0]), tree.positions)

    def keep(self, tree: TreePass, nodes: Tensor) -> None:
        """Store the hidden states after nodes [B, W]. See Heads."""
        self.heads.keep(tree.state[0], self.target.repeat_rows(nodes))

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute logits [B, S, V] of the distributions at positions + 1. See Heads."""
        inputs = map(self.target.repeat_rows, (tokens, positions))
        return self.target.distribution.apply(self.heads.logits(*inputs), positions)

    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [B, S, V] after the nodes of a tree. See Heads."""
        inputs = map(self.target.repeat_rows, (tokens, positions, parents))
        return self.target.distribution.apply(self.heads.tree(*inputs), positions)
