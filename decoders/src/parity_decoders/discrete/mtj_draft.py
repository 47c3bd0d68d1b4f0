"""`mtj` whose distributions a small model corrects to the tokens before them: the coarse step of a parareal
iteration."""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor

from parity_decoders.counts import Counts
from parity_decoders.discrete.mtj import FLOOR, Likeliest, PickWinners, decode_trajectories
from parity_decoders.errors import DecodingError
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel, TreePass
from parity_decoders.steps import Step
from parity_decoders.trees import Tree
from parity_decoders.window import Window

CLAIM = "lossless"
ORIGIN = "project"
REFILLS = True
COUPLED_WITH: dict = {}  # its tokens are those of `ar` whatever its options
NEEDS = "draft"
FAR = 0.33  # total variation of q and q' from which on a draw is taken as fully unsure
SOURCE = "this project, 2026: docs/explanation/jacobi.md; Lions, Maday & Turinici 2001 (parareal)"


class Nodes(NamedTuple):
    """The distributions after the nodes of the last pass."""

    positions: Tensor  # [B, S] the position whose distribution a node gives; -1 for a missing node
    p: Tensor  # [B, S, V] log-probabilities of the target after the node
    q: Tensor  # [B, S, V] log-probabilities of the draft model after it


class Parareal:
    """Predicts a slot's distribution after new tokens as q' (p / q)^trust, where q' is the draft model's distribution
    after these tokens.

    p and q are the distributions of target and draft model after a node of the last pass: of the nodes that give the
    slot's distribution, the one whose q is nearest to q'. The further q is from q', the less p / q is trusted, and the
    less certain is the winner.
    """

    predicts_first_pass = True

    def __init__(self, draft: Any, rounds: int, sure: float, unsure: float, doubt: float):
        """Set the draft model, a TokenModel, and the options of `mtj_draft`."""
        self.draft = draft
        self.rounds = rounds
        self.sure = sure
        self.unsure = unsure
        self.doubt = doubt

    def prepare(self, slots: Window, S: int, K: int) -> None:
        """Make buffers of the distributions after the nodes of a pass. See Foresight."""
        self.slots = slots
        zeros = slots.noise.keys.new_zeros(len(slots.noise.keys), S, slots.model.vocab, dtype=slots.noise.dtype)
        self.nodes = Nodes(slots.noise.keys.new_zeros(zeros.shape[:2]), zeros, zeros.clone())

    def update(self, tree: Tree, evaluated: TreePass, path: Tensor, p: Tensor, source: Tensor) -> None:
        """Store the distributions p of the pass and the draft model's of the same tree. See Foresight."""
        q = self.to_log_probs(self.read_tree(tree, evaluated, path, source))
        positions = tree.positions + 1
        new = Nodes(positions.masked_fill(tree.missing, -1), p.log().clamp(min=FLOOR), q)
        for stored, x in zip(self.nodes, new, strict=True):
            stored.copy_(x)

    def read_tree(self, tree: Tree, evaluated: TreePass, path: Tensor, source: Tensor) -> Tensor:
        """Compute the draft model's logits [B, S, V] after the nodes of the last pass, and let it keep those that
        became final. path, source: see Foresight."""
        read = self.draft.tree(tree.tokens, tree.positions, tree.parents)
        self.draft.keep(read, torch.where(path, torch.arange(path.shape[1], device=path.device), -1))
        logits: Tensor = read.logits
        return logits

    def predict_chain(
        self, slots: Window, probs: Tensor, e: Tensor, changed: Tensor, pick_winners: PickWinners
    ) -> tuple[Tensor, Tensor]:
        """Predict the winner of each slot [B, W], and log-probabilities [B, W, V] of winning, in `rounds` passes of the
        draft model, each over the winners of the one before, the first over those of `probs` [B, W, V]. e: exponential
        noise of the draws. See Foresight."""
        draft = pick_winners(probs / e, slots.positions)
        self.log_e = e.log()
        for _ in range(self.rounds):
            feed = torch.cat([slots.line.read_last_token(), draft[:, :-1]], 1)
            q = self.draft.logits(feed, (slots.positions - 1).clamp(max=slots.model.length - 1))
            chances = self.score_winners(self.to_log_probs(q), slots.positions, self.log_e)
            draft = pick_winners(chances, slots.positions)
        return draft, chances

    def begin_branches(self, chain: Likeliest) -> None:
        """Begin a tree of the draft model below the last final token; it has read the chain. See Foresight."""
        self.n_ranks = chain.tokens.shape[2]
        self.winners = chain.tokens.flatten(1)
        root = self.slots.line.read_last_token()
        # tokens, parents and offsets of the draft model's nodes
        self.grown: tuple[Tensor, ...] = root, torch.full_like(root, -1), torch.zeros_like(root)

    def predict_children(self, candidates: Tensor) -> Tensor:
        """Predict the winners after each candidate [B, m] in a pass of the draft model over all branches so far. See
        Foresight."""
        slots, m = self.slots, candidates.shape[1]
        tokens, places = self.look_up(candidates)
        # parent -1 is a node of the chain, which the draft model has read; branch i is node i + 1
        parents = (candidates // self.n_ranks - slots.size).clamp(min=-2) + 1
        new = (tokens, parents, places + 1)
        tokens, parents, offset = self.grown = tuple(torch.cat(x, 1) for x in zip(self.grown, new, strict=True))
        q = self.grow(tokens, slots.line.frontier[:, None] - 1 + offset, parents)[:, -m:]
        child_slots = offset[:, -m:]
        chances = self.score_winners(
            self.to_log_probs(q), slots.positions.gather(1, child_slots), self.log_e[slots.line.rows, child_slots]
        )
        best = chances.topk(self.n_ranks)
        self.winners = torch.cat([self.winners, best.indices.flatten(1)], 1)
        is_past = child_slots == slots.size - 1
        return best.values.clamp(min=FLOOR).masked_fill(is_past[..., None], -torch.inf)

    def grow(self, tokens: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Compute the draft model's logits [B, S, V] after the nodes of a tree: tokens, positions, parents [B, S]."""
        logits: Tensor = self.draft.tree(tokens, positions, parents).logits
        return logits

    def look_up(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Look up tokens and slots of candidates [B, m]. See Foresight."""
        parents, W = candidates // self.n_ranks, self.slots.size
        after_branch = self.grown[2].gather(1, (parents - W + 1).clamp(min=0))
        return self.winners.gather(1, candidates), torch.where(parents < W, parents, after_branch)

    @staticmethod
    def to_log_probs(logits: Tensor) -> Tensor:
        """Turn the draft model's logits into log-probabilities."""
        return logits.log_softmax(-1).clamp(min=FLOOR)

    def score_winners(self, log_q: Tensor, positions: Tensor, log_e: Tensor) -> Tensor:
        """Compute log-probabilities [B, n, V] of winning the draws of positions [B, n]; log_q and log_e [B, n, V] are
        the logarithms of q' and e."""
        usable = (self.nodes.positions[:, None] == positions[..., None]) & (self.slots.line.age > 0)[..., None]
        affinity = (log_q / 2).exp() @ (self.nodes.q / 2).exp().mT  # [B, n, S] Bhattacharyya coefficients
        nearest = torch.where(usable, affinity, -1).max(-1)
        p, q = (x[self.slots.line.rows, nearest.indices] for x in (self.nodes.p, self.nodes.q))
        unknown = (nearest.values < 0)[..., None]  # no node has the distribution, so q' itself is taken
        distance = torch.where(unknown, 1, (log_q.exp() - q.exp()).abs().sum(-1, keepdim=True) / 2)  # total variation
        trust = torch.where(unknown, 0, 1 - self.doubt * distance)
        probs = (log_q + trust * (p - q)).log_softmax(-1)
        temperature = self.sure + (self.unsure - self.sure) * (distance / FAR).clamp(max=1)
        return ((probs - log_e) / temperature).log_softmax(-1)


def mtj_draft(
    model: TokenModel,
    start: Tensor,
    *,
    noise: Noise,
    window: Annotated[int, Interval(ge=1, le=4096), Counts("positions", small=3, most="length")] = 32,
    branches: Annotated[int, Interval(ge=0, le=4096)] = 32,
    depth: Annotated[int, Interval(ge=1, le=64), Counts("positions", small=2)] = 3,
    ranks: Annotated[int, Interval(ge=1, le=64)] = 8,
    rounds: Annotated[int, Interval(ge=1, le=64)] = 3,
    sure: Annotated[float, Interval(gt=0, le=100)] = 0.12,
    unsure: Annotated[float, Interval(gt=0, le=100)] = 0.9,
    doubt: Annotated[float, Interval(ge=0, le=1)] = 0.6,
) -> Iterator[Step]:
    """Run `mtj` with a draft model that predicts how distributions change with the tokens before them: after a
    correction, and on each branch.

    window, branches, depth, ranks  as in `mtj`
    rounds  passes of the draft model over the window between two passes of the target; beside these one for each level
            of the branches, and one over the tree
    sure    temperature of a slot's draw if the draft model's distribution is the same after the new tokens as after the
            old
    unsure  the same if these distributions are far from each other
    doubt   how much less p / q is trusted the further they are
    """
    draft = getattr(model, "draft", None)
    if draft is None:
        raise DecodingError("mtj_draft: the model has no draft model; allowed: one whose attribute `draft` is one")
    foresight = Parareal(draft, rounds, sure, unsure, doubt)
    return decode_trajectories(model, start, noise, window, branches, depth, ranks, True, foresight)
