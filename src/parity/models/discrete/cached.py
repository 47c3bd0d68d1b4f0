"""A causal network as a token model: a batch of prompts ready to be decoded, with a static cache addressed by position.

What a network must have, beside `embeddings` that its family hands over: `layers` (called with x, table, mask,
remember), `norm`, `output`, the rotary `table` by place, and `key_shape`, the heads and width of a position's keys.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from parity_decoders.layout import ALIGNED, CacheLayout
from parity_decoders.protocols.discrete import TokenModel, find_ancestors
from torch import Tensor, nn

# stores new keys and values [R, S, H, D] of a layer, and returns all that are attended [R, T, H, D]
Remember = Callable[[Tensor, Tensor], list[Tensor]]
Pass = Callable[[Any, Tensor, Tensor, Tensor, Tensor, Tensor], Any]
P = ParamSpec("P")
T = TypeVar("T")


def without_gradients(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method to run in inference mode, which a compiled graph may not enter: as a part of one it runs in its
    caller's."""
    inferred = torch.inference_mode()(method)

    @wraps(method)
    def run(*inputs: P.args, **keywords: P.kwargs) -> T:
        return (method if torch.compiler.is_compiling() else inferred)(*inputs, **keywords)

    return run


class Prompts(NamedTuple):
    """The prompts of a batch, before a network reads them, with the unconditional ones last if the batch is guided."""

    prefix: Tensor  # [R, P, dim] embeddings of the last P positions before the picture
    valid: Tensor  # [R, P]: those that are attended, the last one always
    shift: Tensor  # [R] how many slots a row is before the rotary table: its left padding
    embeddings: Tensor  # [V, dim] of the picture's tokens


def make_prefix_mask(valid: Tensor, length: int) -> Tensor:
    """Make the causal mask bool [B, 1, length, length], True where a query may read a key. Only itself may read a
    position of the prefix that is padding by valid [B, prefix]."""
    i = torch.arange(length, device=valid.device)
    on = F.pad(valid.bool(), (0, length - valid.shape[1]), value=True)
    return ((i[None, :] <= i[:, None]) & on[:, None] | (i[None, :] == i[:, None]))[:, None]


def compute_features(net: Any, prompts: Prompts, tokens: Tensor) -> Tensor:
    """Compute hidden states [R, n + 1, dim] of whole sequences, which gradients pass through: state s predicts token s
    of tokens [R, n]. No cache is needed."""
    x = torch.cat([prompts.prefix, F.embedding(tokens, prompts.embeddings)], 1)
    mask = make_prefix_mask(prompts.valid, x.shape[1])
    slots = torch.arange(x.shape[1], device=x.device)
    table = net.table[(slots - prompts.shift[:, None]).clamp(min=0)].to(x.dtype)
    for layer in net.layers:
        x = layer(x, table, mask)
    features: Tensor = net.norm(x[:, prompts.prefix.shape[1] - 1 :])
    return features


def hidden_pass(net: Any, x: Tensor, table: Tensor, slots: Tensor, mask: Tensor, cache: Tensor) -> Tensor:
    """Run x [R, S, dim] through layers and norm to hidden states [R, S, dim], with the rotary table [R, S, ..]. Keys
    and values go to slots [R, S] of `cache`, of which the first T are attended where mask [R, S, T] is true."""
    rows = torch.arange(len(x), device=x.device)[:, None]
    # a layer's place in the cache is a tensor: of a view that is written, compiled code copies the whole cache
    numbers = torch.arange(len(cache), device=x.device).view(-1, 2, 1, 1)
    attended = cache[:, :, : mask.shape[2]].unbind()
    # the mask is converted to numbers once a pass, because attention would convert a boolean one in each layer
    mask = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill_(~mask, float("-inf"))[:, None]
    for layer, number, *kept in zip(net.layers, numbers, attended[::2], attended[1::2], strict=True):

        def remember(k: Tensor, v: Tensor, number: Tensor = number, kept: list[Tensor] = kept) -> list[Tensor]:
            """Write a layer's new keys and values to the cache, and return those of the slots that are attended."""
            cache[number, rows, slots] = torch.stack([k, v])
            return kept

        x = layer(x, table, mask, remember)
    hidden: Tensor = net.norm(x)
    return hidden


