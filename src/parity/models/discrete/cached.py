"""LlamaGen as a token model: a batch of conditions ready to be decoded, with a static cache addressed by position."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.models.discrete.protocol import Drafter, TokenModel
from parity.models.discrete.transformer import Transformer
from parity.models.discrete.trees import ancestors


class LlamaGen:
    """The token-model protocol over `Transformer`.

    Rows come in pairs when guidance is on: the first B rows are conditional, the last B unconditional (one forward for
    both). Position -1 is the last prefix position: its "token" is the prefix embedding itself, whatever id is given. A
    hole, a position that was never fed before one that was, is masked. On a CPU a row whose picture is done is computed
    no more (the slowest of 32 takes half as many passes again as their mean), unless it `returns`: a draft model's rows
    do, which draft past the end before the target has accepted it.
    """

    codebook: Tensor | None = None  # these four: see TokenModel; who builds the model sets them
    raw_codebook: Tensor | None = None
    drafter: Drafter | None = None
    draft: TokenModel | None = None

    def __init__(
        self,
        net: Transformer,
        condition: Tensor,
        valid: Tensor,
        guided: bool,
        returns: bool = False,
        read: "Pass | None" = None,
    ):
        """read: `a_pass`, or the same compiled (`compiling.compiled`), and then its shapes are those of (batch, window)
        alone, as they are on a GPU; None: `a_pass`."""
        c, self.returns, self.read = net.config, returns, read or a_pass
        self.static = read is not None or condition.device.type != "cpu"
        self.embeddings = net.tok_embeddings.weight
        self.net, self.vocab, self.length, self.width = net, c.vocab, c.grid**2, c.grid
        self.forced = torch.full((self.length,), -1, device=condition.device)  # no grammar: raster order, no separators
        dropped = torch.zeros(len(condition), dtype=torch.bool, device=condition.device)
        if guided:
            condition, valid = torch.cat([condition] * 2), torch.cat([valid] * 2)
            dropped = torch.cat([dropped, ~dropped])
        prefix = net.cls_embedding(condition, dropped)
        rows, total = len(prefix), c.prefix + self.length
        shape = (rows, total, c.heads, c.dim // c.heads)
        # one K and one V per layer
        self.cache = [(prefix.new_zeros(shape), prefix.new_zeros(shape)) for _ in net.layers]
        # [rows, total] slots that are attended: of the image, those that were fed
        self.on = F.pad(valid.bool(), (0, self.length))
        # [rows] whose pictures are not done: cache, on and last hold these alone
        self.going = torch.arange(rows, device=prefix.device)
        self.beside: list[tuple[Tensor, Tensor]] = []  # keys and values of the last tree's nodes, layer by layer
        self.last = prefix[:, -1]
        # [rows, L + 1, dim] hidden states at position + 1, where a drafter wants them kept
        self.features: Tensor | None = None
        if c.prefix > 1:
            self._forward(prefix[:, :-1], torch.arange(c.prefix - 1, device=prefix.device).expand(rows, -1))

    def _forward(self, x: Tensor, slots: Tensor) -> Tensor:
        """x [R, S, dim] at cache slots [R, S]; returns hidden states [R, S, dim] before the output matrix."""
        # Keys beyond the furthest slot are never attended; leaving them out halves attention on a CPU, where asking
        # costs nothing.
        live = self.on.shape[1] if self.static else int(slots.max()) + 1
        return self.read(self.net, x, slots, self.on, self.cache, live)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        known = self.net.tok_embeddings(tokens.clamp(0, self.vocab - 1))
        return torch.where((positions < 0)[..., None], self.last[:, None], known)

    @torch.inference_mode()
    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens, positions [R, S] -> logits [R, S, V] of the tokens that follow; keys and values go to `positions`."""
        self._leave(positions)
        B, tokens, positions = len(tokens), tokens[self.going], positions[self.going]
        slots = positions + self.net.config.prefix
        self._see(torch.arange(len(slots), device=slots.device)[:, None], slots)
        hidden = self._forward(self._embed(tokens, positions), slots)
        if self.features is not None:
            self.features[self.going[:, None], positions + 1] = hidden
        return at_rows(self.net.output(hidden), self.going, B)

    def _leave(self, positions: Tensor) -> None:
        """Rows [R] of positions [R, S] that are done leave the cache."""
        left = None if self.returns or self.static else staying(self.going, positions, self.length)
        if left is not None:
            held = [self.going, self.on, self.last, *(x for layer in self.cache for x in layer)]
            self.going, self.on, self.last, *cache = (close_up(x, left) for x in held)
            self.cache = list(zip(cache[::2], cache[1::2], strict=True))

    def _see(self, rows: Tensor, slots: Tensor) -> None:
        """Image slots that are written are attended from now on; of the prefix the caption's mask decides."""
        self.on[rows, slots] |= slots >= self.net.config.prefix

    @torch.inference_mode()
    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """tokens, positions, parents [R, S] -> logits [R, S, V]; keys and values lie beside the cache until `keep`."""
        self._leave(positions)
        B, tokens, positions, parents = len(tokens), tokens[self.going], positions[self.going], parents[self.going]
        slots = (positions + self.net.config.prefix).clamp(max=self.on.shape[1] - 1)
        above = ancestors(parents)
        root = (slots[:, None] * (above & (parents < 0)[:, None])).sum(-1)  # [R, S] slot of each node's first ancestor
        live = self.on.shape[1] if self.static else int(slots[:, 0].max()) + 1
        seen = (torch.arange(live, device=tokens.device) < root[..., None]) & self.on[:, None, :live]
        x, table = self._embed(tokens, positions), self.net.table[slots]
        mask = to_add(torch.cat([seen, above], -1)[:, None], x.dtype)
        self.beside, self.slots = [], slots

        def attended(k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self.beside.append((k, v))
            return torch.cat([keys[:, :live], k], 1), torch.cat([values[:, :live], v], 1)

        for layer, (keys, values) in zip(self.net.layers, self.cache, strict=True):
            read = lambda k, v, keys=keys, values=values: attended(k, v, keys, values)  # noqa: E731
            x = layer.forward(x, table.to(x.dtype), mask, read)
        self.hidden = self.net.norm(x)
        return at_rows(self.net.output(self.hidden), self.going, B)

    @torch.inference_mode()
    def keep(self, nodes: Tensor) -> None:
        """nodes [R, W], -1 for none: their keys and values go where their positions are."""
        nodes = nodes[self.going]
        if not self.static:
            row, column = (nodes >= 0).nonzero(as_tuple=True)
            node = nodes[row, column]
        else:  # how many there are would be asked for: the last one is written in place of what is none
            node = torch.where(nodes < 0, nodes.amax(1, keepdim=True).clamp(min=0), nodes)
            row = torch.arange(len(nodes), device=nodes.device)[:, None]
        to = self.slots[row, node]
        self._see(row, to)
        for (keys, values), (k, v) in zip(self.cache, self.beside, strict=True):
            keys[row, to], values[row, to] = k[row, node], v[row, node]
        if self.features is not None:
            self.features[self.going[row], to - self.net.config.prefix + 1] = self.hidden[row, node]


Pass = Callable[[Transformer, Tensor, Tensor, Tensor, list[tuple[Tensor, Tensor]], int], Tensor]


def a_pass(
    net: Transformer, x: Tensor, slots: Tensor, on: Tensor, cache: list[tuple[Tensor, Tensor]], live: int
) -> Tensor:
    """x [R, S, dim] at slots [R, S] through the layers, keys and values into the cache; `on` [R, T] slots are attended,
    of the first `live`. Hidden states [R, S, dim]."""
    key = torch.arange(live, device=x.device)
    mask = ((key <= slots[..., None]) & on[:, None, :live] | (key == slots[..., None]))[:, None]
    at, table = (torch.arange(len(x), device=x.device)[:, None], slots), net.table[slots].to(x.dtype)
    mask = to_add(mask, x.dtype)
    for layer, (keys, values) in zip(net.layers, cache, strict=True):
        x = layer.forward(x, table, mask, lambda k, v, keys=keys, values=values: write(keys, values, at, k, v, live))
    return net.norm.forward(x)


def to_add(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What attention adds to its scores for a mask bool [...]: once a pass, where it would do it once a layer."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def staying(going: Tensor, positions: Tensor, length: int) -> Tensor | None:
    """Which of the rows `going` [G] have something to decode at positions [R, S]: bool [G], or None if none of them
    leaves.

    A row leaves when every position it is given is the last or past it, and another's is not. Only on a CPU, where
    asking costs nothing.
    """
    if positions.device.type != "cpu":
        return None
    more = (positions < length - 1).any(1)
    left = more[going]
    if int(left.sum()) < int(more.sum()):
        raise ValueError("a row goes on that was done in an earlier pass")
    return left if 0 < int(left.sum()) < len(going) else None


def close_up(x: Tensor, left: Tensor) -> Tensor:
    """The rows of x [G, ...] that are `left` [G] bool, in any order: the last of them move to where others were."""
    n = int(left.sum())
    x[(~left[:n]).nonzero()[:, 0]] = x[n + left[n:].nonzero()[:, 0]]
    return x[:n]


def at_rows(x: Tensor, rows: Tensor, count: int) -> Tensor:
    """x [G, ...] of `rows` [G] as [count, ...]; the others are zero."""
    return x if len(rows) == count else x.new_zeros(count, *x.shape[1:]).index_copy_(0, rows, x)


def write(
    keys: Tensor, values: Tensor, at: tuple[Tensor, Tensor], k: Tensor, v: Tensor, live: int
) -> tuple[Tensor, Tensor]:
    """Put new keys and values in the cache [R, T, H, D]. Beyond a row's position it is stale, and masked."""
    keys[at], values[at] = k, v
    return keys[:, :live], values[:, :live]
