"""VVS: a drafter's tree of which some are taken without being verified, and post-verification that fixes what the
target missed."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from parity_decoders.candidates import draft_tree
from parity_decoders.counts import Counts
from parity_decoders.noise import Noise
from parity_decoders.passes import Passes
from parity_decoders.protocols.discrete import DraftedModel, TreePass
from parity_decoders.sequence_buffer import SequenceBuffer, make_exponentials, make_trials
from parity_decoders.steps import Step
from parity_decoders.trees import Candidates, Tree, count_sequences, find_leaves, find_likeliest, trace_path
from parity_decoders.verification import Descent, descend, find_nearest_tokens, is_idle_on_cpu, sample_token

CLAIM = "lossy"
REFILLS = True
NEEDS = "drafter"
RESTS_ON = "drafted_trees"  # a study of its drafts: how alike they are, and how features age (figures 2 and 3)
SOURCE = "Dong et al. 2025 (VVS), sec. 4, Alg. 1 and 2"


def select_rows(rows: Tensor, chosen: tuple[Tensor, ...], rest: tuple[Tensor, ...]) -> list[Tensor]:
    """Select tensors `chosen` in the given rows [B] bool and `rest` in the others, pair by pair."""
    return [torch.where(rows[:, None], x, y) for x, y in zip(chosen, rest, strict=True)]


def measure_similarity(tree: Candidates, codes: Tensor, depth: int, decay: float, stride: int) -> Tensor:
    """Measure how alike the candidate sequences of a tree are, [B] (eq. 2): at each depth the mean cosine of the codes
    [V, D] of every two sequences that reach it (of every `stride`-th sequence: Alg. 1), averaged over the
    `depth` depths with weights decay^d. A depth that one sequence reaches counts as 1, one that none reaches not."""
    leaf = find_leaves(tree)
    chosen = leaf & ((leaf.cumsum(1) - 1) % stride == 0)
    weight = count_sequences(tree, chosen.to(codes.dtype))
    by_depth = one_hot(tree.depth - 1, depth).to(codes.dtype) * weight[..., None]  # [B, T, D]
    n = by_depth.sum(1)  # [B, depth] number of sequences that reach a depth
    # the sum of the cosines of all ordered pairs, those of a sequence with itself included
    total = (by_depth.transpose(1, 2) @ normalize(codes[tree.tokens], dim=-1)).square().sum(-1)
    mean = torch.where(n > 1, (total - n) / (n * (n - 1)).clamp(min=1), 1.0)
    w = torch.where(n > 0, decay ** torch.arange(depth, dtype=n.dtype, device=n.device), 0)
    return (w * mean).sum(1) / w.sum(1)


def choose_sequence(tree: Candidates, select: str, u: Tensor, depth: int) -> Tensor:
    """Choose a candidate sequence of each row: the likeliest under `select` "confidence", else the one that u [B],
    uniform, picks. Returns its nodes [B, depth], padded with -1."""
    leaf = find_leaves(tree)
    number = (u * leaf.sum(1)).long()[:, None]
    drawn = (leaf.cumsum(1) <= number).sum(1).clamp(max=leaf.shape[1] - 1)
    return trace_path(tree, find_likeliest(tree) if select == "confidence" else drawn, depth)


def measure_staleness(line: SequenceBuffer, s1: int, s2: int, blend: bool) -> Tensor:
    """Return by how many positions [B, 1] features are older than those of the tokens read: by s1, or, with `blend`, by
    s1 and s2 in turn; see `vvs`."""
    one, two = (
        (line.frontier - line.last_frontier)[:, None] + s if s >= 0 else torch.zeros_like(line.age) for s in (s1, s2)
    )
    return torch.where(line.age % 2 == 0, two, one) if blend else one


def take_sequence(line: SequenceBuffer, tree: Candidates, path: Tensor, rows: Tensor, truncate: bool) -> Tensor:
    """Write the tokens of a sequence, nodes `path` [B, depth], into the buffer without verification, in the given rows
    [B] bool; return how many tokens [B] were written. With `truncate`, no more than the sequences' mean length (eq. 1).
    The image's last token is never written, so that it is verified."""
    leaf = find_leaves(tree)
    depth = path.shape[1]
    mean = torch.where(leaf, tree.depth, 0).sum(1) // leaf.sum(1) if truncate else torch.full_like(line.frontier, depth)
    g = (path >= 0).sum(1).minimum(mean).minimum(line.model.length - 1 - line.frontier).clamp(min=0)
    g = torch.where(rows, g, 0)
    drafts = tree.tokens.gather(1, path.clamp(min=0))
    is_taken = torch.arange(depth, device=g.device) < g[:, None]
    line.tokens.scatter_(1, line.next_positions(depth) + 1, torch.where(is_taken, drafts, 0))
    return g


