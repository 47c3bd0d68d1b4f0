"""Whether a decoder that shares plain decoding's random numbers draws its tokens, and by how much it fails.

A token x of distribution p wins its draw if p_x / e_x is the largest p_v / e_v over all tokens v, for unit exponentials
e. Its lead is log(p_x / e_x) less that of the best other token. Plain decoding and a coupled decoder have the same e at
each position, so both draw the winner, and differ only where their distributions do.

Rounding. A distribution computed in a pass over one token, over a window, and over the whole row differs in its last
bits. So plain decoding's own tokens are looked at twice: by the distribution of the pass that drew them, and by one
pass over the whole row. How far this moves their leads is rounding, and a draw that is lost by more is a fault.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parity_decoders.discrete.ar import ar
from parity_decoders.errors import DecodingError
from parity_decoders.noise import Noise
from parity_decoders.protocols.discrete import TokenModel
from parity_decoders.steps import Step
from parity_decoders.verification import make_probs

# What rounding may move the leads of plain decoding's tokens by, in nats on average and without guidance, which
# multiplies it; more is a fault of passes over many tokens
ROUNDING = {torch.float64: 1e-9, torch.float32: 3e-4}
COARSE = 0.1  # the same of other dtypes: bfloat16 has 8 bits
TIE = 4  # a draw that is lost by more than this many times the largest move is no tie
REJECTED = ("rejected", "differs by more than eps")  # verdicts of rows that reject
LEVEL = 1e-3  # level of the tests of tokens of other decoders: a correct one is rejected so often
CHANCE = 1e-4  # more draws lost than plain decoding loses, by such a chance or a smaller one, is a fault


def measure_leads(p: Tensor, e: Tensor, tokens: Tensor) -> Tensor:
    """Measure by how much tokens [...] win their draws, given distributions p and unit exponentials e [..., V]:
    negative for a draw that is lost, infinite where a token alone is possible, or is not."""
    score = p.log() - e.log()
    index = tokens[..., None]
    own = score.gather(-1, index)[..., 0]
    others: Tensor = score.scatter(-1, index, -torch.inf).amax(-1)
    return own - others


class Tapped:
    """A model that keeps the logits of its last pass."""

    def __init__(self, model: TokenModel):
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Compute the model's logits [B, S, V] and keep them. See TokenModel."""
        self.last = self.model.logits(tokens, positions)
        return self.last


@torch.inference_mode()
def follow_plain(
    model: TokenModel, start: Tensor, *, noise: Noise, leads: list[tuple[Tensor, Tensor]]
) -> Iterator[Step]:
    """Decode as `ar` does, and append to leads, for each pass, the positions [B, 1] of the tokens that it drew, and by
    how much they win by the distribution of the pass [B, 1]."""
    tapped = Tapped(model)
    for step in ar(tapped, start, noise=noise):
        position = step.positions[:, None]
        e = noise.exponential("sample", position, model.vocab)
        leads.append((position, measure_leads(make_probs(tapped.last[:, -1:]), e, step.tokens[:, :1])))
        yield step


def place_leads(leads: list[tuple[Tensor, Tensor]], length: int) -> Tensor:
    """Put leads that `follow_plain` noted at their positions, [B, length], NaN where nothing was drawn."""
    placed = torch.full((len(leads[0][0]), length + 1), torch.nan, dtype=torch.float64, device=leads[0][0].device)
    for position, lead in leads:
        placed.scatter_(1, position.clamp(max=length), lead.double())
    return placed[:, :-1]


@dataclass
class Verification:
    """What was found.

    line      in one line
    is_fault  whether a token was drawn that plain decoding does not draw, or that its distribution does not give
    rows      number of images or texts, equal: of those whose tokens are all plain decoding's; None if not compared
    tokens    number of tokens that were looked at
    first     for each row that differs: (row, position, lead of the decoder's token there, in nats)
    rounding  the largest move of a lead between two computations of plain decoding's distributions, in nats
    per_pass  tokens that a pass of the decoder drew, the mean; plain decoding draws one. None if not counted
    lost      draws that the decoder, and that plain decoding, lose by the distribution of one pass over the whole row
    """

    line: str
    is_fault: bool
    rows: int
    tokens: int
    equal: int | None = None
    first: list[tuple[int, int, float]] | None = None
    rounding: float | None = None
    lost: tuple[int, int] | None = None
    per_pass: float | None = None

    def __str__(self) -> str:
        if self.per_pass is None:
            return self.line
        more = f"{self.per_pass:.2f} tokens a pass, so {self.per_pass:.2f} times fewer passes than plain decoding"
        return f"{self.line}\n{more}"


class Draws(NamedTuple):
    """Tokens of a decoder and their leads."""

    tokens: Tensor  # [B, L]
    is_drawn: Tensor  # [B, L] bool: drawn, and before the row's end
    leads: Tensor  # [B, L] by the distribution of one pass over the whole row


