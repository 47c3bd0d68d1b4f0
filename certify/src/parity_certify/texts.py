"""Certify texts of a large model against the target's conditionals at their tokens (teacher_forced).

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
from dataclasses import replace
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
from parity_certify.sampler import CHANCE, TELL_SECONDS, check_settings, format_duration
from parity_certify.seeding import check_seed
from parity_certify.teacher_forced import loosen, make_border_row, run_battery
from parity_certify.verdict import Verdict

PARTIAL = ("log p", "top-1 hit", "top-5 hit", "rank PIT")  # these tests need only the likeliest tokens
MIN_TEXTS = 40
CELLS = 1_600_000  # this many probabilities are judged at once: about 1 GB
CHUNK = 16  # most pieces of texts between two looks at the clock
DTYPES = ("float64", "float32", "bfloat16", "float16")  # of an engine
POSITION_GROUPS = 8  # number of groups of positions that say where the distribution differs
UNTESTED = (
    "whether texts depend on each other",
    "other prompts and options, and longer texts",
    "what leaves each of these means as it is, such as a dependence across many tokens",
)
Text = dict[str, Any]


def read_texts(file: Path) -> list[Text]:
    """Read the texts of a file. Raises ParityError that names the first line that is no text, or for too few texts."""
    if not file.is_file():
        raise ParityError(f"{file}: no such file")
    texts = []
    try:
        content = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParityError(f"{file}: not UTF-8 at byte {error.start}; allowed: JSON lines in UTF-8") from None
    for i, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)
            prompt, tokens = text.get("prompt", []), text["tokens"]
            if not tokens or not all(type(t) is int and t >= 0 for t in [*prompt, *tokens]):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            allowed = 'allowed: {"prompt": [token numbers], "tokens": [token numbers]}'
            raise ParityError(f"{file}, line {i}: {allowed}") from None
        texts.append(text)
    if len(texts) < MIN_TEXTS:
        raise ParityError(f"{file}: {len(texts)} texts; allowed: {MIN_TEXTS} or more")
    return texts


def cut_at_end(texts: list[Text], ends: list[int]) -> list[Text]:
    """Cut texts after their first end token, so that padding is not judged. Raises ParityError if texts go on: with
    several tokens."""
    found = [next((i for i, t in enumerate(text["tokens"], 1) if t in ends), None) for text in texts]
    after = [text["tokens"][i:] for text, i in zip(texts, found, strict=True) if i and text["tokens"][i:]]
    if len({token for tokens in after for token in tokens}) > 1:
        problem = f"{len(after)} of {len(texts)} texts go on after the end token {' or '.join(map(str, ends))}"
        allowed = "nothing after it, or the same token always, as padding; eos_token_id=null for texts without an end"
        raise ParityError(f"texts: {problem}; allowed: {allowed}")
    keys = ("tokens", "top_logprobs")
    return [text | {key: text[key][:i] for key in keys if text.get(key)} for text, i in zip(texts, found, strict=True)]


class Judged:
    """The count of texts and tokens judged so far, which `tell` reports every few seconds, and the time allowed."""

    def __init__(self, texts: list[Text], seconds: float, tell: Callable[[str], None]):
        """Start the clock; seconds: the time for all texts."""
        self.total, self.tell = len(texts), tell
        self.start = time.monotonic()
        self.end, self.shown = self.start + seconds, -math.inf
        self.texts = self.tokens = 0

    def is_over(self) -> bool:
        """Return whether the next text would end after the time, at the speed so far."""
        passed = time.monotonic() - self.start
        return self.start + passed + passed / max(1, self.texts) > self.end

    def add(self, text: int, tokens: int) -> None:
        """Count tokens of the text number `text` (from 0) as judged; tell the progress now and then."""
        time_now = time.monotonic()
        self.texts = text + 1
        self.tokens += tokens
        first_line = self.start + 2 - TELL_SECONDS  # the first line is told after two seconds
        if self.texts > 1 and time_now - max(self.shown, first_line) > TELL_SECONDS:
            self.shown = time_now
            remaining = (self.total - self.texts) * (time_now - self.start) / self.texts
            remaining = min(remaining, self.end - time_now)
            self.tell(f"{self.texts} of {self.total} texts, about {format_duration(remaining)} left")


class OfTarget:
    """The texts under the target, cut to pieces whose distributions fit into memory. tokens [n, S]: of the pieces, 0
    after the end of a text; pieces: text and first position of each.

    An engine that rounds, as in bfloat16, may draw a token that the target's top-p just excludes. Such a token is at
    the border: options half as strict keep it. If the engine `rounds`, it is given probability 1, so that no test but
    that of their number, `make_border_row`, sees it.
    """

    def __init__(self, model: Any, texts: list[Text], options: dict[str, Any], judged: Judged, rounds: bool):
        """Cut the texts to pieces. Raises ParityError for a text without prompt or a token outside the vocabulary."""
        from parity_certify.adapters.transformers import get_vocab_size

        self.model, self.texts, self.options, self.judged = model, texts, options, judged
        self.rounds = rounds and loosen(options) != options
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
        self.chunk = max(1, min(CHUNK, CELLS // (S * V)))
        self.cached: dict[int, Tensor] = {}  # the distributions of the last text, by its number
        self.at_border: dict[int, int] = {}  # number of tokens at the border, by text
        self.tokens = np.zeros((len(self.pieces), S), dtype=np.int64)
        for row, (i, first) in zip(self.tokens, self.pieces, strict=True):
            piece = texts[i]["tokens"][first : first + S]
            row[: len(piece)] = piece

    def compute_text_probs(self, i: int) -> Tensor:
        """Compute the distributions [L, V] of text i by one forward, with processors as in sampling; the last are
        cached. A second forward finds tokens at the border, if any token is excluded and the engine rounds."""
        from parity_certify.adapters.transformers import compute_probs

        if i not in self.cached:
            prompt, tokens = (torch.tensor([self.texts[i][key]]) for key in ("prompt", "tokens"))
            probs = torch.cat(compute_probs(self.model, prompt, tokens, self.options, None))
            p = probs.gather(1, tokens.T)[:, 0]
            if self.rounds and bool((p == 0).any()):
                loose = torch.cat(compute_probs(self.model, prompt, tokens, loosen(self.options), None))
                others = loose.gather(1, tokens.T)[:, 0]
                is_border = (p == 0) & (others > 0)
                certain = torch.nn.functional.one_hot(tokens[0], self.vocab).to(probs.dtype)
                probs = torch.where(is_border[:, None], certain, probs)
                self.at_border[i] = int(is_border.sum())
            self.cached = {i: probs}
        return self.cached[i]

    def compute_probs(self, a: int, b: int) -> Tensor | None:
        """Compute the distributions [b - a, S, V] of pieces, certain after a text's end; count them. None if time is
        up."""
        if self.judged.is_over():
            return None
        probs = torch.zeros(b - a, self.size, self.vocab)
        probs[..., 0] = 1.0
        for row, (i, first) in zip(probs, self.pieces[a:b], strict=True):
            piece = self.compute_text_probs(i)[first : first + self.size]
            row[: len(piece)] = piece
            self.judged.add(i, len(piece))
        return probs


def check_logprobs(likeliest: Any, label: str) -> None:
    """Raise ParityError, which begins with `label`, unless a token's top_logprobs are pairs of token number and log p.
    Objects are refused, because their keys may be texts of tokens: "7" is then another token than 7."""
    pairs = likeliest if isinstance(likeliest, list) else []
    is_pair = [isinstance(p, list) and len(p) == 2 and type(p[0]) is int and type(p[1]) in (int, float) for p in pairs]
    if not pairs or not all(is_pair) or not all(value <= 1 for _, value in pairs):
        shown = json.dumps(likeliest)[:60]
        raise ParityError(f"{label}: top_logprobs {shown}; allowed: [[token number, log p], ...], one pair or more")


class OfEngine:
    """The texts under the engine's log-probabilities: ranks [n, L] of their tokens among the likeliest ones (the last
    rank: none of them), and the distributions of ranks. `pieces` are whole texts."""

    def __init__(self, texts: list[Text], judged: Judged):
        """Read all log-probabilities. Raises ParityError for tokens without any, or with a sum above one."""
        if any(len(t.get("top_logprobs") or ()) != len(t["tokens"]) for t in texts):
            raise ParityError(
                "texts: no --target, and a text without top_logprobs for each token; needed: one of the two"
            )
        for i, text in enumerate(texts, 1):
            for j, likeliest in enumerate(text["top_logprobs"], 1):
                check_logprobs(likeliest, f"texts: text {i}, token {j}")
        tops = min(len(tops) for t in texts for tops in t["top_logprobs"])
        L = max(len(t["tokens"]) for t in texts)
        self.judged, self.texts, self.pieces = judged, texts, [(i, 0) for i in range(len(texts))]
        self.chunk = 64
        self.probs = torch.zeros(len(texts), L, tops + 1)
        self.probs[..., 0] = 1.0
        self.tokens = np.zeros((len(texts), L), dtype=np.int64)
        for i, text in enumerate(texts):
            for j, (token, likeliest) in enumerate(zip(text["tokens"], text["top_logprobs"], strict=True)):
                best = sorted(likeliest, key=lambda pair: -pair[1])[:tops]
                p = [math.exp(value) for _, value in best]
                if sum(p) > 1 + 1e-3:
                    raise ParityError(f"texts: row {i}, token {j}: log-probabilities that sum to {sum(p):.6g}")
                self.probs[i, j] = torch.tensor([*p, max(0.0, 1 - sum(p))])
                ids = [pair[0] for pair in best]
                self.tokens[i, j] = ids.index(token) if token in ids else tops
        self.probs /= self.probs.sum(-1, keepdim=True)

    def compute_text_probs(self, i: int) -> Tensor:
        """Return the distributions of ranks [L, ranks] of text i."""
        return self.probs[i]

    def compute_probs(self, a: int, b: int) -> Tensor:
        """Return the distributions of ranks [b - a, L, ranks] of texts a to b - 1, and count them as judged."""
        for i in range(a, b):
            self.judged.add(i, len(self.texts[i]["tokens"]))
        return self.probs[a:b]


def check_copies(texts: list[Text], source: OfTarget | OfEngine) -> None:
    """Raise ParityError if a text is a copy: the same tokens after the same prompt, where independent texts would
    hardly be the same (P < CHANCE over all pairs, by the distribution)."""
    first: dict[str, int] = {}
    tried = set()
    for i, text in enumerate(texts):
        earlier = first.setdefault(json.dumps([text.get("prompt"), text["tokens"]]), i)
        if earlier != i and earlier not in tried:
            tried.add(earlier)
            tokens = [t for row, (k, _) in zip(source.tokens, source.pieces, strict=True) if k == i for t in row]
            p = source.compute_text_probs(i)[: len(text["tokens"])].double()
            log_p = float(p.gather(1, torch.tensor(tokens[: len(p)])[:, None]).log().sum())
            if log_p + 2 * math.log(len(texts)) < math.log(CHANCE):
                raise ParityError(f"texts: text {i + 1} is a copy of text {earlier + 1}; allowed: independent texts")


def make_rows(source: OfTarget | OfEngine, model: str, alpha: float, seed: int) -> list[Row]:
    """Make the rows of the battery (`run_battery`) on all texts, which decide, and rows by groups of positions, which
    do not; `where` says which tokens a row is about."""
    longest = max(len(t["tokens"]) for t in source.texts)
    width = -(-longest // POSITION_GROUPS)
    positions = np.array([first for _, first in source.pieces])[:, None] + np.arange(source.tokens.shape[1])
    columns: dict[str, Any] = {"method": "sampler", "seed": seed, "model": model, "strict": False}
    rng = np.random.default_rng(seed)
    settings: dict[str, Any] = {
        "slot": np.minimum(positions // width, POSITION_GROUPS - 1),
        "chunk": source.chunk,
        "rng": rng,
    }
    rows = run_battery(source.tokens, source.compute_probs, source.tokens.shape[1], **settings, **columns)

    def describe_where(r: Row) -> Row:
        """Make the changes to a row that say which tokens it is about, and whether it decides."""
        test, slot, number = r["test"].partition(", slot ")
        if slot:
            where = f"tokens {int(number) * width + 1} to {min(longest, int(number) * width + width)}"
            return {"test": test, "decides": False, "where": where, "p_holm": None, "verdict": "measured"}
        if test == "support":
            i, first = source.pieces[r["row"]]
            return {"decides": True, "where": f"text {i + 1}, token {first + r['position'] + 1}"}
        return {"decides": True, "where": ""}

    left_out = ("equals upper", *(("equals left",) if isinstance(source, OfEngine) else ()))
    rows = [described for r in rows if (described := r | describe_where(r))["test"] not in left_out]
    if isinstance(source, OfTarget) and source.rounds:
        about = {"model": model, "method": "sampler", "seed": seed, "where": ""}
        count = sum(found for i, found in source.at_border.items() if i < source.judged.texts)
        rows.append(make_border_row(count, source.judged.tokens, **about))
    return R.adjust_deciding(rows, alpha)


def judge_texts(rows: list[Row], judged: Judged, alpha: float) -> Verdict:
    """Make the verdict on all texts from their rows: lossy if p <= alpha^2 (Holm), else inconclusive if p <= alpha."""
    deciding = [r for r in rows if r["decides"] and r["p_value"] is not None]
    about: dict[str, Any] = {"n": judged.texts, "alpha": alpha, "untested": UNTESTED, "require": "consistent"}
    about["tested"] = (f"each token given those before it, on {judged.texts} texts, {judged.tokens} tokens in all",)
    if not deciding:
        reason = f"no test could be run on {judged.texts} texts; allow more time or longer texts"
        return Verdict("inconclusive", reason=reason, **about)
    worst = min(deciding, key=lambda r: r["p_holm"])
    p = worst["p_holm"]
    tests = f"{len(deciding)} tests"
    if p > alpha:
        reason = f"not rejected at {alpha:g}: the smallest p of {tests} is {p:.2g} (Holm)"
        return Verdict("consistent", reason=f"{reason}; a fault below the least effects could not be found", **about)
    located = [r for r in rows if r["test"] == worst["test"] and r["where"] and r["p_value"] is not None]
    tokens = min(located, key=lambda r: r["p_value"])["where"] if located else ""
    effect = "" if worst["effect"] is None else f", effect {worst['effect']:.3g}"
    reason = f"rejected by {worst['test']}{effect}, p = {p:.2g} (Holm over {tests})"
    if p <= alpha**2:
        reason += f"; below {alpha**2:g}, as rare as two rejections at {alpha:g}"
        return Verdict("lossy", reason=reason, where=tokens, **about)
    z, wanted_z = (special.ndtri(1 - x / 2 / len(deciding)) for x in (min(p, 0.9), alpha**2))
    count = math.ceil(judged.texts * ((wanted_z + special.ndtri(R.POWER)) / z) ** 2)
    reason += f", but not below {alpha**2:g}; draw about {count} new texts under another seed, and certify them alone"
    return Verdict("inconclusive", reason=reason, where=tokens, **about)


def certify_texts(
    target: Path | None,
    texts: Path,
    *,
    options: dict[str, Any] | None = None,
    dtype: str = "float32",
    alpha: float = R.ALPHA,
    minutes: float | None = None,
    budget: float | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Certificate:
    """Certify a file of texts by the target's conditionals or, without a target, by the engine's log-probabilities. The
    verdict is lossy, inconclusive or consistent, with the smallest effects that would be found; there is no TV bound.

    options          of sampling, as keywords of transformers' `generate`. Penalties and the like of the target's
                     generation_config.json are part of its distribution unless the options name them (None: left out),
                     and a line says so. eos_token_id: where texts end (None: nowhere)
    dtype            that the engine computes in, one of DTYPES; in a shorter one than float32, tokens that the options
                     just exclude are counted, and do not reject one by one
    minutes, budget  the time for everything, in minutes or seconds: texts that do not fit are not tested
    """
    check_settings(alpha=alpha, minutes=minutes, budget=budget)
    check_seed(seed)
    if dtype not in DTYPES:
        raise ParityError(f"dtype: {dtype}; allowed: {', '.join(DTYPES)}")
    start = time.monotonic()
    options, settings = dict(options or {}), ""
    limit = min(60 * (minutes or math.inf), budget or math.inf)
    lines = read_texts(texts)
    source: OfTarget | OfEngine
    if target is None:
        if unread := set(options) - {"eos_token_id"}:
            problem = f"options: {', '.join(sorted(unread))}"
            raise ParityError(
                f"{problem}; allowed: with a target, whose distribution they change; eos_token_id without"
            )
        name = "engine's log-probabilities"
        ends = options.get("eos_token_id")
        lines = cut_at_end(lines, [] if ends is None else np.atleast_1d(ends).tolist())
        judged = Judged(lines, math.inf, tell)
        source = OfEngine(lines, judged)
        tests = f"{', '.join(PARTIAL)}: the engine's own log-probabilities"
    else:
        from parity_certify.adapters.transformers import check_mode, describe_settings, list_ends, load_model

        tests = "all tests: the target's conditionals"
        model = load_model(target)
        name = str(model.config.model_type)
        check_mode(model, options)
        if settings := describe_settings(model, options):
            tell(settings)
        ends = list_ends(model, options)
        lines = cut_at_end(lines, ends)
        options |= {"eos_token_id": ends or None}
        judged = Judged(lines, 0.95 * limit - (time.monotonic() - start), tell)
        source = OfTarget(model, lines, options, judged, dtype in ("bfloat16", "float16"))
    check_copies(lines, source)
    rows = make_rows(source, name, alpha, seed)
    v = judge_texts(rows, judged, alpha)
    if settings:
        v = replace(v, tested=(*v.tested, settings))
    details: dict[str, Any] = {"n": [judged.texts], "of": len(lines), "tokens": judged.tokens, "tests": tests}
    details |= {"alpha": alpha, "budget": None if limit == math.inf else limit, "seconds": time.monotonic() - start}
    return Certificate(v, rows, details=details)