def join_tree(line: SequenceBuffer, g: Tensor, G: int, candidates: Candidates) -> Tree:
    """Make the tree of a pass of the last final token, the g [B] unverified tokens after it (at most G), and the
    candidates below these."""
    chain = torch.arange(G + 1, device=g.device).expand(len(g), -1)
    unverified = line.tokens.gather(1, line.frontier[:, None] + chain)[:, 1:]
    in_chain = chain <= g[:, None]
    below_chain = torch.where(candidates.parents < 0, g[:, None], candidates.parents + G + 1)
    parents = torch.cat([torch.where(in_chain, chain - 1, -1), below_chain], 1)
    offset = torch.cat([torch.where(in_chain, chain, 0), candidates.depth + g[:, None]], 1)
    return Tree(line, torch.cat([unverified, candidates.tokens], 1), parents, offset)


def replace_path(
    tree: Tree, candidates: Candidates, first: int, verified: Descent, p: Tensor, exponential: Tensor
) -> Descent:
    """Replace the accepted path by the likeliest sequence, up to the same length, and draw a token after it (table 4).

    first: node of the tree that is the first of the candidates; p [B, S, V]; exponential [B, D + 1, V].
    """
    likely = trace_path(candidates, find_likeliest(candidates), verified.path.shape[1] - 1)
    n = ((verified.path >= 0).sum(1) - 1).minimum((likely >= 0).sum(1))[:, None]
    is_replaced = torch.arange(likely.shape[1], device=n.device) < n
    path = torch.cat([verified.path[:, :1], torch.where(is_replaced, likely + first, -1)], 1)
    probs = p[torch.arange(len(p), device=n.device)[:, None], path.gather(1, n)]
    drawn = sample_token(probs, exponential.gather(1, n[..., None].expand(-1, 1, p.shape[-1])))
    tokens = torch.cat([tree.tokens.gather(1, path[:, 1:].clamp(min=0)), drawn], 1)
    return Descent(path, tokens.scatter(1, n, drawn))


def finish_pass(tree: Tree, evaluated: TreePass, g: Tensor, G: int, verified: Descent) -> Step:
    """Write the pass's final tokens, the g [B] taken unverified, then the verified ones, and return the step. G: the
    most unverified."""
    line = tree.line
    n = verified.path.shape[1]
    chain = torch.arange(G + 1, device=g.device)
    line.tokens.scatter_(1, (line.frontier + g)[:, None] + torch.arange(n, device=g.device) + 1, verified.tokens)
    nodes = torch.cat([torch.where(chain < g[:, None], chain, -1), verified.path], 1)
    tokens = line.tokens.gather(1, line.next_positions(G + n) + 1)
    return tree.advance(evaluated, tokens, nodes, tree.count_evaluated(G + 1) + g + 1)


