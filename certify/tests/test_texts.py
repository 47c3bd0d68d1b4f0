"""Large models: texts of a correct sampler are consistent, a fault in them is rejected on both halves."""

import json
import math

import numpy as np
import pytest

from parity_certify import __main__ as command
from parity_certify.errors import ParityError

pytest.importorskip("torch")
from parity_certify.texts import certify_texts, of_engine

V, L = 50, 12


def conditionals(before, rng_seed=0):
    """Laws [n, V] that depend on the token before."""
    table = np.random.default_rng(rng_seed).standard_normal((V, V)) * 1.5
    p = np.exp(table)
    return (p / p.sum(-1, keepdims=True))[before]


def written(file, temper, n=400, tops=8):
    """Texts drawn at a temperature, with the log-probabilities of the law at temperature one."""
    rng, lines = np.random.default_rng(1), []
    before = rng.integers(V, size=n)
    texts, likeliest = [], []
    for _ in range(L):
        p = conditionals(before)
        drawn = p ** (1 / temper)
        drawn /= drawn.sum(-1, keepdims=True)
        before = np.array([rng.choice(V, p=row) for row in drawn])
        order = np.argsort(-p, -1)[:, :tops]
        likeliest.append([[[int(t), math.log(row[t])] for t in o] for o, row in zip(order, p, strict=True)])
        texts.append(before)
    for i in range(n):
        one = {"prompt": [0], "tokens": [int(t[i]) for t in texts], "top_logprobs": [at[i] for at in likeliest]}
        lines.append(json.dumps(one))
    file.write_text("\n".join(lines))
    return file


def test_by_the_engines_log_probabilities(tmp_path):
    right = certify_texts(None, written(tmp_path / "right.jsonl", 1.0))
    assert right.exit_code == 0 and right.verdict.words == "consistent", right.rows
    assert {r["test"] for r in right.rows} <= {"log p", "top-1 hit", "top-5 hit", "rank PIT"}
    wrong = certify_texts(None, written(tmp_path / "wrong.jsonl", 0.8))
    assert wrong.exit_code == 1 and "rejected by teacher-forced" in wrong.verdict.reason
    assert {r["repeat"] for r in wrong.rows} == {0, 1} and {r["repeat"] for r in right.rows} == {0}


def test_the_command_needs_no_target_and_writes_a_page(tmp_path, monkeypatch, capsys):
    file = written(tmp_path / "wrong.jsonl", 0.8)
    monkeypatch.setattr("sys.argv", ["certify", "--texts", str(file), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 1 and "the engine's own log-probabilities" in capsys.readouterr().out
    assert "log-probabilities" in (tmp_path / "out/report.html").read_text()


def test_tokens_that_were_not_among_the_likeliest_are_one_rank():
    texts = [
        {"tokens": [3, 9], "top_logprobs": [[[3, math.log(0.6)], [1, math.log(0.3)]], [[0, math.log(0.5)], [2, -9]]]}
    ]
    ranks, laws = of_engine(texts)
    assert ranks.tolist() == [[0, 2]]
    assert np.allclose(laws(0, 1)[0, 0], [0.6, 0.3, 0.1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ('{"tokens": [1]}', r"1 texts; allowed: 40 or more"),
        ("{", r"line 1: allowed: \{"),
        ('{"tokens": [1, 2]}\n' * 40, "no --target, and a text without top_logprobs"),
        ('{"tokens": [1], "top_logprobs": [[[1, 0.5]]]}\n' * 40, "log-probabilities that sum to 1.64"),
    ],
)
def test_what_is_no_file_of_texts_is_one_line(tmp_path, text, message):
    if text is not None:
        (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(ParityError, match=message):
        certify_texts(None, tmp_path / "x.jsonl")
