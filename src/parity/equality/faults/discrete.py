"""Faults of discrete decoders: carried by two compact decoders, and planted in the shipped ones.

`classical` has a draft model and a bonus token (Leviathan et al. 2023), `jacobi` is speculative Jacobi with a coupled
transport of drafts (as in MC-SJD); without a fault they must pass. What they do at each point of a pass is a function
of `Rules`, and a fault is another function in its place. Faults that short sequences do not show are shipped decoders
with one thing changed: the noise, the laws they see, or how they verify.
"""

from collections.abc import Callable, Iterator, Sequence
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
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.sampling import Sampled
from parity_decoders.steps import Step
from parity_decoders.verification import Verified, count_leading, probability, race, residual, verify
from torch import Tensor

from parity.equality.faults import (
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
from parity.equality.targets import Decoder
from parity.equality.targets.discrete import Target, long_targets
from parity.models.discrete.tabular import TabularModel, random_table

BLOCK = 3  # drafts of `classical`
TEAM = 4  # rows of the lockstep fault that advance together
# Sequences in which a fault must show; an acceptance .01 too large is a TV of about .01.
NEEDED = {"accept +0.01": 100_000}
WINDOW = 16
LATE = 6  # the pass from which noise is used again
SJD = "parity_decoders.discrete.sjd"
Select = Callable[[Tensor, int], Tensor]  # where a fault is


class Carried(NamedTuple):
    """Drafts that stand from the pass before: the first n[b] of row b."""

    n: Tensor  # [B]
    drafts: Tensor  # [B, BLOCK]
    laws: Tensor  # [B, BLOCK, V]


def finish_pass(drafts: Tensor, drawn: Tensor, n_accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Assemble the tokens of a pass from drafts and the tokens drawn behind them [B, S]; also count the final ones."""
    return torch.where(torch.arange(drafts.shape[1]) < n_accepted[:, None], drafts, drawn), n_accepted + 1


def finish_with_unverified(drafts: Tensor, drawn: Tensor, n_accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Assemble the tokens of a pass, but keep the draft behind the rejected one, too."""
    tokens, n_kept = finish_pass(drafts, drawn, n_accepted)
    slots = torch.arange(drafts.shape[1])
    tokens = torch.where((slots == n_kept[:, None]) & (slots < BLOCK), drafts, tokens)
    return tokens, torch.where(n_accepted < BLOCK - 1, n_kept + 1, n_kept)


def advance_in_lockstep(n_kept: Tensor, drafts: Tensor, q: Tensor) -> tuple[Tensor, Carried | None]:
    """Hold rows back to the slowest of their team; their accepted drafts are put to the test again."""
    padded = torch.cat([n_kept, n_kept.new_full((-len(n_kept) % TEAM,), BLOCK + 1)])
    slowest = padded.view(-1, TEAM).amin(1).repeat_interleave(TEAM)[: len(n_kept)]
    source = (slowest[:, None] + torch.arange(BLOCK)).clamp(max=BLOCK - 1)
    laws = q.gather(1, source[..., None].expand(-1, -1, q.shape[2]))
    return slowest, Carried((n_kept - 1 - slowest).clamp(min=0), drafts.gather(1, source), laws)


class Rules(NamedTuple):
    """What `classical` and `jacobi` do at each point of a pass."""

    # the numbers of slots [1, S], by which noise is read
    number: Callable[[int, Tensor], Tensor] = lambda step, slots: step * slots.shape[1] + slots
    uniforms: Callable[[Noise, Tensor], Tensor] = lambda noise, index: noise.uniform("accept", index)
    draft: Callable[[Tensor], Tensor] = lambda q: q  # the law that drafts are drawn from; q is recorded
    accept: Callable[[Tensor, Tensor], Tensor] = lambda u, ratio: u < ratio
    correct: Callable[[Tensor, Tensor], Tensor] = residual  # the unnormalised law that replaces a rejected draft
    bonus: Callable[[Tensor, Tensor], Tensor] = lambda p, q: p[:, BLOCK]  # the law behind the drafts, of p and of q
    finish: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = finish_pass
    # how many tokens a row keeps, and which drafts it carries into the next pass
    advance: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Carried | None]] = lambda n_kept, *_: (n_kept, None)
    store: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda stays, q, p: p  # the law of each token of a window


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