@torch.inference_mode()
def vvs(
    model: DraftedModel,
    start: Tensor,
    *,
    noise: Noise,
    total: Annotated[int, Interval(ge=1, le=1024), Counts("nodes", small=12)] = 59,
    depth: Annotated[int, Interval(ge=1, le=16), Counts("positions", small=2)] = 4,
    top_k: Annotated[int, Interval(ge=1, le=64), Counts("tokens", most="vocab")] = 10,
    schedule: Literal["uniform", "dynamic", "off"] = "uniform",
    interval: Annotated[int, Interval(ge=2, le=4096), Counts("positions", small=2)] = 4,
    threshold: Annotated[float, Interval(ge=-1, le=1)] = 0.7,
    decay: Annotated[float, Interval(gt=0, le=1)] = 0.9,
    stride: Annotated[int, Interval(ge=1, le=64)] = 2,
    select: Literal["sample", "confidence"] = "sample",
    truncate: bool = True,
    s1: Annotated[int, Interval(ge=-1, le=64)] = -1,
    s2: Annotated[int, Interval(ge=-1, le=64)] = 0,
    blend: bool = False,
    replace: Annotated[float, Interval(ge=0, le=1)] = 0.0,
    k: Annotated[int, Interval(ge=1, le=65536), Counts("tokens", most="vocab - 1")] = 100,
    delta: Annotated[float, Interval(ge=0, le=1)] = 0.2,
) -> Iterator[Step]:
    """Verify a drafter's tree like `lantern` (with `delta: 0`, `eagle`), but skip verifications: in some steps a draft
    sequence is taken unverified. Such a step and the next, verified one share a pass: the target reads the unverified
    tokens and, below them, the next tree, so its keys and values are exact.

    total, depth, top_k, k, delta  as in `lantern`
    schedule   "uniform": every `interval`-th step is not verified. "dynamic": a step whose drafts are alike by
               `threshold`
    interval   steps between two skipped ones
    threshold  similarity from which a step is skipped
    decay      weight of each further token in the similarity
    stride     every stride-th sequence is compared
    select     the sequence taken unverified: a random one, or the likeliest
    truncate   whether it is cut to the mean length (eq. 1)
    s1         features for drafting after a verified step: -1 the new ones; 0 the last ones known before it; n: n
               positions older
    s2         the same after a skipped step, which produces no new ones
    blend      s1 and s2 take turns by pass (the paper's table 6)
    replace    r, share of verified steps whose accepted tokens are exchanged for those of the likeliest path (table 4)
    """
    line = SequenceBuffer(model, start, 2 * depth + 3)
    nearest_tokens = find_nearest_tokens(model.codebook, k)
    exponential = make_exponentials(line, noise)
    uniform = make_trials(line, noise, min(top_k, model.vocab))
    slot = torch.arange(depth + 1, device=start.device)
    G = 0 if schedule == "off" else depth  # the most tokens that a pass takes unverified
    draft = partial(draft_tree, model.drafter, line, (total, depth, top_k), G + depth + 1)

    def run_pass() -> Step:
        g = torch.zeros_like(line.frontier)
        age = line.age[:, 0]
        staleness = measure_staleness(line, s1, s2, blend)
        candidates = draft(line.last_frontier, line.frontier, staleness)
        skip = age % (interval - 1) == 0
        if schedule == "dynamic":
            skip = measure_similarity(candidates, model.codebook, depth, decay, stride) >= threshold
        if schedule != "off" and not is_idle_on_cpu(skip := skip & (age > 0)):
            path = choose_sequence(candidates, select, noise.uniform("branch", 2 * age), depth)
            g = take_sequence(line, candidates, path, skip, truncate)
            # a row that skips nothing reads its last token again, with the same feature
            staleness = torch.where(g[:, None] > 0, (g + max(s2, 0))[:, None], staleness)
            redrafted = draft(line.frontier, line.frontier + g, staleness)
            candidates = Candidates(*select_rows(g > 0, redrafted, candidates))
        tree = join_tree(line, g, G, candidates)
        p, evaluated = tree.evaluate()
        draws = (exponential.take_next(G + depth + 1), uniform.take_next(G + depth + 1))
        e, u = (torch.take_along_dim(x, (g[:, None] + slot)[..., None], 1) for x in draws)
        verified = descend(p, tree.tokens, tree.follows, g, e, u[:, :-1], nearest_tokens, delta, "counted")
        if replace:
            replaced = replace_path(tree, candidates, G + 1, verified, p, e)
            verified = Descent(*select_rows(noise.uniform("branch", 2 * age + 1) < replace, replaced, verified))
        return finish_pass(tree, evaluated, g, G, verified)

    return Passes(line, run_pass)
