"""Large models: texts of a correct sampler are consistent, a fault in them is rejected, and all texts are used."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from parity_certify import __main__ as command
from parity_certify.errors import ParityError

torch = pytest.importorskip("torch")
from parity_certify.texts import Judged, OfEngine, certify_texts, judge_texts, make_rows, read_texts  # noqa: E402

V, L = 50, 12


def compute_conditionals(previous, rng_seed=0):
    """Compute distributions [n, V] of the token after `previous` [n], from a random table."""
    table = np.random.default_rng(rng_seed).standard_normal((V, V)) * 1.5
    p = np.exp(table)
    return (p / p.sum(-1, keepdims=True))[previous]


def write_texts(file, temper, n=400, tops=8):
    """Write n texts drawn at temperature `temper`, with the `tops` largest log-probabilities at temperature one."""
    rng, lines = np.random.default_rng(1), []
    previous = rng.integers(V, size=n)
    texts, likeliest = [], []
    for _ in range(L):
        p = compute_conditionals(previous)
        drawn = p ** (1 / temper)
        drawn /= drawn.sum(-1, keepdims=True)
        previous = np.array([rng.choice(V, p=row) for row in drawn])
        order = np.argsort(-p, -1)[:, :tops]
        likeliest.append([[[int(t), math.log(row[t])] for t in o] for o, row in zip(order, p, strict=True)])
        texts.append(previous)
    for i in range(n):
        one = {"prompt": [0], "tokens": [int(t[i]) for t in texts], "top_logprobs": [pairs[i] for pairs in likeliest]}
        lines.append(json.dumps(one))
    file.write_text("\n".join(lines))
    return file


def test_by_the_engines_log_probabilities(tmp_path):
    right = certify_texts(None, write_texts(tmp_path / "right.jsonl", 1.0))
    assert right.exit_code == 0 and right.verdict.words == "consistent", right.rows
    assert {r["test"] for r in right.rows} <= {"log p", "top-1 hit", "top-5 hit", "rank PIT"}
    wrong = certify_texts(None, write_texts(tmp_path / "wrong.jsonl", 0.8))
    assert wrong.exit_code == 1 and wrong.verdict.reason.startswith("rejected by")
    assert str(right).startswith(f"400 texts, {400 * L} tokens: consistent")
    assert right.details["n"] == [400] and right.details["tokens"] == 400 * L
    assert all(r["n"] == 400 * L for r in right.rows if r["decides"])


def test_the_command_needs_no_target_and_writes_a_page(tmp_path, monkeypatch, capsys):
    file = write_texts(tmp_path / "wrong.jsonl", 0.8)
    monkeypatch.setattr("sys.argv", ["certify", "--texts", str(file), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 1 and "the engine's own log-probabilities" in capsys.readouterr().out
    assert "log-probabilities" in (tmp_path / "out/report.html").read_text()


def test_tokens_that_were_not_among_the_likeliest_are_one_rank():
    texts = [
        {"tokens": [3, 9], "top_logprobs": [[[3, math.log(0.6)], [1, math.log(0.3)]], [[0, math.log(0.5)], [2, -9]]]}
    ]
    source = OfEngine(texts, Judged(texts, math.inf, print))
    assert source.tokens.tolist() == [[0, 2]]
    assert np.allclose(source.compute_probs(0, 1)[0, 0], [0.6, 0.3, 0.1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ('{"tokens": [1]}', r"1 texts; allowed: 40 or more"),
        ("{", r"line 1: allowed: \{"),
        ('{"tokens": [1, 2]}\n' * 40, "no --target, and a text without top_logprobs"),
        (
            '{"tokens": [1], "top_logprobs": [{"1": -0.5}]}\n' * 40,
            'text 1, token 1: top_logprobs {"1": -0.5}; allowed: ',
        ),
        ('{"tokens": [1], "top_logprobs": [null]}\n' * 40, "text 1, token 1: top_logprobs null; allowed: "),
        ('{"tokens": [1], "top_logprobs": [[[1, NaN]]]}\n' * 40, "text 1, token 1: top_logprobs "),
        ('{"tokens": [1], "top_logprobs": [[[1, 0.5]]]}\n' * 40, "log-probabilities that sum to 1.64"),
    ],
)
def test_what_is_no_file_of_texts_is_one_line(tmp_path, text, message):
    if text is not None:
        (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(ParityError, match=message):
        certify_texts(None, tmp_path / "x.jsonl")


def test_options_without_a_target_are_refused(tmp_path):
    with pytest.raises(ParityError, match="options: temperature; allowed: with a target"):
        certify_texts(None, write_texts(tmp_path / "right.jsonl", 1.0), options={"temperature": 0.7})


def test_a_text_that_is_a_copy_of_another_is_refused(tmp_path):
    file = write_texts(tmp_path / "copies.jsonl", 1.0, n=60, tops=40)
    file.write_text("\n".join([*file.read_text().split("\n"), file.read_text().split("\n")[7]]))
    with pytest.raises(ParityError, match="text 61 is a copy of text 8; allowed: independent texts"):
        certify_texts(None, file)


def test_a_text_may_hold_any_line_separator_of_unicode(tmp_path):
    """JSON lines end at a line feed alone."""
    file = write_texts(tmp_path / "right.jsonl", 1.0, n=40)
    lines = [json.loads(line) | {"text": "a\u2028b\x85c"} for line in file.read_text().split("\n")]
    file.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    assert len(read_texts(file)) == 40


DISTRIBUTIONS = compute_conditionals(np.arange(V))
DRAFTS = 0.5 * DISTRIBUTIONS + 0.5 * compute_conditionals(np.arange(V), rng_seed=1)


def speculate(rng, factor, n=200, length=64, late=0):
    """Draw prompts [n] and texts [n, length] by drafts accepted at u < p / q, from token `late` on at `factor` p /
    q."""
    previous, texts = rng.integers(V, size=n), np.zeros((n, length), dtype=int)
    rows = np.arange(n)
    first = previous
    for t in range(length):
        p, q = DISTRIBUTIONS[previous], DRAFTS[previous]
        x = (rng.random((n, 1)) >= q.cumsum(1)).sum(1).clip(max=V - 1)
        accept = rng.random(n) < (factor if t >= late else 1) * p[rows, x] / q[rows, x]
        rest = np.maximum(p - q, 0).cumsum(1)
        instead = (rng.random((n, 1)) * rest[:, -1:] >= rest).sum(1).clip(max=V - 1)
        texts[:, t] = previous = np.where(accept, x, instead)
    return first, texts


def judge(first, tokens, seed=0):
    """Judge texts [n, L] after prompts [n] of one token against DISTRIBUTIONS; return the verdict."""
    texts = [{"tokens": row} for row in tokens]
    judged = Judged(texts, math.inf, print)
    judged.texts, judged.tokens = tokens.shape[0], tokens.size
    previous = np.concatenate([first[:, None], tokens[:, :-1]], 1)
    source = SimpleNamespace(texts=texts, tokens=tokens, pieces=[(i, 0) for i in range(len(texts))], chunk=64)
    source.compute_probs = lambda a, b: torch.from_numpy(DISTRIBUTIONS[previous[a:b]])
    return judge_texts(make_rows(source, "table", 0.05, seed), judged, 0.05)


def test_all_texts_are_used_for_a_small_fault():
    """Accepted at u < 1.1 p / q, 200 texts of 64 tokens: found more often than on a half of them, and lossy more often
    than on two halves one after the other, at the same rate of false alarms."""
    rng, kinds, half, halves = np.random.default_rng(0), [], 0, 0
    for _ in range(24):
        first, tokens = speculate(rng, 1.1)
        kinds.append(judge(first, tokens).kind)
        one, two = (judge(first[rows], tokens[rows]).kind != "consistent" for rows in (slice(100), slice(100, 200)))
        half, halves = half + one, halves + (one and two)
    detected, lossy = 24 - kinds.count("consistent"), kinds.count("lossy")
    assert detected >= half + 4 and lossy >= halves + 3, (detected, half, lossy, halves)


def test_120_correct_samplers_keep_the_level():
    """At most 14 rejections at .05 and 3 lossy ones at .0025 (99.9 % by the binomial)."""
    rng = np.random.default_rng(1)
    kinds = [judge(*speculate(rng, 1.0, n=60, length=24), seed).kind for seed in range(120)]
    assert 120 - kinds.count("consistent") <= 14 and kinds.count("lossy") <= 3, kinds


def test_the_place_in_the_text_is_named():
    v = judge(*speculate(np.random.default_rng(2), 3.0, n=800, late=56))
    assert v.kind == "lossy" and v.where == "tokens 57 to 64"


def test_an_inconclusive_verdict_says_how_many_texts_decide():
    rng = np.random.default_rng(3)
    verdicts = [judge(*speculate(rng, 1.1)) for _ in range(12)]
    v = next(v for v in verdicts if v.kind == "inconclusive")
    count = int(v.reason.partition("draw about ")[2].split()[0])
    assert 200 < count < 2000
