"""Large models: the sampler's own texts against the target's conditionals at their tokens (teacher_forced).

    certify_texts(folder, texts)     one forward of the target a text: every test
    certify_texts(None, texts)       the log-probabilities that the engine returned: some of them (PARTIAL)

A line of the file is {"prompt": [ids], "tokens": [ids]}, with "top_logprobs": [[[id, log p], ...] a token] where the
engine gave them. Token numbers, not text: text may be tokenised in another way than it was drawn. The first half of the
texts is the run, the second repeats what it rejects.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity_certify import result_rows as R
from parity_certify import verdict
from parity_certify.certificate import Certificate
from parity_certify.errors import ParityError
from parity_certify.result_rows import Row
from parity_certify.teacher_forced import Law, battery

PARTIAL = ("log p", "top-1 hit", "top-5 hit", "rank PIT")  # of the engine's likeliest tokens and the rest as one
FEW = 40  # texts
CELLS = 1_600_000  # probabilities that are judged at once: about 1 GB
Text = dict[str, Any]


def read(file: Path) -> list[Text]:
    """Texts of a file; ParityError that names the first line that is none."""
    if not file.is_file():
        raise ParityError(f"{file}: no such file")
    texts = []
    for i, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)
            prompt, tokens = text.get("prompt", []), text["tokens"]
            if not tokens or not all(isinstance(t, int) and t >= 0 for t in [*prompt, *tokens]):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            what = 'allowed: {"prompt": [token numbers], "tokens": [token numbers]}'
            raise ParityError(f"{file}, line {i}: {what}") from None
        texts.append(text)
    if len(texts) < FEW:
        raise ParityError(f"{file}: {len(texts)} texts; allowed: {FEW} or more")
    return texts


def of_target(model: Any, texts: list[Text], options: dict[str, Any]) -> tuple[np.ndarray, Law, int]:
    """Tokens [n, S] of pieces of the texts, 0 behind the end of one, the laws of pieces, certain there, and how many
    pieces make a call: one forward a text, processors as in plain sampling. Pieces are so short that their laws are few
    cells."""
    from parity_certify.adapters.transformers import plain_laws, vocab_of

    V = vocab_of(model)
    S = max(1, min(max(len(t["tokens"]) for t in texts), CELLS // V))
    pieces = [(i, first) for i, t in enumerate(texts) for first in range(0, len(t["tokens"]), S)]
    last: dict[int, torch.Tensor] = {}  # the law of the last text

    def whole_law(text: Text) -> torch.Tensor:
        if max(text["tokens"]) >= V:
            raise ParityError(f"texts: token {max(text['tokens'])}; allowed: 0 to {V - 1}")
        prompt, tokens = torch.tensor([text.get("prompt") or [0]]), torch.tensor([text["tokens"]])
        return torch.cat(plain_laws(model, prompt, tokens, options, None))

    def law(a: int, b: int) -> torch.Tensor:
        laws = torch.zeros(b - a, S, V)
        laws[..., 0] = 1.0
        for row, (i, first) in zip(laws, pieces[a:b], strict=True):
            if i not in last:
                last.clear()
                last[i] = whole_law(texts[i])
            own = last[i][first : first + S]
            row[: len(own)] = own
        return laws

    tokens = np.zeros((len(pieces), S), dtype=np.int64)
    for row, (i, first) in zip(tokens, pieces, strict=True):
        own = texts[i]["tokens"][first : first + S]
        row[: len(own)] = own
    return tokens, law, max(1, CELLS // (S * V))


def of_engine(texts: list[Text]) -> tuple[np.ndarray, Law]:
    """Ranks [n, L] of the tokens among the engine's likeliest ones (the last rank: none of them), and their laws."""
    if any(len(t.get("top_logprobs") or ()) != len(t["tokens"]) for t in texts):
        raise ParityError("texts: no --target, and a text without top_logprobs for each token; needed: one of the two")
    tops = min(len(at) for t in texts for at in t["top_logprobs"])
    L = max(len(t["tokens"]) for t in texts)
    laws, ranks = torch.zeros(len(texts), L, tops + 1), np.zeros((len(texts), L), dtype=np.int64)
    laws[..., 0] = 1.0
    for i, text in enumerate(texts):
        for j, (token, likeliest) in enumerate(zip(text["tokens"], text["top_logprobs"], strict=True)):
            best = sorted(likeliest, key=lambda pair: -pair[1])[:tops]
            p = [math.exp(value) for _, value in best]
            if sum(p) > 1 + 1e-3:
                raise ParityError(f"texts: row {i}, token {j}: log-probabilities that sum to {sum(p):.6g}")
            laws[i, j] = torch.tensor([*p, max(0.0, 1 - sum(p))])
            ids = [pair[0] for pair in best]
            ranks[i, j] = ids.index(token) if token in ids else tops
    return ranks, lambda a, b: laws[a:b] / laws[a:b].sum(-1, keepdim=True)


def half_rows(texts: list[Text], model: Any, options: dict[str, Any], repeat: int) -> list[Row]:
    """The battery on a half of the texts."""
    rng = np.random.default_rng(repeat)
    place: dict[str, Any] = {"method": "sampler", "seed": repeat, "repeat": repeat, "rng": rng, "strict": False}
    if model is None:
        tokens, law = of_engine(texts)
        rows = battery(tokens, law, tokens.shape[1], model="engine's log-probabilities", **place)
        rows = [r for r in rows if r["test"].startswith((*PARTIAL, "support"))]
        R.family(rows)
        return rows
    tokens, law, chunk = of_target(model, texts, options)
    rows = battery(tokens, law, tokens.shape[1], chunk=chunk, model=str(model.config.model_type), **place)
    return [r for r in rows if r["test"] != "equals upper"]


def certify_texts(target: Path | None, texts: Path, *, options: dict[str, Any] | None = None) -> Certificate:
    """The verdict on a file of texts, by the target's conditionals or, without one, by the engine's log-probabilities.
    It can reject, or be consistent with the smallest effects that would have been seen; it bounds no TV."""
    lines, model, tests = read(texts), None, f"{', '.join(PARTIAL)}: the engine's own log-probabilities"
    if target is not None:
        from parity_certify.adapters.transformers import load

        model, tests = load(target), "all tests: the target's conditionals"
    half = len(lines) // 2
    rows = half_rows(lines[:half], model, options or {}, 0)
    if any(r["decides"] and r["verdict"] == "rejected" for r in rows):
        rows += half_rows(lines[half:], model, options or {}, 1)
    v = verdict.verdicts(rows, {"sampler": "lossless"}, margin=0.05)[0]["value"]
    beside = {"n": [len(lines)], "tokens": sum(len(t["tokens"]) for t in lines), "tests": tests}
    return Certificate(v, rows, beside=beside)


def report(c: Certificate) -> str:
    v, b = c.verdict, c.beside
    lines = [f"{b['n'][0]} texts, {b['tokens']} tokens: {v.words}", f"  {v.reason}", f"  {b['tests']}", ""]
    for r in (r for r in c.rows if r["p_value"] is not None):
        least = r["minimum_detectable_effect"]
        limit = f"; least effect that is found {least:.3g}" if least else ""
        p = f"p = {r['p_value']:.2g} (Holm {r['p_holm']:.2g})"
        again = " (second half)" if r["repeat"] else ""
        lines.append(f"  {r['test']:<16}{again} {p}, effect {r['effect']:.3g}{limit}")
    return "\n".join(lines)
