"""Which slot of a cache each token of a batch takes, and which slots it sees.

The prompt takes the first P slots, padded on the left. Position i of the new tokens stands in slot P + i, so a position
that is fed again replaces what stood there, and rolling back costs nothing. The nodes of a tree stand after all slots
that are seen, until `keep` copies those that are final.
"""

import torch
from torch import Tensor

from parity_decoders.protocols.discrete import FINAL, find_visible_nodes

ALIGNED = 16  # a GPU's attention is slow where rows of its mask are not a multiple of so many slots


class CacheLayout:
    """The slots of a batch.

    prefix  P, slots of the prompts
    length  positions of new tokens
    on      [R, T] bool: slots that may be seen: of the prompts' tokens, and of positions that were fed
    static  whether shapes are those of (batch, window) alone: passes then attend to `reach` slots (None: all), whatever
            was fed. Otherwise they attend to slots that were fed, which costs a look at where rows are
    fed     slots from here on were never written; kept up to date where shapes are not `static`
    live    slots that the last pass attended to; the nodes of a tree are stored from here on
    """

    static = False
    reach: int | None = None
    live = 0
    places: Tensor  # [R, S] where the nodes of the last tree stand if they are kept

    def __init__(self, on: Tensor, prefix: int, length: int):
        """Set the slots of prompts, of which the network has read nothing yet."""
        self.on, self.prefix, self.length = on, prefix, length
        self.fed = prefix

    def attend(self, positions: int) -> None:
        """Let passes attend to the prompt and the first so many positions alone, until the next call; none of a later
        position may be evaluated. Only where shapes are `static`: it saves the reading of slots that are not
        written."""
        self.reach = -(-(self.prefix + positions) // ALIGNED) * ALIGNED

    def count_reached(self) -> int:
        """Count the slots that passes attend to, where shapes are `static`."""
        return min(self.reach or self.on.shape[1], self.on.shape[1])

    def find_visible(self, slots: Tensor) -> Tensor:
        """Find which slots tokens at slots [R, S] see, bool [R, S, live]: themselves, and those before them that are
        `on`."""
        live = self.count_reached() if self.static else int(slots.max()) + 1
        key = torch.arange(live, device=slots.device)
        return (key <= slots[..., None]) & self.on[:, None, :live] | (key == slots[..., None])

    def feed(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Store tokens at positions [R, S]: return their slots [R, S], and which slots they see, bool [R, S, live]."""
        slots = positions + self.prefix
        self.on.scatter_(1, slots, True)
        visible = self.find_visible(slots)
        self.live = visible.shape[2]
        self.fed = max(self.fed, self.live)
        return slots, visible

    def plant(self, positions: Tensor, parents: Tensor) -> Tensor:
        """Place the nodes of a tree, positions and parents [R, S], see `TokenModel.tree`: return which slots and nodes
        they see, bool [R, S, live + S]. They are stored from slot `live` on."""
        self.places = (positions + self.prefix).clamp(max=self.prefix + self.length - 1)
        self.live = self.count_reached() if self.static else max(int(self.places[:, 0].max()) + 1, self.fed)
        nodes, root = find_visible_nodes(parents, self.places)
        # a final node takes the place of what is stored at its position
        replaced = torch.where(parents == FINAL, self.places, self.places[:, :1])
        on = self.on.scatter(1, replaced, False)[:, None, : self.live]
        before = torch.arange(self.live, device=positions.device) < root[..., None]
        return torch.cat([before & on, nodes], 2)

    def settle(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Let the nodes [R, W] of the last tree that are kept, -1 for none, be seen at their slots: return row, node
        and slot of each."""
        if not self.static:
            row, column = (nodes >= 0).nonzero(as_tuple=True)
            node = nodes[row, column]
        else:  # counting the missing nodes would synchronise, so node 0, which is final, stands for them
            node = nodes.clamp(min=0)
            row = torch.arange(len(nodes), device=nodes.device)[:, None]
        slot = self.places[row, node]
        if not self.static and len(slot):
            self.fed = max(self.fed, int(slot.max()) + 1)
        self.on[row, slot] = True
        return row, node, slot
