"""The cache of a batch: keys and values at fixed slots.

The prompt takes the first P slots, padded on the left. Position i of the new tokens stands in slot P + i, so a position
that is fed again replaces what stood there, and rolling back costs nothing. The nodes of a tree stand after all slots
that are seen, until `keep` copies those that are final.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from parity_decoders.protocols.discrete import FINAL, find_visible_nodes

ALIGNED = 16  # a GPU's attention is slow where rows of its mask are not a multiple of this many slots
MULTIPLES = {"cuda": ALIGNED}  # a pass reads a multiple of this many slots, by device


class SlotLayer:
    """Keys and values of one layer, called as transformers' attention calls a layer of its caches."""

    keys: Any  # [R, slots, H, D], as are values
    values: Any
    is_initialized = False

    def __init__(self, cache: "SlotCache"):
        """Make a layer without memory: it takes it when it first stores."""
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate zeros for all slots, with the sizes of the first keys and values [R, H, S, D]."""
        self.keys, self.values = (
            x.new_zeros(len(x), self.cache.size, x.shape[1], x.shape[3]) for x in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store keys and values [R, H, S, D] in the slots of the pass, and return those that it attends to, [R, H, T,
        D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, slots, end = self.cache.rows, self.cache.slots, self.cache.end
        self.keys[rows, slots] = key_states.transpose(1, 2)
        self.values[rows, slots] = value_states.transpose(1, 2)
        return self.keys[:, :end].transpose(1, 2), self.values[:, :end].transpose(1, 2)


class SlotCache:
    """Keys and values of a batch, and which slots of it are seen.

    prefix  P, slots of the prompts
    length  positions of new tokens
    on      [R, T] bool: slots that may be seen: of the prompts' tokens, and of positions that were fed
    size    slots that have memory: those of the prompts, until the first pass makes room for all
    static  whether shapes are those of (batch, window) alone: passes then attend to `reach` slots (None: all), whatever
            was fed. Otherwise they attend to slots that were fed, which costs a look at where rows are
    fed     slots from here on were never written; kept up to date where shapes are not `static`
    slots   [R, S] where the pass that runs stores keys and values; it attends to the first `end` slots
    """

    def __init__(self, layers: int, unpadded: Tensor, length: int, static: bool = False):
        """Set the slots of prompts, unpadded [R, P] bool false on padding, of which the network has read nothing."""
        R, self.prefix = unpadded.shape
        self.length = length
        self.static = static
        self.reach: int | None = None
        self.aligned = MULTIPLES.get(unpadded.device.type, 1)
        self.on = pad(unpadded, (0, length + -(self.prefix + length) % ALIGNED))
        self.fed = self.prefix
        self.size = self.prefix + -self.prefix % ALIGNED
        self.rows = torch.arange(R, device=unpadded.device)[:, None]
        self.layers: list[Any] = [self.make_layer() for _ in range(layers)]
        self.slots = self.rows[:, :0]
        self.end = 0

    def make_layer(self) -> SlotLayer:
        """Make a layer of this cache."""
        return SlotLayer(self)

    def update(self, key_states: Tensor, value_states: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values, and return those that are attended. See `SlotLayer`."""
        return self.layers[layer].update(key_states, value_states)

    def attend(self, positions: int) -> None:
        """Let passes attend to the prompt and that many first positions alone, until the next call; none of a later
        position may be evaluated. Only where shapes are `static`: it saves the reading of slots that are not
        written."""
        self.reach = -(-(self.prefix + positions) // ALIGNED) * ALIGNED

    def count_reached(self) -> int:
        """Count the slots that passes attend to, where shapes are `static`."""
        return min(self.reach or self.on.shape[1], self.on.shape[1])

    def begin_pass(self, slots: Tensor, visible: Tensor) -> Tensor:
        """Let the next pass store at slots [R, S] and attend to those of visible [R, S, T], for which room is made.
        Returns `visible`, padded to a multiple of slots where a GPU needs it."""
        visible = pad(visible, (0, -visible.shape[2] % self.aligned))
        self.slots, self.end = slots, visible.shape[2]
        return visible

    def make_room(self, slots: int = 0) -> None:
        """Make room for all positions, and for this many slots at least. Before the first pass a cache is as short as
        the prompt: beside that of a batch, a long one for rows that join it may not fit on a GPU."""
        if (more := max(slots + -slots % self.aligned, self.on.shape[1]) - self.size) > 0:
            self.widen(0, more)

    def widen(self, before: int, after: int) -> None:
        """Add empty slots before the first and after the last."""
        self.size += before + after
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys, layer.values = (pad(x, (0, 0, 0, 0, before, after)) for x in (layer.keys, layer.values))

    def find_visible(self, slots: Tensor, live: int) -> Tensor:
        """Find which of the first `live` slots tokens at slots [R, S] see, bool [R, S, live]: themselves, and those
        before them that are `on`."""
        key = torch.arange(live, device=slots.device)
        return (key <= slots[..., None]) & self.on[:, None, :live] | (key == slots[..., None])

    def feed(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Begin a pass that stores tokens at positions [R, S]: return their slots [R, S], and which slots they see,
        bool [R, S, T]."""
        slots = positions + self.prefix
        self.on.scatter_(1, slots, True)
        live = self.count_reached() if self.static else int(slots.max()) + 1
        self.fed = max(self.fed, live)
        self.make_room(live)
        return slots, self.begin_pass(slots, self.find_visible(slots, live))

    def feed_tree(self, positions: Tensor, parents: Tensor) -> tuple[Tensor, int, Tensor]:
        """Begin a pass over the nodes of a tree, positions and parents [R, S], see `TokenModel.tree`: return the slots
        that they take if they are kept, [R, S], the first slot at which they are stored until then, and which slots
        they see, bool [R, S, T]."""
        places = (positions + self.prefix).clamp(max=self.prefix + self.length - 1)
        live = self.count_reached() if self.static else max(int(places[:, 0].max()) + 1, self.fed)
        nodes, root = find_visible_nodes(parents, places)
        # a final node takes the place of what is stored at its position
        replaced = torch.where(parents == FINAL, places, places[:, :1])
        on = self.on.scatter(1, replaced, False)[:, None, :live]
        before = torch.arange(live, device=positions.device) < root[..., None]
        return places, live, self.feed_nodes(torch.cat([before & on, nodes], 2), positions.shape[1])

    def feed_nodes(self, visible: Tensor, n: int) -> Tensor:
        """Begin a pass over the last n nodes of a tree, that see slots and nodes visible [R, n, T], and return that.
        They are stored after all that is seen, because joining them to a copy of the long cache would be slow."""
        end = visible.shape[2]
        self.make_room(end)
        return self.begin_pass(torch.arange(end - n, end, device=visible.device).expand(len(visible), -1), visible)

    def keep(self, places: Tensor, first: int, nodes: Tensor) -> None:
        """Move the nodes [R, W] of a tree that are kept, -1 for none, from the slots where they are stored, `first` and
        those after it, to their places [R, S], to be seen there."""
        row, node = list_kept(nodes, self.static)
        slot = places[row, node]
        if not self.static and len(slot):
            self.fed = max(self.fed, int(slot.max()) + 1)
        self.on[row, slot] = True
        source = first + node
        for layer in self.layers:
            for x in (layer.keys, layer.values):
                x[row, slot] = x[row, source]

    def take_prompts(self, rows: Tensor, fresh: "SlotCache") -> tuple[Tensor, int, int]:
        """Replace the prompts in `rows` [B] bool by those of `fresh`. Prompts end where new tokens begin, so shorter
        ones have more padding on their left; slots are added there if a fresh prompt is longer. Returns the rows'
        numbers, and how many slots were added before the fresh prompts, and before those of the other rows."""
        gap, more = max(self.prefix - fresh.prefix, 0), max(fresh.prefix - self.prefix, 0)
        if more:
            self.widen(more, 0)
            self.on = pad(self.on, (more, 0))
            self.prefix += more
            self.fed += more
        index = rows.nonzero()[:, 0].to(self.on.device)
        self.on[index] = pad(fresh.on, (gap, self.on.shape[1] - gap - fresh.on.shape[1]))
        for layer, other in zip(self.layers, fresh.layers, strict=True):
            if other.is_initialized:
                layer.keys[index, gap : gap + fresh.prefix] = other.keys[:, : fresh.prefix]
                layer.values[index, gap : gap + fresh.prefix] = other.values[:, : fresh.prefix]
        return index, gap, more

    def drop_rows(self, active: Tensor) -> None:
        """Drop the rows that are not `active` [R] bool; the others change their order (`compact_rows`)."""
        self.on = compact_rows(self.on, active)
        self.rows = self.rows[: len(self.on)]
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys, layer.values = (compact_rows(x, active) for x in (layer.keys, layer.values))


def list_kept(nodes: Tensor, static: bool) -> tuple[Tensor, Tensor]:
    """List row and number of nodes [R, W] of a tree that are kept, -1 for none. Where shapes are `static`, [R, W] of
    each: counting the missing ones would synchronise, so node 0, which is final, stands for them."""
    if static:
        return torch.arange(len(nodes), device=nodes.device)[:, None], nodes.clamp(min=0)
    row, column = (nodes >= 0).nonzero(as_tuple=True)
    return row, nodes[row, column]


class ActiveRows:
    """Which rows of a batch a network still computes. On a CPU those that are done leave it, between passes: the
    slowest row of 32 takes half as many passes again as their mean.

    index  [G] the rows that are left, in the order of the network's cache
    """

    def __init__(self, rows: int, device: torch.device):
        """Begin with all rows."""
        self.index = torch.arange(rows, device=device)

    def select(self, *inputs: Tensor) -> list[Tensor]:
        """Select the rows of inputs [R, ...] that are left, [G, ...]."""
        return [x if len(x) == len(self.index) else x[self.index] for x in inputs]

    def restore(self, x: Tensor, rows: int) -> Tensor:
        """Put x [G, ...] of the rows that are left in their places of [rows, ...]; the others are zero."""
        return x if len(x) == rows else x.new_zeros(rows, *x.shape[1:]).index_copy_(0, self.index, x)

    def drop(self, done: Tensor) -> Tensor | None:
        """Drop the rows that are `done` [R] bool: return which rows [G] stay, None if all or none do."""
        active = ~done[self.index]
        if not 0 < int(active.sum()) < len(active):
            return None
        self.index = compact_rows(self.index, active)
        return active


def compact_rows(x: Tensor, active: Tensor) -> Tensor:
    """Move the rows of x [R, ...] that are `active` [R] bool to its front, out of order, and return them as a view."""
    n = int(active.sum())
    x[(~active[:n]).nonzero()[:, 0]] = x[n + active[n:].nonzero()[:, 0]]
    return x[:n]