class Rounding(NamedTuple):
    """How far the leads of plain decoding's tokens move when their distributions are computed again, in nats."""

    largest: float
    mean: float
    dtype: torch.dtype  # of the network
    guidance: float  # 1 for none

    @property
    def kind(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def find_fault(self) -> str:
        """Say that rounding does not explain the moves; "" if it does."""
        if self.mean <= ROUNDING.get(self.dtype, COARSE) * math.hypot(self.guidance, self.guidance - 1):
            return ""
        line = "FAULT: a pass over many tokens and passes over one have other distributions: leads move by"
        return f"{line} {self.mean:.2g} nats on average, which rounding in {self.kind} does not explain"


def measure_rounding(plain: Draws, own: Tensor, dtype: torch.dtype, guidance: float) -> Rounding:
    """Measure rounding on plain decoding's tokens. own [B, L]: their leads by the distributions that drew them; dtype:
    of the network."""
    is_compared = plain.is_drawn & own.isfinite() & plain.leads.isfinite()
    moves = (own - plain.leads)[is_compared].abs()
    largest, mean = (float(moves.max()), float(moves.mean())) if len(moves) else (0.0, 0.0)
    return Rounding(largest, mean, dtype, guidance)


def judge(name: str, plain: Draws, drawn: Draws, rounding: Rounding) -> Verification:
    """Judge a coupled decoder's tokens against plain decoding's. name: of the decoder."""
    rows, n, kind, largest = len(plain.tokens), int(drawn.is_drawn.sum()), rounding.kind, rounding.largest
    lost, lost_plainly = (int(((side.leads < 0) & side.is_drawn).sum()) for side in (drawn, plain))
    differs = (plain.tokens != drawn.tokens) & (plain.is_drawn | drawn.is_drawn)
    first = []
    for row in differs.any(1).nonzero()[:, 0].tolist():
        position = int(differs[row].int().argmax())
        first.append((row, position, float(drawn.leads[row, position])))
    equal = rows - len(first)
    smallest = torch.finfo(rounding.dtype).eps
    is_far = drawn.is_drawn & drawn.leads.isfinite() & (drawn.leads < -max(TIE * largest, smallest))
    line, is_fault = rounding.find_fault(), True
    if not line and bool(is_far.any()):
        row, position = is_far.nonzero()[0].tolist()
        line = (
            f"FAULT: {int(is_far.sum())} of {n} tokens of {name} are not plain decoding's after the same tokens; first "
            f"row {row}, token {position}, which loses by {-float(drawn.leads[row, position]):.2g} nats, where "
            f"rounding in {kind} moves leads by {largest:.1g} at most"
        )
    elif not line and compute_chance(lost, lost_plainly) < CHANCE:
        line = (
            f"FAULT: {lost} of {n} tokens of {name} lose when their distribution is computed again, {lost_plainly} of "
            f"plain decoding's: rounding in {kind} does not explain it"
        )
    elif not line:
        is_fault = False
        line = f"the same tokens as plain decoding: {name}, {rows} of {rows} rows, {n} tokens, {kind}"
    if first and not is_fault:
        near = max(abs(lead) for _, _, lead in first)
        line = (
            f"the same tokens as plain decoding except for rounding in {kind}: {name}, {equal} of {rows} rows to the "
            f"end, the others until two tokens tie, within {near:.1g} nats, where rounding moves leads by up to "
            f"{largest:.1g}. Computed again, {lost} of {n} tokens change, {lost_plainly} of plain decoding's"
        )
    return Verification(line, is_fault, rows, n, equal, first, largest, (lost, lost_plainly))


def compute_chance(a: int, b: int) -> float:
    """Compute the chance that of a + b events at least a are of the first of two kinds that are equally likely."""
    n = a + b
    return sum(math.comb(n, k) for k in range(a, n + 1)) / 2**n


def judge_tests(name: str, rows: Sequence[dict[str, Any]], lossless: bool, n: int) -> Verification:
    """Judge a decoder's tokens by the result rows of their tests (`parity_certify.result_rows`), of `n` images or
    texts. A layer that repeats its tests rejects only if the repeat does. lossless: whether the decoder claims to be
    so. Raises DecodingError if no test could be run."""
    repeated = {row["layer"] for row in rows if row["repeat"]}
    run = [r for r in rows if r["decides"] and r["p_value"] is not None and (r["repeat"] or r["layer"] not in repeated)]
    if not run:
        raise DecodingError(f"{name}: {n} rows are too few for any test; allowed: more")
    worst = min(run, key=lambda row: row["p_holm"])
    tokens = max(row["n"] for row in run)
    if rejected := [row for row in run if row["verdict"] in REJECTED]:
        word = "FAULT" if lossless else f"not plain decoding's distribution, which {name} does not claim"
        line = (
            f"{word}: {len(rejected)} of {len(run)} tests of {tokens} tokens of {name} reject, first {worst['test']!r}"
        )
        return Verification(f"{line} (p {worst['p_holm']:.1g})", True, n, tokens)
    bounds = [r["minimum_detectable_effect"] for r in run if r["test"] == "log p"]
    bound = f"; a change of log p by {bounds[0]:.2g} nats a token would have been seen" if bounds else ""
    line = f"{name} draws from the model's distribution: no test of {len(run)} rejects {tokens} tokens of {n} rows"
    return Verification(f"{line} (least p {worst['p_holm']:.2g}{bound})", False, n, tokens)
