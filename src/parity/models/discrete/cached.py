"""A causal network as a token model: a batch of prompts ready to be decoded, with a static cache addressed by position.

What a network must have, beside `embeddings` that its family hands over: `layers` (called with `forward(x, table, mask,
remember)`), `norm`, `output`, the rotary `table` by place, and `kept`, the heads and width of keys that a cache keeps.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.models.discrete.protocol import Drafter, TokenModel, ancestors

# new keys and values [R, S, H, D] to all that are attended [R, T, H, D]
Remember = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Cached:
    """The token-model protocol over a causal network.

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
        net: Any,
        prefix: Tensor,
        valid: Tensor,
        embeddings: Tensor,
        forced: Tensor,
        width: int,
        shift: Tensor | None = None,
        returns: bool = False,
        read: "Pass | None" = None,
    ):
        """prefix [R, P, dim] embeddings of the prompts, the last P positions before the picture; valid [R, P], those
        that are attended; embeddings [V, dim] of the tokens; forced [L], width: see TokenModel.

        shift  [R] how many places a row's slots stand before those of the rotary table: its left padding
        read   `a_pass`, or the same compiled (`compiling.compiled`), and then its shapes are those of (batch, window)
               alone, as they are on a GPU; None: `a_pass`
        """
        self.net = net if read is not None else at_hand(net)
        self.returns, self.read = returns, read or a_pass
        self.static = read is not None or prefix.device.type != "cpu"
        self.embeddings, self.vocab = embeddings, len(embeddings)
        self.forced, self.length, self.width = forced, len(forced), width
        rows, self.prefix = prefix.shape[:2]
        shape = (rows, self.prefix + self.length, *net.key_shape)
        # one K and one V per layer [rows, T, H, D]; parts of one tensor [layers, 2, rows, T, H, D], so that `keep` is
        # two ops, but where passes are compiled, which take each for itself
        self.whole = None if self.static else prefix.new_zeros(len(net.layers), 2, *shape)
        self.cache = [(prefix.new_zeros(shape), prefix.new_zeros(shape)) for _ in net.layers] if self.static else []
        self.hold(self.whole)
        # [rows, total] slots that are attended: of the image, those that were fed
        self.on = F.pad(valid.bool(), (0, self.length))
        # [rows] whose pictures are not done: cache, on, last and shift hold these alone
        self.going = torch.arange(rows, device=prefix.device)
        self.behind = 0  # where keys and values of the last tree's nodes begin
        self.fed = self.prefix  # slots from here on hold nothing: known on a CPU alone
        self.last, self.shift = prefix[:, -1], shift
        # [rows, L + 1, dim] hidden states at position + 1, where a drafter wants them kept
        self.features: Tensor | None = None
        # [rows, P - 1, dim] hidden states of the prefix but its last position, for drafters that see it
        self.prefix_states = prefix[:, :-1]
        if self.prefix > 1:
            before = torch.arange(self.prefix - 1, device=prefix.device).expand(rows, -1)
            self.prefix_states = self._forward(
                prefix[:, :-1], before, a_pass
            )  # once: of any number of rows, not to be compiled

    def hold(self, whole: Tensor | None) -> None:
        """Keys and values are parts of `whole`; None: tensors of their own."""
        if whole is not None:
            self.whole, self.cache = whole, [(whole[i, 0], whole[i, 1]) for i in range(len(whole))]

    def _widen(self, before: int, behind: int) -> None:
        """Room for so many slots more."""
        pad = (0, 0, 0, 0, before, behind)
        if self.whole is not None:
            return self.hold(F.pad(self.whole, pad))
        for i, (keys, values) in enumerate(self.cache):  # a layer at once: two caches may be too much for a GPU
            self.cache[i] = F.pad(keys, pad), F.pad(values, pad)

    def _places(self, slots: Tensor) -> Tensor | None:
        """Places in the rotary table of slots [G, S]; None where they are the same."""
        return None if self.shift is None else (slots - self.shift[:, None]).clamp(min=0)

    def _forward(self, x: Tensor, slots: Tensor, read: "Pass | None" = None) -> Tensor:
        """x [R, S, dim] at cache slots [R, S] to hidden states [R, S, dim]; by its own pass, or the one given."""
        # Keys beyond the furthest slot are never attended; leaving them out halves attention on a CPU, where asking
        # costs nothing.
        live = self.on.shape[1] if self.static else int(slots.numpy().max()) + 1
        self.fed = max(self.fed, live)
        return (read or self.read)(self.net, x, slots, self._places(slots), self.on, self.cache, live)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        known = F.embedding(tokens.clamp(0, self.vocab - 1), self.embeddings)
        if positions.device.type == "cpu" and positions.numpy().min() >= 0:  # asking costs less than the rest
            return known
        return torch.where((positions < 0)[..., None], self.last[:, None], known)

    @torch.inference_mode()
    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens, positions [R, S] -> logits [R, S, V] of the tokens that follow; keys and values go to `positions`."""
        self._leave(positions)
        B, (tokens, positions) = len(tokens), self._of_going(tokens, positions)
        slots = positions + self.prefix
        self.on.scatter_(1, slots, self.on.gather(1, slots) | (slots >= self.prefix))  # as in `_see`
        hidden = self._forward(self._embed(tokens, positions), slots)
        if self.features is not None:
            self.features[self.going[:, None], positions + 1] = hidden
        return at_rows(self.net.output(hidden), self.going, B)

    def _leave(self, positions: Tensor) -> None:
        """Rows [R] of positions [R, S] that are done leave the cache."""
        left = None if self.returns or self.static else staying(self.going, positions, self.length)
        if left is not None:
            assert self.whole is not None
            self.going, self.on, self.last = (close_up(x, left) for x in (self.going, self.on, self.last))
            for x in flat(self.cache):
                close_up(x, left)
            self.hold(self.whole[:, :, : len(self.going)])
            self.shift = None if self.shift is None else close_up(self.shift, left)

    def _of_going(self, *inputs: Tensor) -> list[Tensor]:
        """Of inputs [R, ...] the rows that are not done."""
        return [x if len(x) == len(self.going) else x[self.going] for x in inputs]

    @torch.inference_mode()
    def join(self, rows: Tensor, fresh: "Cached") -> None:
        """See TokenModel."""
        more = max(fresh.prefix - self.prefix, 0)
        if more:
            self._widen(more, 0)
        begin_again(self, fresh, rows, (self.prefix, fresh.prefix), flat(self.cache), flat(fresh.cache))
        self.fed, self.prefix, at = self.fed + more, self.prefix + more, rows.nonzero()[:, 0].to(self.last.device)
        self.last[at] = fresh.last
        if self.features is not None:
            self.features[at] = 0
        companions: list[tuple[Any, Any]] = [(self.draft, fresh.draft), (self.drafter, fresh.drafter)]
        for own, other in companions:
            if own is not None:
                own.join(rows, other)

    def _see(self, rows: Tensor, slots: Tensor) -> None:
        """Image slots that are written are attended from now on; of the prefix the caption's mask decides."""
        self.on[rows, slots] |= slots >= self.prefix

    @torch.inference_mode()
    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """tokens, positions, parents [R, S] -> logits [R, S, V]; keys and values lie behind all that was fed until the
        next call, and where `keep` puts them."""
        self._leave(positions)
        B, (tokens, positions, parents) = len(tokens), self._of_going(tokens, positions, parents)
        slots = (positions + self.prefix).clamp(max=self.on.shape[1] - 1)
        above = ancestors(parents)
        root = (slots[:, None] * (above & (parents < 0)[:, None])).sum(-1)  # [R, S] slot of each node's first ancestor
        live = self.on.shape[1] if self.static else max(int(slots[:, 0].numpy().max()) + 1, self.fed)
        end = live + tokens.shape[1]
        if end > self.cache[0][0].shape[1]:
            whole = self.on.shape[1] + tokens.shape[1]  # at once what the end of the picture will need
            self._widen(0, whole - self.cache[0][0].shape[1])
        seen = (torch.arange(live, device=tokens.device) < root[..., None]) & self.on[:, None, :live]
        places = self._places(slots)
        x, table = self._embed(tokens, positions), self.net.table[slots if places is None else places]
        mask = to_add(torch.cat([seen, above], -1)[:, None], x.dtype)
        self.behind, self.slots = live, slots

        def attended(k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            keys[:, live:end], values[:, live:end] = k, v  # not joined to a copy of the cache, which is long
            return keys[:, :end], values[:, :end]

        for layer, (keys, values) in zip(self.net.layers, self.cache, strict=True):
            read = lambda k, v, keys=keys, values=values: attended(k, v, keys, values)  # noqa: E731
            x = layer.forward(x, table.to(x.dtype), mask, read)
        self.hidden = self.net.norm(x)
        return at_rows(self.net.output(self.hidden), self.going, B)

    @torch.inference_mode()
    def keep(self, nodes: Tensor) -> None:
        """nodes [R, W], -1 for none: their keys and values go where their positions are."""
        (nodes,) = self._of_going(nodes)
        if not self.static:
            row, column = (nodes >= 0).nonzero(as_tuple=True)
            node = nodes[row, column]
        else:  # how many there are would be asked for: the last one is written in place of what is none
            node = torch.where(nodes < 0, nodes.amax(1, keepdim=True).clamp(min=0), nodes)
            row = torch.arange(len(nodes), device=nodes.device)[:, None]
        to = self.slots[row, node]
        if not self.static:
            self.fed = max(self.fed, int(to.max()) + 1) if len(to) else self.fed
        self._see(row, to)
        for x in flat(self.cache) if self.whole is None else [self.whole]:
            x[..., row, to, :, :] = x[..., row, self.behind + node, :, :]
        if self.features is not None:
            self.features[self.going[row], to - self.prefix + 1] = self.hidden[row, node]


Pass = Callable[[Any, Tensor, Tensor, Tensor | None, Tensor, list[tuple[Tensor, Tensor]], int], Tensor]


def a_pass(
    net: Any,
    x: Tensor,
    slots: Tensor,
    places: Tensor | None,
    on: Tensor,
    cache: list[tuple[Tensor, Tensor]],
    live: int,
) -> Tensor:
    """x [R, S, dim] at slots [R, S] through the layers, keys and values into the cache; `on` [R, T] slots are attended,
    of the first `live`; places [R, S] in the rotary table, None: the slots. Hidden states [R, S, dim]."""
    block = one_run(slots, live)
    if block and slots.shape[1] == 1:  # the last of the live ones, which sees them all and itself
        mask = on[:, None, :live].clone()
        mask[..., -1] = True
    else:
        key = torch.arange(live, device=x.device)
        mask = (key <= slots[..., None]) & on[:, None, :live] | (key == slots[..., None])
    at = block or (torch.arange(len(x), device=x.device)[:, None], slots)
    table = net.table[slots if places is None else places].to(x.dtype)
    mask = to_add(mask[:, None], x.dtype)
    for layer, (keys, values) in zip(net.layers, cache, strict=True):
        x = layer.forward(x, table, mask, lambda k, v, keys=keys, values=values: write(keys, values, at, k, v, live))
    return net.norm.forward(x)


def one_run(slots: Tensor, live: int) -> tuple[slice, slice] | None:
    """Where slots [R, S] are, if every row is fed the same ones in order, the last of the first `live`: written as a
    block, which costs a fifth. Only on a CPU, where asking costs nothing."""
    if slots.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    first = live - slots.shape[1]
    same = bool((slots.numpy() == np.arange(first, live)).all())
    return (slice(None), slice(first, live)) if same else None


def to_add(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What attention adds to its scores for a mask bool [...]: once a pass, where it would do it once a layer."""
    if mask.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.where(mask, *added(dtype))
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


@lru_cache
def added(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """To a score that counts, and to one that does not, on a CPU."""
    return torch.zeros((), dtype=dtype, device="cpu"), torch.full((), float("-inf"), dtype=dtype, device="cpu")


def at_hand(net: Any) -> Any:
    """A network whose modules find their parts as any attribute: torch asks a table of names, after all else failed,
    which takes as long as a small op, and a pass at batch 1 asks a hundred times."""
    for module in net.modules() if isinstance(net, torch.nn.Module) else ():
        vars(module).update(module._modules)
    return net


def staying(going: Tensor, positions: Tensor, length: int) -> Tensor | None:
    """Which of the rows `going` [G] still have something to decode at positions [R, S]: bool [G], or None if none
    leaves.

    A row leaves when all its positions are the last or past it, while another row's are not. On a CPU only, where
    reading this costs nothing.
    """
    if positions.device.type != "cpu":
        return None
    at = positions.numpy()  # of so few numbers a call of torch's costs twice as much
    if len(going) == len(at) and at.max() < length - 1:
        return None
    more = np.any(at < length - 1, 1)
    left = more if len(going) == len(more) else more[going.numpy()]
    n = int(left.sum())
    if len(going) < len(more) and n < int(more.sum()):
        raise ValueError("a row goes on that was done in an earlier pass")
    return torch.from_numpy(left) if 0 < n < len(going) else None


def close_up(x: Tensor, left: Tensor) -> Tensor:
    """The rows of x [G, ...] that are `left` [G] bool, in any order: the last of them move to where others were."""
    n = int(left.sum())
    x[(~left[:n]).nonzero()[:, 0]] = x[n + left[n:].nonzero()[:, 0]]
    return x[:n]


def flat(cache: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Keys and values of the first layer, of the second, ..."""
    return [x for layer in cache for x in layer]


def begin_again(
    mine: Any, fresh: Any, rows: Tensor, prefixes: tuple[int, int], cache: list[Tensor], theirs: list[Tensor]
) -> None:
    """A batch's keys and values in `rows` [B] bool become those of other prompts, and its `on` and `shift` likewise.

    prefixes  slots before the picture, of the batch and of the new rows: prompts end where pictures begin, so the
              shorter ones have more padding on their left. In the cache there is room for the longer.
    """
    gap, more = max(prefixes[0] - prefixes[1], 0), max(prefixes[1] - prefixes[0], 0)
    if more:
        mine.on, mine.shift = F.pad(mine.on, (more, 0)), None if mine.shift is None else mine.shift + more
    at = rows.nonzero()[:, 0].to(mine.on.device)
    mine.on[at] = F.pad(fresh.on, (gap, 0))
    if mine.shift is not None:
        mine.shift[at] = fresh.shift + gap
    for x, y in zip(cache, theirs, strict=True):
        x[at, gap : gap + prefixes[1]] = y[:, : prefixes[1]]


def at_rows(x: Tensor, rows: Tensor, count: int) -> Tensor:
    """x [G, ...] of `rows` [G] as [count, ...]; the others are zero."""
    return x if len(rows) == count else x.new_zeros(count, *x.shape[1:]).index_copy_(0, rows, x)


def write(keys: Tensor, values: Tensor, at: tuple[Any, Any], k: Tensor, v: Tensor, live: int) -> tuple[Tensor, Tensor]:
    """Put new keys and values in the cache [R, T, H, D]. Beyond a row's position it is stale, and masked."""
    keys[at], values[at] = k, v
    return keys[:, :live], values[:, :live]


class Seen(NamedTuple):
    """What a drafter reads of a batch: the caption first, if it reads that at all, a slot for each of its positions but
    the last."""

    embeddings: Tensor  # [V, dim] of the picture's tokens
    words: Tensor  # [R, before, dim] embeddings of the caption's tokens, each beside the feature that predicted it
    features: Tensor  # [R, before, dim] those features
    on: Tensor  # [R, before] bool: slots that are attended
    table: Tensor  # [places, .., 2] the rotary table, from the first slot's place on
    shift: Tensor | None = None  # [R] how many places a row's slots stand before those of the table


class DrafterNet(nn.Module):
    """EAGLE's network (Li et al. 2024, sec. 4.1): one layer that continues the target's features. A token's embedding
    and the feature that predicted it to the feature that predicts the next, all [B, S, dim]."""

    fc: nn.Linear
    layer: nn.Module
    norm: nn.Module

    def forward(
        self, embeddings: Tensor, features: Tensor, table: Tensor, mask: Tensor, remember: Remember | None = None
    ) -> Tensor:
        return self.norm(self.layer(self.fc(torch.cat([embeddings, features], -1)), table, mask, remember))

    def sees(self, target: Cached, ids: Tensor | None = None) -> Seen:
        """What it reads of a batch; ids [R, P] of the prompts, where they are words."""
        raise NotImplementedError


class EagleDrafter:
    """A `protocol.Drafter` of a batch that is being decoded; it makes the target keep its features by position.

    Ours sees the picture alone: what it knows of the caption is in the features. A released one has `before` slots for
    the caption before those of the picture.
    """

    def __init__(self, net: DrafterNet, target: Cached, ids: Tensor | None = None):
        """ids [R, P]: see `DrafterNet.sees`."""
        seen, rows, at = net.sees(target, ids), len(target.last), target.last
        self.net, self.target = net, target
        self.embeddings, self.table = seen.embeddings, seen.table
        # its own: rows that are done leave it in place, as they leave the target's
        self.shift = None if seen.shift is None else seen.shift.clone()
        self.before = seen.features.shape[1]
        # at position + 1; the target writes them
        self.features = target.features = at.new_zeros(rows, target.length + 1, at.shape[-1])
        shape = (rows, self.before + target.length, *target.net.key_shape)
        self.keys, self.values = at.new_zeros(shape), at.new_zeros(shape)
        self.on = F.pad(seen.on, (0, target.length), value=True)  # [rows, slots] that are attended
        # rows whose pictures are not done: keys, values, on and shift hold these alone
        self.going = torch.arange(rows, device=at.device)
        if self.before:
            self._read(seen)

    @torch.inference_mode()
    def _read(self, seen: Seen) -> None:
        """The caption into the cache."""
        slots = torch.arange(n := self.before, device=seen.features.device)
        causal = slots <= slots[:, None]
        mask = (causal & seen.on[:, None] | (slots == slots[:, None]))[:, None]

        def remember(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            self.keys[:, :n], self.values[:, :n] = k, v
            return k, v

        self.net.forward(seen.words, seen.features, self._turned(slots[None], seen.features.dtype), mask, remember)

    @torch.inference_mode()
    def join(self, rows: Tensor, fresh: "EagleDrafter") -> None:
        """See TokenModel; the target forgets their features."""
        prefixes, more = (self.before, fresh.before), fresh.before - self.before
        if more > 0:
            self.keys, self.values = (F.pad(x, (0, 0, 0, 0, more, 0)) for x in (self.keys, self.values))
        begin_again(self, fresh, rows, prefixes, *([d.keys, d.values] for d in (self, fresh)))
        self.before = max(prefixes)

    def _turned(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """The rotary table at slots [G or 1, S]."""
        places = slots if self.shift is None else (slots - self.shift[:, None]).clamp(min=0)
        return self.table[places].to(dtype)

    @torch.inference_mode()
    def logits(self, tokens: Tensor, positions: Tensor, sources: Tensor) -> Tensor:
        """tokens, positions, sources [R, S] -> logits [R, S, V]; see Drafter."""
        left, B = staying(self.going, positions, self.target.length), len(tokens)
        if left is not None:
            held = (self.going, self.keys, self.values, self.on)
            self.going, self.keys, self.values, self.on = (close_up(x, left) for x in held)
            self.shift = None if self.shift is None else close_up(self.shift, left)
        tokens, positions, sources = tokens[self.going], positions[self.going], sources[self.going]
        self.rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        features = self.features[self.going[:, None], sources.clamp(min=-1) + 1]
        slots = positions + self.before
        self.live = self.on.shape[1] if self.target.static else int(slots.max()) + 1  # as in the target
        key = torch.arange(self.live, device=slots.device)
        mask = ((key <= slots[..., None]) & self.on[:, None, : self.live])[:, None]

        def remember(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            self.keys[self.rows, slots], self.values[self.rows, slots] = k, v
            return self.keys[:, : self.live], self.values[:, : self.live]

        output = self.net.forward(
            self.embeddings[tokens], features, self._turned(slots, features.dtype), mask, remember
        )
        self.last = slots[:, -1:]
        self.shown: list[Tensor] = []  # parents of the tree's nodes, call by call
        self.predicted = output[:, -1:]  # features: of the last token written, then of the tree's nodes
        return at_rows(self.target.net.output(output), self.going, B)

    @torch.inference_mode()
    def tree(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """tokens, positions, parents [R, S] -> logits [R, S, V]; see Drafter."""
        B, S = tokens.shape
        tokens, parents, positions = (x[self.going] for x in (tokens, parents, positions))
        at = positions.clamp(max=self.target.length - 1) + self.before
        self.shown.append(parents)
        above = ancestors(torch.cat(self.shown, 1))[:, -S:]
        key = torch.arange(self.live, device=at.device)
        written = ((key <= self.last) & self.on[:, : self.live])[:, None].expand(-1, S, -1)
        mask = torch.cat([written, above], -1)[:, None]

        end = self.live + above.shape[2]
        if end > self.keys.shape[1]:
            room = (0, 0, 0, 0, 0, self.on.shape[1] + above.shape[2] - self.keys.shape[1])
            self.keys, self.values = F.pad(self.keys, room), F.pad(self.values, room)

        def remember(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            self.keys[:, end - S : end], self.values[:, end - S : end] = k, v  # behind all that was written
            return self.keys[:, :end], self.values[:, :end]

        features = self.predicted[self.rows, parents + 1]
        output = self.net.forward(self.embeddings[tokens], features, self._turned(at, features.dtype), mask, remember)
        self.predicted = torch.cat([self.predicted, output], 1)
        return at_rows(self.target.net.output(output), self.going, B)
