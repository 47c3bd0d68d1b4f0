"""Faults of discrete decoders: carried by two compact decoders, and injected in the shipped ones.

`classical` has a draft model and a bonus token (Leviathan et al. 2023), `jacobi` is speculative Jacobi with a coupled
transport of drafts (as in MC-SJD); without a fault they must pass. What they do at each point of a pass is a function
of `Rules`, and a fault is another function in its place. Faults that short sequences do not show are shipped decoders
with one thing changed: the noise, the distributions they see, or how they verify.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from parity_certify.joint_tests import make_joint_rows
from parity_certify.result_rows import Row
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd
from parity_decoders.discrete.spec import spec
from parity_decoders.engine import Sampled
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.verification import Verified, count_leading, probability, residual, sample_token, verify
from torch import Tensor

from parity.equality.targets import Decoder
from parity.equality.targets.discrete import GUIDED, LongTarget, Target, long_targets, make_real_vocabulary
from parity.models.discrete.tabular import TabularModel, random_table
from tests.equality.faults import (
    FAR,
    Correct,
    Faulty,
    Overridden,
    Trial,
    change_model,
    change_noise,
    make_trials_on_long,
    patch_module,
    renumber,
    share_noise,
    share_noise_in_runs,
    swap_in_small,
)

BLOCK = 3  # number of drafts in a pass of `classical`
TEAM = 4  # number of rows that advance together under the lockstep fault
# Sequences in which the tests must find a fault, if not 10,000; an acceptance .01 too large is a TV of about .01.
NEEDED = {"accept +0.01": 100_000}
WINDOW = 16
LATE = 6  # pass from which faults of reused noise read the same numbers again
SJD = "parity_decoders.discrete.sjd"
# says, bool by positions [B, S] and last position, where distributions are changed
Select = Callable[[Tensor, int], Tensor]


class Carried(NamedTuple):
    """Drafts that stand from the pass before: the first n[b] of row b."""

    n: Tensor  # [B] number of drafts that stand
    drafts: Tensor  # [B, BLOCK]
    probs: Tensor  # [B, BLOCK, V]


def finish_pass(drafts: Tensor, drawn: Tensor, n_accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Assemble the tokens [B, S] of a pass: the first n_accepted [B] drafts, then drawn tokens. Returns them and the
    number of final ones [B], one more than n_accepted."""
    return torch.where(torch.arange(drafts.shape[1]) < n_accepted[:, None], drafts, drawn), n_accepted + 1


