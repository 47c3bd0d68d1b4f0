"""Large models: the sampler's own texts against the target's conditionals at their tokens (teacher_forced).

    certify_texts(folder, texts)     one forward of the target a text: every test
    certify_texts(None, texts)       the log-probabilities that the engine returned: some of them (PARTIAL)

A line of the file is {"prompt": [ids], "tokens": [ids]}, with "top_logprobs": [[[id, log p], ...] a token] where the
engine gave them. Token numbers, not text: text may be tokenised in another way than it was drawn.

All texts are one sample, looked at once: a correct sampler is rejected with probability alpha at most. There is no
fresh sample to repeat a rejection on, so `lossy` takes p <= alpha^2, as rare as two rejections; between the two the
verdict is inconclusive, and says how many new texts decide. Everything holds for independent texts only.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

from parity_certify import result_rows as R
from parity_certify.certificate import Certificate
from parity_certify.errors import ParityError
from parity_certify.result_rows import Row
from parity_certify.sampler import CHANCE, EVERY, check_settings, format_duration
from parity_certify.teacher_forced import run_battery
from parity_certify.verdict import Verdict

PARTIAL = ("log p", "top-1 hit", "top-5 hit", "rank PIT")  # of the engine's likeliest tokens and the rest as one
FEW = 40  # texts
CELLS = 1_600_000  # probabilities that are judged at once: about 1 GB
AT_ONCE = 16  # most pieces of texts between two looks at the clock
PLACES = 8  # groups of positions, to say where the law differs
UNTESTED = (
    "whether texts depend on each other",
    "other prompts and options, and longer texts",
    "what leaves each of these means as it is, such as a dependence across many tokens",
)
Text = dict[str, Any]


def read_texts(file: Path) -> list[Text]:
    """Texts of a file; ParityError that names the first line that is none."""
    if not file.is_file():
        raise ParityError(f"{file}: no such file")
    texts = []
    for i, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)
            prompt, tokens = text.get("prompt", []), text["tokens"]
            if not tokens or not all(type(t) is int and t >= 0 for t in [*prompt, *tokens]):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            what = 'allowed: {"prompt": [token numbers], "tokens": [token numbers]}'
            raise ParityError(f"{file}, line {i}: {what}") from None
        texts.append(text)
    if len(texts) < FEW:
        raise ParityError(f"{file}: {len(texts)} texts; allowed: {FEW} or more")
    return texts


class Judged:
    """How many texts and tokens were judged so far, told every few seconds; `is_over` when the time is used up."""

    def __init__(self, texts: list[Text], seconds: float, tell: Callable[[str], None]):
        self.total, self.tell, self.begin = len(texts), tell, time.monotonic()
        self.end, self.shown = self.begin + seconds, -math.inf
        self.texts = self.tokens = 0

    def is_over(self) -> bool:
        """Whether the next text would end too late, at the speed so far."""
        now = time.monotonic()
        return now + (now - self.begin) / max(1, self.texts) > self.end

    def add(self, text: int, tokens: int) -> None:
        self.texts, self.tokens, now = text + 1, self.tokens + tokens, time.monotonic()
        if self.texts > 1 and now - max(self.shown, self.begin + 2 - EVERY) > EVERY:  # the first after two seconds
            self.shown = now
            left = min((self.total - self.texts) * (now - self.begin) / self.texts, self.end - now)
            self.tell(f"{self.texts} of {self.total} texts, about {format_duration(left)} left")


class OfTarget:
    """The texts as pieces that are so short that their laws are few cells, and their laws under the target.

    tokens  [n, S] of the pieces, 0 behind the end of a text
    pieces  text and first position of each
    """

    def __init__(self, model: Any, texts: list[Text], options: dict[str, Any], judged: Judged):
        from parity_certify.adapters.transformers import get_vocab_size

        self.model, self.texts, self.options, self.judged = model, texts, options, judged
        self.vocab = V = get_vocab_size(model)
        for i, text in enumerate(texts):
            if not text.get("prompt"):
                raise ParityError(
                    f"texts: text {i + 1}: no prompt; allowed: one token or more, as the model's first one"
                )
            if (largest := max(*text["prompt"], *text["tokens"])) >= V:
                raise ParityError(f"texts: text {i + 1}: token {largest}; allowed: 0 to {V - 1}")
        self.size = S = max(1, min(max(len(t["tokens"]) for t in texts), CELLS // V))
        self.pieces = [(i, first) for i, t in enumerate(texts) for first in range(0, len(t["tokens"]), S)]
        self.chunk = max(1, min(AT_ONCE, CELLS // (S * V)))
        self.last: dict[int, Tensor] = {}  # the law of the last text
        self.tokens = np.zeros((len(self.pieces), S), dtype=np.int64)
        for row, (i, first) in zip(self.tokens, self.pieces, strict=True):
            own = texts[i]["tokens"][first : first + S]
            row[: len(own)] = own

    def law_of_text(self, i: int) -> Tensor:
        """Laws [L, V] of text i: one forward, processors as in plain sampling."""
        from parity_certify.adapters.transformers import compute_laws

        if i not in self.last:
            prompt, tokens = torch.tensor([self.texts[i]["prompt"]]), torch.tensor([self.texts[i]["tokens"]])
            self.last = {i: torch.cat(compute_laws(self.model, prompt, tokens, self.options, None))}
        return self.last[i]

    def law(self, a: int, b: int) -> Tensor | None:
        """Laws [b - a, S, V] of pieces, certain behind the end of a text; None if the time is used up."""
        if self.judged.is_over():
            return None
        laws = torch.zeros(b - a, self.size, self.vocab)
        laws[..., 0] = 1.0
        for row, (i, first) in zip(laws, self.pieces[a:b], strict=True):
            own = self.law_of_text(i)[first : first + self.size]
            row[: len(own)] = own
            self.judged.add(i, len(own))
        return laws


class OfEngine:
    """The texts as ranks [n, L] of their tokens among the engine's likeliest ones (the last rank: none of them), and
    the laws of ranks. `pieces` are whole texts."""

    def __init__(self, texts: list[Text], judged: Judged):
        if any(len(t.get("top_logprobs") or ()) != len(t["tokens"]) for t in texts):
            raise ParityError(
                "texts: no --target, and a text without top_logprobs for each token; needed: one of the two"
            )
        tops = min(len(at) for t in texts for at in t["top_logprobs"])
        L = max(len(t["tokens"]) for t in texts)
        self.judged, self.texts, self.pieces = judged, texts, [(i, 0) for i in range(len(texts))]
        self.chunk, self.laws = 64, torch.zeros(len(texts), L, tops + 1)
        self.tokens, self.laws[..., 0] = np.zeros((len(texts), L), dtype=np.int64), 1.0
        for i, text in enumerate(texts):
            for j, (token, likeliest) in enumerate(zip(text["tokens"], text["top_logprobs"], strict=True)):
                best = sorted(likeliest, key=lambda pair: -pair[1])[:tops]
                p = [math.exp(value) for _, value in best]
                if sum(p) > 1 + 1e-3:
                    raise ParityError(f"texts: row {i}, token {j}: log-probabilities that sum to {sum(p):.6g}")
                self.laws[i, j] = torch.tensor([*p, max(0.0, 1 - sum(p))])
                ids = [pair[0] for pair in best]
                self.tokens[i, j] = ids.index(token) if token in ids else tops
        self.laws /= self.laws.sum(-1, keepdim=True)

    def law_of_text(self, i: int) -> Tensor:
        return self.laws[i]

    def law(self, a: int, b: int) -> Tensor:
        for i in range(a, b):
            self.judged.add(i, len(self.texts[i]["tokens"]))
        return self.laws[a:b]


def check_copies(texts: list[Text], source: OfTarget | OfEngine) -> None:
    """ParityError for texts that are copies of others: the same tokens behind the same prompt, where independent texts
    would hardly be the same (P < CHANCE over all pairs, by the law)."""
    first: dict[str, int] = {}
    tried = set()
    for i, text in enumerate(texts):
        earlier = first.setdefault(json.dumps([text.get("prompt"), text["tokens"]]), i)
        if earlier != i and earlier not in tried:
            tried.add(earlier)
            tokens = [t for row, (k, _) in zip(source.tokens, source.pieces, strict=True) if k == i for t in row]
            p = source.law_of_text(i)[: len(text["tokens"])].double()
            log_p = float(p.gather(1, torch.tensor(tokens[: len(p)])[:, None]).log().sum())
            if log_p + 2 * math.log(len(texts)) < math.log(CHANCE):
                raise ParityError(f"texts: text {i + 1} is a copy of text {earlier + 1}; allowed: independent texts")


def make_rows(source: OfTarget | OfEngine, model: str, alpha: float, seed: int) -> list[Row]:
    """The battery on all texts as one family, and, not deciding, each test on each of PLACES groups of positions."""
    longest = max(len(t["tokens"]) for t in source.texts)
    wide = -(-longest // PLACES)
    at = np.array([first for _, first in source.pieces])[:, None] + np.arange(source.tokens.shape[1])
    place: dict[str, Any] = {"method": "sampler", "seed": seed, "model": model, "strict": False}
    rng = np.random.default_rng(seed)
    settings: dict[str, Any] = {"slot": np.minimum(at // wide, PLACES - 1), "chunk": source.chunk, "rng": rng}
    rows = run_battery(source.tokens, source.law, source.tokens.shape[1], **settings, **place)
    for r in rows:
        r["test"], slot, number = r["test"].partition(", slot ")
        r["decides"] = not slot
        r["where"] = f"tokens {int(number) * wide + 1} to {min(longest, int(number) * wide + wide)}" if slot else ""
        if r["test"] == "support":
            i, first = source.pieces[r["row"]]
            r["where"] = f"text {i + 1}, token {first + r['position'] + 1}"
        if slot:
            r["p_holm"], r["verdict"] = None, "measured"
    left_out = ("equals upper", *(("equals left",) if isinstance(source, OfEngine) else ()))
    rows = [r for r in rows if r["test"] not in left_out]
    R.adjust_family((r for r in rows if r["decides"]), alpha)
    return rows


def judge_texts(rows: list[Row], judged: Judged, alpha: float) -> Verdict:
    """The verdict on all texts."""
    deciding = [r for r in rows if r["decides"] and r["p_value"] is not None]
    about: dict[str, Any] = {"n": judged.texts, "alpha": alpha, "untested": UNTESTED}
    about["tested"] = (f"each token given those before it, on {judged.texts} texts, {judged.tokens} tokens in all",)
    if not deciding:
        reason = f"no test could be run on {judged.texts} texts; allow more time or longer texts"
        return Verdict("inconclusive", reason=reason, **about)
    worst = min(deciding, key=lambda r: r["p_holm"])
    p, tests = worst["p_holm"], f"{len(deciding)} tests"
    if p > alpha:
        reason = f"not rejected at {alpha:g}: the smallest p of {tests} is {p:.2g} (Holm)"
        return Verdict("consistent", reason=f"{reason}; a fault below the least effects could not be found", **about)
    places = [r for r in rows if r["test"] == worst["test"] and r["where"] and r["p_value"] is not None]
    where = min(places, key=lambda r: r["p_value"])["where"] if places else ""
    effect = "" if worst["effect"] is None else f", effect {worst['effect']:.3g}"
    reason = f"rejected by {worst['test']}{effect}, p = {p:.2g} (Holm over {tests})"
    if p <= alpha**2:
        reason += f"; below {alpha**2:g}, as rare as two rejections at {alpha:g}"
        return Verdict("lossy", reason=reason, where=where, **about)
    z, enough = (special.ndtri(1 - x / 2 / len(deciding)) for x in (min(p, 0.9), alpha**2))
    more = math.ceil(judged.texts * ((enough + special.ndtri(R.POWER)) / z) ** 2)
    reason += f", but not below {alpha**2:g}; draw about {more} new texts under another seed, and certify them alone"
    return Verdict("inconclusive", reason=reason, where=where, **about)


def certify_texts(
    target: Path | None,
    texts: Path,
    *,
    options: dict[str, Any] | None = None,
    alpha: float = R.ALPHA,
    minutes: float | None = None,
    budget: float | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Certificate:
    """The verdict on a file of texts, by the target's conditionals or, without one, by the engine's log-probabilities.
    It can reject, or be consistent with the smallest effects that would have been seen; it bounds no TV.

    options          of sampling, as keywords of transformers' `generate`
    minutes, budget  the time for everything, in minutes or seconds: texts that do not fit are not looked at
    """
    check_settings(alpha=alpha, minutes=minutes, budget=budget)
    begin, limit = time.monotonic(), min(60 * (minutes or math.inf), budget or math.inf)
    lines = read_texts(texts)
    source: OfTarget | OfEngine
    if target is None:
        if options:
            raise ParityError(f"options: {', '.join(options)}; allowed: with a target, whose law they change")
        judged, name = Judged(lines, math.inf, tell), "engine's log-probabilities"
        source, tests = OfEngine(lines, judged), f"{', '.join(PARTIAL)}: the engine's own log-probabilities"
    else:
        from parity_certify.adapters.transformers import load_model

        model, tests = load_model(target), "all tests: the target's conditionals"
        judged, name = Judged(lines, 0.95 * limit - (time.monotonic() - begin), tell), str(model.config.model_type)
        source = OfTarget(model, lines, options or {}, judged)
    check_copies(lines, source)
    rows = make_rows(source, name, alpha, seed)
    v = judge_texts(rows, judged, alpha)
    beside: dict[str, Any] = {"n": [judged.texts], "of": len(lines), "tokens": judged.tokens, "tests": tests}
    beside |= {"alpha": alpha, "budget": None if limit == math.inf else limit, "seconds": time.monotonic() - begin}
    return Certificate(v, rows, beside=beside)