def logits_pass(
    net: Any, x: Tensor, table: Tensor, slots: Tensor, mask: Tensor, cache: Tensor
) -> tuple[Tensor, Tensor]:
    """Run `hidden_pass`, and return its hidden states and their logits [R, S, V]."""
    hidden = hidden_pass(net, x, table, slots, mask, cache)
    return hidden, net.output(hidden)


class SlotCache(CacheLayout):
    """Keys and values of a batch: slots for the prompt, then one for each position of the picture.

    On a CPU a row whose picture is done is dropped (the slowest of 32 takes half as many passes again as their mean),
    unless it `returns`: the rows of a draft model do, which drafts past the end before the target has accepted it.
    """

    by_row: tuple[str, ...] = ("going", "on", "shift")  # these attributes hold only the rows that are still decoding
    returns = False

    def __init__(
        self,
        net: Any,
        key_shape: tuple[int, int],
        layout: tuple[Tensor, int, int],
        table: Tensor,
        shift: Tensor,
        like: Tensor,
        n: int,
    ):
        """Allocate n slots, in dtype and on the device of `like`. key_shape: heads and width of a slot's keys; layout:
        see `CacheLayout`; table: the rotary table; shift [R]: how many slots they are before the table's."""
        super().__init__(*layout)
        self.net = net
        self.table = table
        self.shift = shift
        # [2 * layers, R, T, H, D]: keys of the first layer, its values, keys of the second, ...
        self.cache = like.new_zeros(2 * len(net.layers), len(self.on), n, *key_shape)
        self.going = torch.arange(len(self.on), device=like.device)  # the pictures of these rows are not done
        self.static = like.device.type != "cpu"

    def widen(self, n_before: int, n_after: int) -> None:
        """Add slots before and after those of the cache."""
        self.cache = F.pad(self.cache, (0, 0, 0, 0, n_before, n_after))

    def drop_done_rows(self, positions: Tensor, length: int) -> None:
        """Drop from the cache the rows whose positions [R, S] are all the last or past it; not on a GPU, nor if
        `returns`."""
        active = None if self.returns or self.static else find_active(self.going, positions, length)
        if active is not None:
            for name in self.by_row:
                setattr(self, name, compact_rows(getattr(self, name), active))
            self.cache = compact_rows(self.cache.movedim(1, 0), active).movedim(0, 1)

    def select_active(self, *inputs: Tensor) -> list[Tensor]:
        """Select the rows of inputs [R, ...] that are still decoding, [G, ...], in the cache's order."""
        return [x if len(x) == len(self.going) else x[self.going] for x in inputs]

    def restore_rows(self, x: Tensor, rows: int) -> Tensor:
        """Put x [G, ...] of the rows still decoding in their places of [rows, ...]; the others are zero."""
        return x if len(x) == rows else x.new_zeros(rows, *x.shape[1:]).index_copy_(0, self.going, x)

    def look_up_rotary(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """Look up the rotary table at slots [G, S], less each row's shift."""
        return self.table[(slots - self.shift[:, None]).clamp(min=0)].to(dtype)

    def make_room(self, nodes: int = 0) -> None:
        """Make room for the whole picture and the nodes of a tree, where the cache is as short as the prompt: beside
        the cache of a batch, a long one for rows that join it may not fit on a GPU."""
        if (n_missing := self.on.shape[1] + nodes - self.cache.shape[2]) > 0:
            self.widen(0, n_missing)

    def run_pass(self, x: Tensor, places: Tensor, slots: Tensor, mask: Tensor, run: Pass = hidden_pass) -> Any:
        """Run x [G, S, dim] with the rotary table of slots `places` [G, S], and return the result of `run`: hidden
        states [G, S, dim] by default. They are stored at `slots` [G, S] and see the slots `mask` [G, S, T]."""
        return run(self.net, x, self.look_up_rotary(places, x.dtype), slots, mask, self.cache)

    def run_nodes(self, x: Tensor, places: Tensor, mask: Tensor, run: Pass = hidden_pass) -> Any:
        """Run the last S of a tree's N nodes, x [G, S, dim], as if at slots `places` [G, S], and return the result of
        `run`: they see slots and nodes `mask` [G, S, live + N]. Their keys and values are stored after all that is
        seen, because joining them to a copy of the long cache would be slow."""
        end = mask.shape[2]
        self.make_room(end - self.live)
        slots = torch.arange(end - x.shape[1], end, device=x.device).expand(len(x), -1)
        return self.run_pass(x, places, slots, mask, run)

    def take_prompts(self, rows: Tensor, fresh: "SlotCache") -> None:
        """Replace the prompts in `rows` [B] bool by those of `fresh`. Prompts end where pictures begin, so shorter ones
        have more padding on their left; slots are added there if a fresh prompt is longer."""
        gap, n_more = max(self.prefix - fresh.prefix, 0), max(fresh.prefix - self.prefix, 0)
        if n_more:
            self.widen(n_more, 0)
            self.on = F.pad(self.on, (n_more, 0))
            self.shift = self.shift + n_more
            self.prefix += n_more
            self.fed += n_more
        index = rows.nonzero()[:, 0].to(self.on.device)
        self.on[index] = F.pad(fresh.on, (gap, self.on.shape[1] - gap - fresh.on.shape[1]))
        self.shift[index] = fresh.shift + gap
        self.cache[:, index, gap : gap + fresh.prefix] = fresh.cache[:, :, : fresh.prefix]


class Cached(SlotCache):
    """The token-model protocol over a causal network.

    Rows come in pairs when guidance is on: the first B rows are conditional, the last B unconditional (one forward for
    both). Position -1 is the last prefix position: its "token" is the prefix embedding itself, whatever id is given. A
    hole, a position that was never fed before one that was, is masked.
    """

    by_row = ("going", "on", "shift", "last")
    codebook: Tensor | None = None  # these five are set by the code that builds the model, see TokenModel
    raw_codebook: Tensor | None = None
    drafter: "EagleDrafter | None" = None
    draft: TokenModel | None = None
    heads: "FeatureHeads | None" = None

    def __init__(
        self,
        net: Any,
        prefix: Tensor,
        valid: Tensor,
        embeddings: Tensor,
        forced: Tensor,
        width: int,
        shift: Tensor | None = None,
    ):
        """Allocate the cache and read the prompts. prefix [R, P, dim]: embeddings of the prompts, the last P positions
        before the picture; valid [R, P]: those that are attended; embeddings [V, dim] of the tokens; forced [L], width:
        see TokenModel; shift [R]: how many slots a row is before the rotary table, its left padding.
        """
        rows, P = prefix.shape[:2]
        shift = torch.zeros(rows, dtype=torch.int64, device=prefix.device) if shift is None else shift
        # slots of the picture are not attended (`on`) until tokens were fed there; those after it never are
        on = F.pad(valid.bool(), (0, len(forced) + -(P + len(forced)) % ALIGNED))
        n = P + -P % ALIGNED
        super().__init__(net, net.key_shape, (on, P, len(forced)), net.table, shift, prefix, n)
        self.embeddings = embeddings
        self.vocab = len(embeddings)
        self.forced = forced
        self.width = width
        self.run: Pass = logits_pass  # or the same compiled (`compiling.CompiledPass`)
        self.last = prefix[:, -1]
        # [rows, L + 1, dim] hidden states, at index position + 1; None unless a drafter reads them
        self.features: Tensor | None = None
        # [rows, P - 1, dim] hidden states of the prefix but its last position, for drafters that see it
        self.prefix_states = prefix[:, :-1]
        if P > 1:  # prompts are read uncompiled, because their shapes differ and are run once
            self.attend(0)
            slots = torch.arange(P - 1, device=prefix.device).expand(rows, -1)
            with torch.inference_mode():
                self.prefix_states = self.run_pass(prefix[:, :-1], slots, slots, self.find_visible(slots))
            self.reach = None

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Embed tokens [R, S]; at position -1 this is the prompt's last embedding, whatever the token."""
        embedded = F.embedding(tokens.clamp(0, self.vocab - 1), self.embeddings)
        return torch.where((positions < 0)[..., None], self.last[:, None], embedded)

    @without_gradients
    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute logits [R, S, V] after `tokens` at `positions` [R, S]; their keys, values and features are stored."""
        self.drop_done_rows(positions, self.length)
        B = len(tokens)
        (tokens, positions) = self.select_active(tokens, positions)
        slots, mask = self.feed(positions)
        self.make_room()
        hidden, logits = self.run_pass(self._embed(tokens, positions), slots, slots, mask, self.run)
        if self.features is not None:
            self.features[self.going[:, None], positions + 1] = hidden
        return self.restore_rows(logits, B)

    @without_gradients
    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [R, S, V] after the nodes of a tree: tokens, positions, parents [R, S]. Their keys and values
        are stored after all that was fed, until the next call, or until `keep` moves them."""
        self.drop_done_rows(positions, self.length)
        B = len(tokens)
        (tokens, positions, parents) = self.select_active(tokens, positions, parents)
        mask = self.plant(positions, parents)
        self.hidden, logits = self.run_nodes(self._embed(tokens, positions), self.places, mask, self.run)
        return self.restore_rows(logits, B)

    @without_gradients
    def keep(self, nodes: Tensor) -> None:
        """Move the keys, values and features of the last tree's nodes [R, W], -1 for none, to their positions."""
        row, node, slot = self.settle(*self.select_active(nodes))
        self.cache[:, row, slot] = self.cache[:, row, self.live + node]
        if self.features is not None:
            self.features[self.going[row], slot - self.prefix + 1] = self.hidden[row, node]

    @without_gradients
    def join(self, rows: Tensor, fresh: "Cached") -> None:
        """Restart rows [B] bool as those of `fresh`, which has read its prompts, also in drafter and draft model."""
        self.take_prompts(rows, fresh)
        index = rows.nonzero()[:, 0].to(self.last.device)
        self.last[index] = fresh.last
        if self.features is not None:
            self.features[index] = 0
        for name in ("draft", "drafter", "heads"):
            if (companion := getattr(self, name)) is not None:
                companion.join(rows, getattr(fresh, name))


def add_companions(
    model: Cached, nets: Mapping[str, Any], make_model: Callable[[Any], Cached], ids: Tensor | None = None
) -> Cached:
    """Give a batch's model the companions among the networks `nets`, and return it. make_model(net): the model of this
    batch with another network; ids [R, P]: the prompts, if they are words."""
    if "drafter" in nets:
        model.drafter = EagleDrafter(nets["drafter"], model, ids)
    if "draft" in nets:
        model.draft = draft = make_model(nets["draft"])
        draft.returns = True
    if "heads" in nets:
        model.heads = FeatureHeads(nets["heads"], model)
    return model


def find_active(active: Tensor, positions: Tensor, length: int) -> Tensor | None:
    """Find which of the rows `active` [G] still have open positions in positions [R, S]: bool [G], or None if none is
    dropped.

    A row is dropped when all its positions are the last or past it, while another row's are not.
    """
    values = positions.numpy()  # numpy takes half as long as torch for so few numbers
    if len(active) == len(values) and values.max() < length - 1:
        return None
    unfinished = np.any(values < length - 1, 1)
    still_active = unfinished if len(active) == len(unfinished) else unfinished[active.numpy()]
    n = int(still_active.sum())
    if len(active) < len(unfinished) and n < int(unfinished.sum()):
        raise ValueError("a row goes on that was done in an earlier pass")
    return torch.from_numpy(still_active) if 0 < n < len(active) else None


def compact_rows(x: Tensor, active: Tensor) -> Tensor:
    """Move the rows of x [G, ...] that are `active` [G] bool to its front, out of order, and return them as a view."""
    n = int(active.sum())
    x[(~active[:n]).nonzero()[:, 0]] = x[n + active[n:].nonzero()[:, 0]]
    return x[:n]


class DrafterContext(NamedTuple):
    """What a drafter reads of a batch before the picture: the caption, if it reads that, a slot for each of its
    positions but the last."""

    embeddings: Tensor  # [V, dim] of the picture's tokens
    words: Tensor  # [R, before, dim] embeddings of the caption's tokens, each beside the feature that predicted it
    features: Tensor  # [R, before, dim] the features that predicted the caption's tokens
    on: Tensor  # [R, before] bool: whether a slot is attended
    shift: Tensor  # [R] how many places a row's slots stand before those of the target's rotary table


class DrafterNet(nn.Module):
    """EAGLE's network (Li et al. 2024, sec. 4.1): one layer that continues the target's features. It maps a token's
    embedding and the feature that predicted it to the feature that predicts the next token, all [B, S, dim]."""

    fc: nn.Linear
    layer: nn.Module
    norm: nn.Module

    @property
    def layers(self) -> list[nn.Module]:
        return [self.layer]

    def combine(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """Combine embeddings and features to the input of the layer."""
        return self.fc(torch.cat([embeddings, features], -1))

    def forward(self, embeddings: Tensor, features: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        return self.norm(self.layer(self.combine(embeddings, features), table, mask))

    def make_context(self, target: Cached, ids: Tensor | None = None) -> DrafterContext:
        """Make what the drafter reads of a batch; ids [R, P] of the prompts, if they are words."""
        raise NotImplementedError


class EagleDrafter(SlotCache):
    """A `Drafter` of a batch that is being decoded; it makes the target store its features by position.

    Ours sees the picture alone: the caption reaches it through the features. A released one has slots for the caption
    before those of the picture.
    """

    def __init__(self, net: DrafterNet, target: Cached, ids: Tensor | None = None):
        """Allocate the cache, read the caption if `net` does, and let `target` store features. ids [R, P]: its
        words."""
        context = net.make_context(target, ids)
        like = target.last
        on = F.pad(context.on, (0, target.length), value=True)
        layout = on, context.on.shape[1], target.length
        shift = context.shift.clone()
        super().__init__(net, target.net.key_shape, layout, target.table, shift, like, on.shape[1])
        self.target = target
        self.embeddings = context.embeddings
        self.static = target.static
        # the target writes the features, at index position + 1
        self.features = target.features = like.new_zeros(len(on), target.length + 1, like.shape[-1])
        if self.prefix:
            with torch.inference_mode():
                slots = torch.arange(self.prefix, device=like.device).expand(len(on), -1)
                x = net.combine(context.words, context.features)
                self.run_pass(x, slots, slots, self.find_visible(slots))

    @without_gradients
    def join(self, rows: Tensor, fresh: "EagleDrafter") -> None:
        """Restart the rows [B] bool as those of `fresh`; the target clears their features."""
        self.take_prompts(rows, fresh)

    @without_gradients
    def logits(self, tokens: Tensor, positions: Tensor, sources: Tensor) -> Tensor:
        """Compute logits [R, S, V] after final tokens at positions [R, S], each with the target's feature of position
        `sources` [R, S]; the next tree begins after the last."""
        self.drop_done_rows(positions, self.target.length)
        B = len(tokens)
        (tokens, positions, sources) = self.select_active(tokens, positions, sources)
        features = self.features[self.going[:, None], sources.clamp(min=-1) + 1]
        slots, mask = self.feed(positions)
        output = self.run_pass(self.net.combine(self.embeddings[tokens], features), slots, slots, mask)
        self.last = slots[:, -1:]
        self.parents = slots[:, :0]  # the tree has no nodes yet
        self.predicted = output[:, -1:]  # predicted features, of the last token written, then of the tree's nodes
        return self.restore_rows(self.target.net.output(output), B)

    @without_gradients
    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [R, S, V] after further nodes of the tree: tokens, positions, parents [R, S]. A parent is
        numbered from the first node since `logits`, or -1; its predicted feature is the node's."""
        (B, S) = tokens.shape
        (tokens, positions, parents) = self.select_active(tokens, positions, parents)
        slots = positions.clamp(max=self.length - 1) + self.prefix
        self.parents = torch.cat([self.parents, parents], 1)
        ancestry = find_ancestors(self.parents)[:, -S:]
        written = (torch.arange(self.live, device=slots.device) <= self.last) & self.on[:, : self.live]
        features = self.predicted.gather(1, (parents + 1)[..., None].expand(-1, -1, self.predicted.shape[-1]))
        x = self.net.combine(self.embeddings[tokens], features)
        output = self.run_nodes(x, slots, torch.cat([written[:, None].expand(-1, S, -1), ancestry], 2))
        self.predicted = torch.cat([self.predicted, output], 1)
        return self.restore_rows(self.target.net.output(output), B)


class FeatureHeads:
    """The `Heads` of a batch that is being decoded. They store features by the position of the token that these
    predict."""

    def __init__(self, net: Any, target: Cached):
        """Allocate the features; net: a `llamagen.Heads`."""
        self.net = net
        self.target = target
        # [R, L + 1, dim]; the last place is for all positions past the end, and stays 0
        self.features = target.last.new_zeros(len(target.last), target.length + 1, target.last.shape[-1])

    def join(self, rows: Tensor, fresh: "FeatureHeads") -> None:
        """Restart the rows [B] bool as those of `fresh`, without features."""
        self.features[rows.nonzero()[:, 0].to(self.features.device)] = 0

    def _look_up(self, positions: Tensor) -> Tensor:
        """Look up the features [G, S, dim] that predict the tokens at positions [G, S]."""
        return self.features[self.target.going[:, None], positions.clamp(0, self.target.length)]

    def _continue(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Continue features [G, S, dim] to the right by tokens [G, S], which they predict."""
        out: Tensor = self.net.right(features, F.embedding(tokens, self.target.embeddings))
        return out

    @without_gradients
    def continue_tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [R, S, V] after the nodes of the target's last tree, see `Heads`: tokens, positions, parents
        [R, S]."""
        R = len(tokens)
        (tokens, positions, parents) = self.target.select_active(tokens, positions, parents)
        self.positions = positions
        stored = self._look_up(positions)
        features = torch.where((parents < 0)[..., None], stored, take_nodes(self.target.hidden, parents.clamp(min=0)))
        return self.target.restore_rows(self.target.net.output(self._continue(features, tokens)), R)

    @without_gradients
    def keep(self, nodes: Tensor) -> None:
        """Store the features after nodes [R, W] of the target's last tree, and predict those of the next row."""
        (nodes,) = self.target.select_active(nodes)
        (L, width) = (self.target.length, self.target.width)
        rows = self.target.going[:, None]
        places = (self.positions.gather(1, nodes) + 1).clamp(max=L)
        self.features[rows, places] = take_nodes(self.target.hidden, nodes)
        below = places[:, -1:] + 1 + torch.arange(width - 1, device=nodes.device)
        # the feature after a token is that which predicts the token to its right
        self.features[rows, below.clamp(max=L)] = self.net.below(self._look_up(below - width + 1))
        self.features[:, L] = 0  # several were written there

    @without_gradients
    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute logits [R, S, V] at positions + 1 from tokens at positions [R, S] and the features stored before."""
        R = len(tokens)
        (tokens, positions) = self.target.select_active(tokens, positions)
        guessed = self._continue(self._look_up(positions), tokens)
        self.guessed = guessed[:, :0]  # features [G, n, dim] of a tree that has no nodes yet
        return self.target.restore_rows(self.target.net.output(guessed), R)

    @without_gradients
    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute logits [R, S, V] after the nodes of a tree: tokens, positions, parents [R, S], see `Heads`."""
        R = len(tokens)
        (tokens, positions, parents) = self.target.select_active(tokens, positions, parents)
        n = self.guessed.shape[1]  # nodes of the calls before
        (tokens, positions, parents) = (x[:, n:] for x in (tokens, positions, parents))
        features = self._look_up(positions)
        if n:
            features = torch.where((parents < 0)[..., None], features, take_nodes(self.guessed, parents.clamp(min=0)))
        self.guessed = torch.cat([self.guessed, self._continue(features, tokens)], 1)
        return self.target.restore_rows(self.target.net.output(self.guessed), R)


def take_nodes(x: Tensor, nodes: Tensor) -> Tensor:
    """Take the entries [G, n, dim] of x [G, S, dim] at nodes [G, n]."""
    return x.gather(1, nodes[..., None].expand(-1, -1, x.shape[-1]))
