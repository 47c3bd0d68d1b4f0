"""Faults injected in the shipped decoders of image tokens, each with one thing changed: the noise, the distributions
they see, or how they verify."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from parity_certify.joint_tests import make_joint_rows
from parity_certify.result_rows import Row
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd
from parity_decoders.discrete.sjd_coupled import sjd_coupled
from parity_decoders.discrete.spec import accept_tokens, spec
from parity_decoders.engine import Sampled
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.verification import Verified, finish, sample_token, verify
from torch import Tensor

from parity.equality.targets import Decoder
from parity.equality.targets.discrete import GUIDED, LongTarget, Target, long_targets, make_real_vocabulary
from parity.models.discrete.tabular import random_table
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

# Sequences in which the tests must find a fault, if not 10,000; an acceptance .01 too large is a TV of about .01.
NEEDED = {"accept +0.01": 100_000}
WINDOW = 16
LATE = 6  # pass from which faults of reused noise read the same numbers again
SJD = "parity_decoders.discrete.sjd"
# says, bool by positions [B, S] and last position, where distributions are changed
Select = Callable[[Tensor, int], Tensor]


# --- faults that short sequences show, injected in `spec` and in maximal coupling


def change_finish(change: Callable[..., Verified]) -> Decoder:
    """Make the decoder spec, whose passes are assembled by change(p, q, draft, point, accepted, fresh, exponential)."""
    return partial(patch_module("parity_decoders.discrete.spec", finish=change).spec, gamma=3)


def accept_more(extra: float) -> Decoder:
    """Make the decoder spec, which accepts drafts with this much more probability."""
    accept = {"token": lambda p, q, draft, bonus, u: accept_tokens(p, q, draft, bonus, u - extra)}
    return partial(patch_module("parity_decoders.discrete.spec", VERIFY=accept).spec, gamma=3)


def draw_bonus(choose: Callable[[Tensor, Tensor], Tensor]) -> Decoder:
    """Make the decoder spec, whose last token of a pass is drawn from choose(p, q) [B, V]."""

    def finish_with_bonus(p: Tensor, q: Tensor, *rest: Any) -> Verified:
        draft, point, accepted, fresh, e = rest
        fresh = torch.cat([fresh[:, :-1], sample_token(choose(p, q), e[:, -1])[:, None]], 1)
        return finish(p, q, draft, point, accepted, fresh, e)

    return change_finish(finish_with_bonus)


def keep_unverified(p: Tensor, q: Tensor, draft: Tensor, *rest: Any) -> Verified:
    """Assemble the tokens of a pass, but keep the one after the rejected draft, too (a fault)."""
    right = finish(p, q, draft, *rest)
    return right._replace(kept=(right.kept + 1).clamp(max=draft.shape[1]))


def use_first(index: Tensor) -> Tensor:
    """Map noise indices so that all slots of a pass read the first one's number."""
    return index[:, :1].expand_as(index)


COUPLED = partial(sjd_coupled, window=4, coupling="maximal")
VARIANTS: dict[str, tuple[Decoder, str]] = {  # decoders of short trials and their faults, by name
    "spec": (partial(spec, gamma=3), "none"),
    "spec: residual p": (change_finish(lambda p, q, *rest: finish(p, 0 * q, *rest)), "residual p"),
    "spec: residual |p - q|": (
        change_finish(lambda p, q, *rest: finish(q + (p - q).abs(), q, *rest)), "residual |p - q|"
    ),
    "spec: shared uniform": (partial(renumber(spec, use_first, only="accept"), gamma=3), "shared uniform"),
    "spec: accept +0.01": (accept_more(0.01), "accept +0.01"),
    "spec: accept +0.05": (accept_more(0.05), "accept +0.05"),
    "spec: bonus from q": (draw_bonus(lambda p, q: q[:, -2]), "bonus from q"),
    "spec: bonus wrong index": (draw_bonus(lambda p, q: p[:, -2]), "bonus wrong index"),
    "spec: unverified kept": (change_finish(keep_unverified), "unverified kept"),
    "spec: seed reused": (partial(renumber(spec, lambda index: index % 4), gamma=3), "seed reused"),
    "sjd_coupled": (COUPLED, "none"),
    "sjd_coupled: stored q": (partial(COUPLED, store="q"), "stored q"),
    "sjd_coupled: residual p": (partial(COUPLED, correct="p"), "residual p"),
}  # fmt: skip


def make_trials(n: int, seeds: Sequence[int], draws: int = 1999, threads: int = 1) -> Iterator[Trial]:
    """Yield a trial of n sequences for each of VARIANTS on a random table of 5 tokens out of 3, and one of 10 n as well
    for a fault of NEEDED. draws: of the Monte-Carlo null; `seeds` is not read."""
    target = Target("mutants 3x5", random_table(3, 5, torch.Generator().manual_seed(0)), 5, 5)

    def sample(decoder: Decoder, size: int, seed: int) -> list[Row]:
        rng = np.random.default_rng([seed, size])
        counts = np.bincount(target.draw(decoder, size, seed, {}, threads), minlength=len(target.probs))
        return make_joint_rows("mutants", counts, target.probs, 3, 5, rng=rng, draws=draws, model=target.name)

    for method, (decoder, fault) in VARIANTS.items():
        for size in (n, 10 * n) if fault in NEEDED else (n,):
            yield Trial(method, fault, partial(sample, decoder, size), size >= NEEDED.get(fault, 10_000))


# --- faults that short sequences do not show, injected in the shipped decoders


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
CORRECT: Correct = {"ar": (ar, {}), "sjd": (sjd, {"window": WINDOW})}
LONG: Faulty = {
    "sjd: late reuse": (renumber(sjd, reuse_late_index), f"noise used again from pass {LATE} on", "chain"),
    "sjd: beyond 5": (flatten_probs(sjd, 0.1, lambda positions, _: positions > 5), FLATTER, "hidden"),
    "sjd: last": (
        flatten_probs(sjd, 0.5, lambda positions, end: positions >= end), "last token drawn flatter by half", "chain"
    ),
    "sjd: border": (patch_module(SJD, verify=accept_last).sjd, "last draft of the window unverified", "chain"),
    "sjd: tolerance": (partial(sjd, tolerance=0.02), "accept +0.02", "counter"),
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