def compute_laws(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
    """Compute laws at `positions` [B, S] after the tokens [B, S] before each; past the end, those of the last one."""
    return model.logits(tokens, (positions - 1).clamp(max=model.length - 1)).softmax(-1)


def propose(
    draft_model: TokenModel, token: Tensor, positions: Tensor, index: Tensor, noise: Noise, carried: Carried | None,
    rules: Rules,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Draft tokens [B, BLOCK] for all positions [B, BLOCK + 1] but the last, after `token` [B]. Also returns their
    laws and the draft model's law [B, V] of the last position."""
    drafts, laws = [], []
    for k in range(BLOCK):
        q = compute_laws(draft_model, token[:, None], positions[:, k : k + 1])[:, 0]
        token = race(rules.draft(q), noise.exponential("draft", index[:, k], draft_model.vocab))
        if carried is not None:
            stands = carried.n > k
            token = torch.where(stands, carried.drafts[:, k], token)
            q = torch.where(stands[:, None], carried.laws[:, k], q)
        drafts.append(token)
        laws.append(q)
    behind_drafts = compute_laws(draft_model, token[:, None], positions[:, -1:])[:, 0]
    return torch.stack(drafts, 1), torch.stack(laws, 1), behind_drafts


def find_last_token(previous: Tensor, tokens: Tensor, n_kept: Tensor) -> Tensor:
    """Find the last final token [B] after n_kept [B] of tokens [B, S] became final; `previous` [B] if none did."""
    return torch.cat([previous[:, None], tokens], 1).gather(1, n_kept[:, None])[:, 0]


@torch.inference_mode()
def classical(model: TokenModel, start: Tensor, *, noise: Noise, rules: Rules = CORRECT_RULES) -> Iterator[Step]:
    """Draft BLOCK tokens from a random draft model, verify them in one pass, draw one more from p if all stand."""
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
        p = compute_laws(model, torch.cat([last_token[:, None], drafts], 1), positions)
        u = rules.uniforms(noise, index)[:, :BLOCK]
        n_accepted = count_leading(rules.accept(u, probability(p[:, :BLOCK], drafts) / probability(q, drafts)))
        laws = torch.cat([rules.correct(p[:, :BLOCK], q), rules.bonus(p, q_bonus)[:, None]], 1)
        drawn = race(laws, noise.exponential("sample", index, V))
        tokens, n_kept = rules.finish(torch.cat([drafts, drafts[:, :1]], 1), drawn, n_accepted)
        n_kept, carried = rules.advance(n_kept, drafts, q)
        n_kept = n_kept.minimum(L - frontier)
        yield Step(tokens, n_kept, frontier)
        last_token, frontier = find_last_token(last_token, tokens, n_kept), frontier + n_kept


@torch.inference_mode()
def jacobi(
    model: TokenModel, start: Tensor, *, noise: Noise, window: int = 3, rules: Rules = CORRECT_RULES
) -> Iterator[Step]:
    """Verify a window of drafts by maximal coupling: a later draft, too, is kept with probability min(1, p / q) and
    otherwise redrawn from the residual. Either way its law is now p."""
    B, L, V = len(start), model.length, model.vocab
    slots = torch.arange(window)[None]
    frontier, last_token = torch.zeros_like(start), start
    draft = (noise.uniform("draft", slots) * V).long().clamp(max=V - 1)
    q = torch.full((B, window, V), 1 / V, dtype=noise.dtype)
    for step in count(1):
        if int(frontier.min()) >= L:
            return
        index = rules.number(step, slots)
        p = compute_laws(model, torch.cat([last_token[:, None], draft[:, :-1]], 1), frontier[:, None] + slots)
        stays = rules.uniforms(noise, index) * probability(q, draft) < probability(p, draft)
        tokens = torch.where(stays, draft, race(rules.correct(p, q), noise.exponential("sample", index, V)))
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


VARIANTS: dict[str, tuple[Decoder, str]] = {  # the decoder, and its fault
    **{f"classical: {fault}": (partial(classical, rules=rules), fault) for fault, rules in CLASSICAL.items()},
    **{f"jacobi: {fault}": (partial(jacobi, rules=rules), fault) for fault, rules in JACOBI.items()},
}


def make_trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Yield every variant at n on a random table of (V, L) = (3, 5), and a fault that needs more at 10 n as well."""
    target = Target("mutants 3x5", random_table(3, 5, torch.Generator().manual_seed(0)), 5, 5)

    def sample(decoder: Decoder, size: int, seed: int) -> list[Row]:
        rng = np.random.default_rng([seed, size])
        counts = np.bincount(target.draw(decoder, size, seed, {}, threads), minlength=len(target.law))
        return make_joint_rows("mutants", counts, target.law, 3, 5, rng=rng, draws=draws, model=target.name)

    for method, (decoder, fault) in VARIANTS.items():
        for size in (n, 10 * n) if fault in NEEDED else (n,):
            yield Trial(method, fault, partial(sample, decoder, size), size >= NEEDED.get(fault, 10_000))


# Faults that short sequences do not show


def reuse_late_index(index: Tensor) -> Tensor:
    """Give the passes from LATE on the numbers of pass LATE."""
    return torch.where(index < LATE * WINDOW, index, LATE * WINDOW + index % WINDOW)


def replace_logits(decoder: Decoder, logits: Callable[..., Tensor]) -> Decoder:
    """Put logits(model, tokens, positions) in the place of the model's, after guidance."""
    return change_model(decoder, lambda model: Overridden(model, "logits", logits))


def flatten(logits: Tensor, share: float) -> Tensor:
    """Mix the law with the uniform law over possible tokens, by a share."""
    p, possible = logits.softmax(-1), logits > float("-inf")
    return ((1 - share) * p + share * possible / possible.sum(-1, keepdim=True)).log()


def flatten_laws(decoder: Decoder, share: float, select: Select = lambda positions, _: positions >= 0) -> Decoder:
    """Flatten the laws by a share where select(positions [B, S], last position) holds."""

    def logits(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
        right = model.logits(tokens, positions)
        return torch.where(select(positions + 1, model.length - 1)[..., None], flatten(right, share), right)

    return replace_logits(decoder, logits)


def mix_uniform(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
    """Compute logits under which one token in a thousand is any token, possible or not."""
    logits = model.logits(tokens, positions)
    return (0.999 * logits.softmax(-1) + 0.001 / logits.shape[-1]).log()


def flatten_after_rollback(model: TokenModel) -> Overridden:
    """Flatten the laws after a pass in which all tokens of the window but two were dropped."""
    previous: Tensor | None = None  # first position of the pass before

    def logits(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
        nonlocal previous
        right = model.logits(tokens, positions)
        first = positions[:, 0]
        is_deep = torch.zeros_like(first) > 0 if previous is None else first - previous <= 2
        previous = first
        return torch.where(is_deep[:, None, None], flatten(right, 0.3), right)

    return Overridden(model, "logits", logits)


def change_sampling(decoder: Decoder, **settings: Any) -> Decoder:
    """Change the sampling settings of a guided model."""
    return change_model(decoder, lambda model: Sampled(model.model, replace(model.sampling, **settings)))


def accept_last(p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, *rest: Any) -> Verified:
    """Verify, but accept the last draft of a window as it is, wherever it is possible."""
    is_last = torch.arange(u.shape[1]) == WINDOW - 1
    return verify(p, torch.where(is_last[:, None], p, q), draft, point & ~is_last, u, *rest)


def decode_with_late_fault(model: TokenModel, start: Tensor, *, noise: Noise, **options: Any) -> Iterator[Step]:
    """Decode by sjd, whose residual is replaced by the target's law from position FAR on."""
    asked_positions = torch.zeros(0)  # of the last pass

    def logits(model: TokenModel, tokens: Tensor, positions: Tensor) -> Tensor:
        nonlocal asked_positions
        asked_positions = positions + 1
        return model.logits(tokens, positions)

    def verify_late(p: Tensor, q: Tensor, draft: Tensor, point: Tensor, u: Tensor, e: Tensor, *rest: Any) -> Verified:
        right = verify(p, q, draft, point, u, e, *rest)
        is_corrected = (torch.arange(p.shape[1]) == right.kept[:, None] - 1) & (right.tokens != draft) & ~point
        is_late = asked_positions[:, : p.shape[1]] >= FAR
        return right._replace(tokens=torch.where(is_corrected & is_late, race(p, e), right.tokens))

    return replace_logits(patch_module(SJD, verify=verify_late).sjd, logits)(model, start, noise=noise, **options)


FLATTER = "law flatter by a tenth beyond token 5"
CORRECT: Correct = {"ar": (ar, {}), "sjd": (sjd, {"window": WINDOW}), "spec": (spec, {"gamma": 4})}
LONG: Faulty = {
    "sjd: late reuse": (renumber(sjd, reuse_late_index), f"noise used again from pass {LATE} on", "chain"),
    "sjd: beyond 5": (flatten_laws(sjd, 0.1, lambda positions, _: positions > 5), FLATTER, "hidden"),
    "spec: beyond 5": (flatten_laws(spec, 0.1, lambda positions, _: positions > 5), FLATTER, "counter"),
    "sjd: last": (
        flatten_laws(sjd, 0.5, lambda positions, end: positions >= end), "last token's law flatter by half", "chain"
    ),
    "sjd: border": (patch_module(SJD, verify=accept_last).sjd, "last draft of the window unverified", "chain"),
    "sjd: tolerance": (partial(sjd, tolerance=0.02), "accept +0.02", "counter"),
    "sjd: one in 50": (flatten_laws(sjd, 0.02), "every 50th token uniform", "order 2"),
    "ar: twins": (change_noise(ar, share_noise), "rows share their noise", "hidden"),
    "ar: twins of 9 to 64": (
        change_noise(ar, share_noise_in_runs), "rows share their noise in batches of 9 to 64", "chain"
    ),
    "sjd: accept reuse": (
        renumber(sjd, reuse_late_index, only="accept"), f"acceptance uniforms again from pass {LATE} on", "chain"
    ),
    "sjd: late residual": (decode_with_late_fault, f"residual p from token {FAR} on", "far"),
    "sjd: row border": (
        flatten_laws(sjd, 0.3, lambda positions, _: positions % 16 == 0), "first law of every row flatter", "order 2"
    ),
    "sjd: ahead": (  # of rows that are ahead of the slowest
        flatten_laws(sjd, 0.1, lambda positions, _: positions[:, :1] > positions[:, :1].min()),
        "laws flatter where rows differ in place", "chain",
    ),
    "sjd: alone": (swap_in_small(sjd, flatten_laws(sjd, 0.3), 1), "laws flatter when alone in the batch", "chain"),
    "spec: small batch": (
        swap_in_small(spec, flatten_laws(spec, 0.3), 3), "laws flatter in batches of three or fewer", "chain"
    ),
    "sjd: rollback": (
        change_model(sjd, flatten_after_rollback), "laws flatter after a rollback of 14 or more", "chain"
    ),
    "sjd: one in 1000": (replace_logits(sjd, mix_uniform), "a token in 1,000 is any", "hash"),
    "sjd: guidance": (change_sampling(sjd, guidance=1.6), "guidance 1.6 for 2", "guided"),
    "sjd: top-k": (change_sampling(sjd, top_k=6), "top-k 6 for 5", "guided"),
}  # fmt: skip


def make_long_trials(n: int) -> Iterator[Trial]:
    yield from make_trials_on_long("discrete", CORRECT, LONG, long_targets, n)