def finish_with_unverified(drafts: Tensor, drawn: Tensor, n_accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Assemble the tokens of a pass like `finish_pass`, but keep the draft after the rejected one, too (a fault)."""
    tokens, n_kept = finish_pass(drafts, drawn, n_accepted)
    slots = torch.arange(drafts.shape[1])
    tokens = torch.where((slots == n_kept[:, None]) & (slots < BLOCK), drafts, tokens)
    return tokens, torch.where(n_accepted < BLOCK - 1, n_kept + 1, n_kept)


def advance_in_lockstep(n_kept: Tensor, drafts: Tensor, q: Tensor) -> tuple[Tensor, Carried | None]:
    """Hold rows back to the slowest of their team of TEAM rows (a fault). Returns how many tokens each row keeps [B],
    and the accepted drafts beyond, with their distributions q [B, BLOCK, V], which the next pass tests again."""
    padded = torch.cat([n_kept, n_kept.new_full((-len(n_kept) % TEAM,), BLOCK + 1)])
    slowest = padded.view(-1, TEAM).amin(1).repeat_interleave(TEAM)[: len(n_kept)]
    source = (slowest[:, None] + torch.arange(BLOCK)).clamp(max=BLOCK - 1)
    probs = q.gather(1, source[..., None].expand(-1, -1, q.shape[2]))
    return slowest, Carried((n_kept - 1 - slowest).clamp(min=0), drafts.gather(1, source), probs)


class Rules(NamedTuple):
    """What `classical` and `jacobi` do at each point of a pass."""

    # number(step, slots) gives the index of the noise of slots [1, S] in a pass.
    number: Callable[[int, Tensor], Tensor] = lambda step, slots: step * slots.shape[1] + slots
    uniforms: Callable[[Noise, Tensor], Tensor] = lambda noise, index: noise.uniform("accept", index)
    draft: Callable[[Tensor], Tensor] = lambda q: q  # distribution to draw drafts from, though q is recorded
    accept: Callable[[Tensor, Tensor], Tensor] = lambda u, ratio: u < ratio
    correct: Callable[[Tensor, Tensor], Tensor] = residual  # of (p, q): a rejected draft is redrawn from it
    bonus: Callable[[Tensor, Tensor], Tensor] = lambda p, q: p[:, BLOCK]  # of p and q: distribution of the bonus token
    finish: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = finish_pass
    # advance(n_kept, drafts, q) gives how many tokens a row keeps, and which drafts it carries into the next pass.
    advance: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Carried | None]] = lambda n_kept, *_: (n_kept, None)
    # distribution to record for a window's tokens
    store: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda stays, q, p: p


CORRECT_RULES = Rules()
CLASSICAL = {
    "none": CORRECT_RULES,
    "residual p": Rules(correct=lambda p, q: p),
    "residual |p - q|": Rules(correct=lambda p, q: (p - q).abs()),
    "shared uniform": Rules(uniforms=lambda noise, index: noise.uniform("accept", index[:, :1].expand(index.shape))),
    "accept +0.01": Rules(accept=lambda u, ratio: u < ratio + 0.01),
    "accept +0.05": Rules(accept=lambda u, ratio: u < ratio + 0.05),
    "draft temperature": Rules(draft=lambda q: (q.log() / 0.8).softmax(-1)),
    "bonus from q": Rules(bonus=lambda p, q: q),
    "bonus wrong index": Rules(bonus=lambda p, q: p[:, BLOCK - 1]),
    "unverified kept": Rules(finish=finish_with_unverified),
    "lockstep": Rules(advance=advance_in_lockstep),
    "seed reused": Rules(number=lambda step, slots: slots),
}
JACOBI = {
    "none": CORRECT_RULES,
    "stored q": Rules(store=lambda stays, q, p: torch.where(stays[..., None], q, p)),
    **{fault: CLASSICAL[fault] for fault in ("residual p", "shared uniform", "seed reused")},
}


def compute_probs(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
    """Compute the distributions [B, S, V] of the tokens at `positions` [B, S], given the token before each, tokens [B,
    S]. For positions past the end, any distributions of the right shape."""
    return model.logits(tokens, (positions - 1).clamp(max=model.length - 1)).softmax(-1)


def propose(
    draft_model: TokenModel, token: Tensor, positions: Tensor, index: Tensor, noise: Noise, carried: Carried | None,
    rules: Rules,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Draft tokens for all positions [B, BLOCK + 1] but the last, after `token` [B], one by one; carried drafts stand.
    Returns them [B, BLOCK], their distributions [B, BLOCK, V] and the draft model's distribution of the last position
    [B, V]. index [1, BLOCK + 1] numbers the noise of each slot."""
    drafts, probs = [], []
    for k in range(BLOCK):
        q = compute_probs(draft_model, token[:, None], positions[:, k : k + 1])[:, 0]
        token = sample_token(rules.draft(q), noise.exponential("draft", index[:, k], draft_model.vocab))
        if carried is not None:
            stands = carried.n > k
            token = torch.where(stands, carried.drafts[:, k], token)
            q = torch.where(stands[:, None], carried.probs[:, k], q)
        drafts.append(token)
        probs.append(q)
    after_drafts = compute_probs(draft_model, token[:, None], positions[:, -1:])[:, 0]
    return torch.stack(drafts, 1), torch.stack(probs, 1), after_drafts


def find_last_token(previous: Tensor, tokens: Tensor, n_kept: Tensor) -> Tensor:
    """Find the last final token [B] after n_kept [B] of tokens [B, S] became final; `previous` [B] if none did."""
    return torch.cat([previous[:, None], tokens], 1).gather(1, n_kept[:, None])[:, 0]


@torch.inference_mode()
def classical(model: TokenModel, start: Tensor, *, noise: Noise, rules: Rules = CORRECT_RULES) -> Iterator[Step]:
    """Decode by speculative sampling (Leviathan et al. 2023) with a random table as draft model: draft BLOCK tokens,
    verify them in one pass, draw one more from p if all are accepted. Other `rules` plant a fault."""
    B, L, V = len(start), model.length, model.vocab
    draft_model = TabularModel(random_table(V, L, torch.Generator().manual_seed(1)), L, B)
    slots = torch.arange(BLOCK + 1)[None]
    frontier, last_token = torch.zeros_like(start), start
    carried: Carried | None = None
    for step in count():
        if int(frontier.min()) >= L:
            return
        index = rules.number(step, slots)
        positions = frontier[:, None] + slots
        drafts, q, q_bonus = propose(draft_model, last_token, positions, index, noise, carried, rules)
        p = compute_probs(model, torch.cat([last_token[:, None], drafts], 1), positions)
        u = rules.uniforms(noise, index)[:, :BLOCK]
        n_accepted = count_leading(rules.accept(u, probability(p[:, :BLOCK], drafts) / probability(q, drafts)))
        probs = torch.cat([rules.correct(p[:, :BLOCK], q), rules.bonus(p, q_bonus)[:, None]], 1)
        drawn = sample_token(probs, noise.exponential("sample", index, V))
        tokens, n_kept = rules.finish(torch.cat([drafts, drafts[:, :1]], 1), drawn, n_accepted)
        n_kept, carried = rules.advance(n_kept, drafts, q)
        n_kept = n_kept.minimum(L - frontier)
        yield Step(tokens, n_kept, frontier)
        last_token, frontier = find_last_token(last_token, tokens, n_kept), frontier + n_kept


@torch.inference_mode()
def jacobi(
    model: TokenModel, start: Tensor, *, noise: Noise, window: int = 3, rules: Rules = CORRECT_RULES
) -> Iterator[Step]:
    """Decode by speculative Jacobi, verifying a window by maximal coupling: each draft, also a later one, is kept with
    probability min(1, p / q), else redrawn from the residual, so its distribution is now p. Other `rules` plant a
    fault."""
    B, L, V = len(start), model.length, model.vocab
    slots = torch.arange(window)[None]
    frontier, last_token = torch.zeros_like(start), start
    draft = (noise.uniform("draft", slots) * V).long().clamp(max=V - 1)
    q = torch.full((B, window, V), 1 / V, dtype=noise.dtype)
    for step in count(1):
        if int(frontier.min()) >= L:
            return
        index = rules.number(step, slots)
        p = compute_probs(model, torch.cat([last_token[:, None], draft[:, :-1]], 1), frontier[:, None] + slots)
        stays = rules.uniforms(noise, index) * probability(q, draft) < probability(p, draft)
        tokens = torch.where(stays, draft, sample_token(rules.correct(p, q), noise.exponential("sample", index, V)))
        stored = rules.store(stays, q, p)
        n_kept = (count_leading(stays) + 1).clamp(max=window).minimum(L - frontier)
        yield Step(tokens, n_kept, frontier)
        last_token, frontier = find_last_token(last_token, tokens, n_kept), frontier + n_kept
        source = n_kept[:, None] + slots
        is_new = source >= window
        source = source.clamp(max=window - 1)
        random_drafts = (noise.uniform("draft", (step + 1) * window + slots) * V).long().clamp(max=V - 1)
        draft = torch.where(is_new, random_drafts, tokens.gather(1, source))
        q = torch.where(is_new[..., None], 1 / V, stored.gather(1, source[..., None].expand(-1, -1, V)))


VARIANTS: dict[str, tuple[Decoder, str]] = {  # decoders of short trials and their faults, by name
    **{f"classical: {fault}": (partial(classical, rules=rules), fault) for fault, rules in CLASSICAL.items()},
    **{f"jacobi: {fault}": (partial(jacobi, rules=rules), fault) for fault, rules in JACOBI.items()},
}


def make_trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Yield a trial of n sequences for each of VARIANTS on a random table of 5 tokens out of 3, and one of 10 n as well
    for a fault of NEEDED. draws: of the Monte-Carlo null; `seeds` is not read."""
    target = Target("mutants 3x5", random_table(3, 5, torch.Generator().manual_seed(0)), 5, 5)

    def sample(decoder: Decoder, size: int, seed: int) -> list[Row]:
        """Draw `size` sequences with the decoder and return the rows of the joint tests of their counts."""
        rng = np.random.default_rng([seed, size])
        counts = np.bincount(target.draw(decoder, size, seed, {}, threads), minlength=len(target.probs))
        return make_joint_rows("mutants", counts, target.probs, 3, 5, rng=rng, draws=draws, model=target.name)

    for method, (decoder, fault) in VARIANTS.items():
        for size in (n, 10 * n) if fault in NEEDED else (n,):
            yield Trial(method, fault, partial(sample, decoder, size), size >= NEEDED.get(fault, 10_000))


# --- Faults that short sequences do not show, injected in the shipped decoders


def reuse_late_index(index: Tensor) -> Tensor:
    """Map noise indices, WINDOW a pass, so that passes from LATE on read the numbers of pass LATE."""
    return torch.where(index < LATE * WINDOW, index, LATE * WINDOW + index % WINDOW)


def replace_logits(decoder: Decoder, logits: Callable[..., Tensor]) -> Decoder:
    """Make the decoder see logits(model, tokens, positions) in the place of the model's logits, after guidance."""
    return change_model(decoder, lambda model: Overridden(model, "logits", logits))


def flatten(logits: Tensor, share: float) -> Tensor:
    """Compute the logits [..., V] of distributions mixed with a share of the uniform distribution over tokens of finite
    logits."""
    p, possible = logits.softmax(-1), logits > float("-inf")
    return ((1 - share) * p + share * possible / possible.sum(-1, keepdim=True)).log()


def flatten_probs(decoder: Decoder, share: float, select: Select = lambda positions, _: positions >= 0) -> Decoder:
    """Make the decoder see distributions flattened by a share (see `flatten`) where select(positions [B, S], last)
    holds, given the positions of the tokens to draw and the last position; by default everywhere."""

    def logits(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute the model's logits, flattened where `select` holds."""
        right = model.logits(tokens, positions)
        return torch.where(select(positions + 1, model.length - 1)[..., None], flatten(right, share), right)

    return replace_logits(decoder, logits)


def mix_uniform(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
    """Compute logits of the model's distributions mixed with .001 of the uniform distribution over all tokens,
    impossible ones too."""
    logits = model.logits(tokens, positions)
    return (0.999 * logits.softmax(-1) + 0.001 / logits.shape[-1]).log()


def flatten_after_rollback(model: TokenModel) -> Overridden:
    """Make a model whose distributions are flattened by .3 in a row's pass after one that kept two tokens or fewer."""
    previous: Tensor | None = None  # first position of each row in the previous pass

    def logits(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute the model's logits, flattened in rows whose first position moved by 2 at most since the last call."""
        nonlocal previous
        right = model.logits(tokens, positions)
        first = positions[:, 0]
        is_deep = torch.zeros_like(first) > 0 if previous is None else first - previous <= 2
        previous = first
        return torch.where(is_deep[:, None, None], flatten(right, 0.3), right)

    return Overridden(model, "logits", logits)


def change_sampling(decoder: Decoder, **settings: Any) -> Decoder:
    """Make the decoder run on the guided model with changed sampling settings, such as guidance=1.6."""
    return change_model(decoder, lambda model: Sampled(model.network, replace(GUIDED, **settings)))


def accept_last(p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, *rest: Any) -> Verified:
    """Verify drafts, but accept the last one of a window whenever p allows it at all (a fault)."""
    is_last = torch.arange(u.shape[1]) == WINDOW - 1
    return verify(p, torch.where(is_last[:, None], p, q), draft, point & ~is_last, u, *rest)


def decode_with_late_fault(model: TokenModel, start: Tensor, *, noise: Noise, **options: Any) -> Iterator[Step]:
    """Decode as `sjd` does, but redraw rejected drafts from the target's distribution instead of the residual from
    position FAR on (a fault)."""
    asked_positions = torch.zeros(0)  # positions of the tokens that the last call of `logits` gave the distributions of

    def logits(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
        nonlocal asked_positions
        asked_positions = positions + 1
        return model.logits(tokens, positions)

    def verify_late(p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, e: Tensor, *rest: Any) -> Verified:
        """Verify drafts, but redraw a rejected one at or beyond position FAR from p."""
        right = verify(p, q, draft, point, u, e, *rest)
        is_corrected = (torch.arange(p.shape[1]) == right.kept[:, None] - 1) & (right.tokens != draft) & ~point
        is_late = asked_positions[:, : p.shape[1]] >= FAR
        return right._replace(tokens=torch.where(is_corrected & is_late, sample_token(p, e), right.tokens))

    return replace_logits(patch_module(SJD, verify=verify_late).sjd, logits)(model, start, noise=noise, **options)


class Coarse(Noise):
    """Noise whose exponentials are of uniforms of 24 bits, as many as float32 holds; one next to 1 is rounded to 1 (a
    fault)."""

    def exponential(self, use: str, index: Tensor, n: int) -> Tensor:
        leading = self._draw(use, index, n, torch.float64, lambda x: (x - x.floor()).mul_(2**24).floor_()).float()
        return leading.add_(0.5).mul_(2.0**-24).log_().neg_().clamp_(min=torch.finfo(torch.float32).tiny)


FLATTER = "drawn flatter by a tenth beyond token 5"
CORRECT: Correct = {"ar": (ar, {}), "sjd": (sjd, {"window": WINDOW}), "spec": (spec, {"gamma": 4})}
LONG: Faulty = {
    "sjd: late reuse": (renumber(sjd, reuse_late_index), f"noise used again from pass {LATE} on", "chain"),
    "sjd: beyond 5": (flatten_probs(sjd, 0.1, lambda positions, _: positions > 5), FLATTER, "hidden"),
    "spec: beyond 5": (flatten_probs(spec, 0.1, lambda positions, _: positions > 5), FLATTER, "counter"),
    "sjd: last": (
        flatten_probs(sjd, 0.5, lambda positions, end: positions >= end), "last token drawn flatter by half", "chain"
    ),
    "sjd: border": (patch_module(SJD, verify=accept_last).sjd, "last draft of the window unverified", "chain"),
    "sjd: tolerance": (partial(sjd, tolerance=0.02), "accept +0.02", "counter"),
    "sjd: one in 50": (flatten_probs(sjd, 0.02), "every 50th token uniform", "order 2"),
    "ar: twins": (change_noise(ar, share_noise), "rows share their noise", "hidden"),
    "ar: twins of 9 to 64": (
        change_noise(ar, share_noise_in_runs), "rows share their noise in batches of 9 to 64", "chain"
    ),
    "sjd: accept reuse": (
        renumber(sjd, reuse_late_index, only="accept"), f"acceptance uniforms again from pass {LATE} on", "chain"
    ),
    "sjd: late residual": (decode_with_late_fault, f"residual p from token {FAR} on", "far"),
    "sjd: row border": (
        flatten_probs(sjd, 0.3, lambda positions, _: positions % 16 == 0), "first of every row drawn flatter", "order 2"
    ),
    "sjd: ahead": (  # changes the rows that are ahead of the slowest of their batch
        flatten_probs(sjd, 0.1, lambda positions, _: positions[:, :1] > positions[:, :1].min()),
        "drawn flatter where rows differ in place", "chain",
    ),
    "sjd: alone": (swap_in_small(sjd, flatten_probs(sjd, 0.3), 1), "drawn flatter when alone in the batch", "chain"),
    "spec: small batch": (
        swap_in_small(spec, flatten_probs(spec, 0.3), 3), "drawn flatter in batches of three or fewer", "chain"
    ),
    "sjd: rollback": (
        change_model(sjd, flatten_after_rollback), "drawn flatter after a rollback of 14 or more", "chain"
    ),
    "sjd: one in 1000": (replace_logits(sjd, mix_uniform), "a token in 1,000 is any", "hash"),
    "ar: coarse": (
        change_noise(ar, lambda noise: Coarse(noise.keys, noise.dtype)), "exponentials of 24 bits", "real"
    ),
    "sjd: guidance": (change_sampling(sjd, guidance=1.6), "guidance 1.6 for 2", "guided"),
    "sjd: top-k": (change_sampling(sjd, top_k=6), "top-k 6 for 5", "guided"),
}  # fmt: skip


def make_long_trials(n: int) -> Iterator[Trial]:
    """Yield a trial of about n tokens on long targets for each decoder of CORRECT and LONG."""

    def make_targets(reach: Mapping[str, int], size: int) -> list[LongTarget]:
        return [*long_targets(reach, size), make_real_vocabulary(reach)]

    yield from make_trials_on_long("discrete", CORRECT, LONG, make_targets, n)
