"""Figures of texts; generated code in the sandbox: hostile programs fail and leave the machine as it was."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rouge_score.tokenizers import DefaultTokenizer

from parity.metrics import accuracy, sandbox, text_likelihood, text_quality
from parity.metrics.estimates import columns_of


class Uniform:
    """A judge of ten words and a mask for which every word is equally likely."""

    config = SimpleNamespace(n_positions=9, vocab_size=8)

    def __call__(self, x):
        return SimpleNamespace(logits=torch.zeros(*x.shape, 11))


class Words:
    """A tokenizer of texts of numbers, with 0 as mask and 1 as separator."""

    mask, separator = 0, 1

    def encode(self, text):
        return [int(word) for word in text.split()]


def make_text_cell(**fields) -> SimpleNamespace:
    """Make what a text metric reads of a cell of three rows of 20, 7 and 13 words."""
    shard = SimpleNamespace(tokens=np.arange(60).reshape(3, 20) % 10 + 1, end=np.array([20, 7, 13]))
    return SimpleNamespace(shard=shard, rows={}, logp=None, extra=[None] * 3, **fields)


def test_perplexity_ends_at_the_rows_end():
    """Rows are longer than the judge's context and read in pieces; the mask has no share."""
    tokens = torch.randint(1, 11, (3, 20))
    perplexities = text_likelihood.perplexities(Uniform(), tokens, torch.tensor([20, 7, 13]), 0, 1)
    assert np.allclose(perplexities, 10)  # the mask gets no probability


@pytest.mark.parametrize("one", [True, False])
def test_a_judge_of_another_vocabulary_reads_the_text(one):
    """Rows are then as long as its tokens of the text; an empty text is one token."""
    loaded = SimpleNamespace(one_vocabulary=one, words=Words(), judge_words=Words(), gpt2=Uniform(), device="cpu")
    cell = make_text_cell(loaded=loaded, texts=["3 4 5", "6 7", ""])
    perplexity = text_likelihood.rows(cell)["perplexity"]
    assert np.allclose(perplexity, 10)
    tokens, end = text_likelihood.reread(cell.texts, Words())
    assert tokens.tolist() == [[3, 4, 5], [6, 7, 1], [1, 1, 1]]
    assert end.tolist() == [3, 2, 1]


def test_entropy_is_of_the_words_up_to_a_rows_end():
    assert text_quality.entropy(np.array([1, 1, 2, 2, 3, 3, 4, 4])) == pytest.approx(2.0)
    entropy = text_quality.rows(make_text_cell())["entropy"]
    assert entropy[1] == pytest.approx(np.log2(7))  # words after the row's end do not count


def test_rouge_counts_shared_words():
    """Four of five words and three of four pairs are shared."""
    scores = text_quality.rouge("she went to the market", "she went to the bakery")
    assert scores == {"rouge1": pytest.approx(0.8), "rouge2": pytest.approx(0.75), "rougeL": pytest.approx(0.8)}
    assert set(text_quality.rows(make_text_cell())) == {"entropy"}  # a task without the original text has no ROUGE
    cell = make_text_cell(filled=["a b", "a b", "c d"])
    cell.extra = ["a b", "b a", "e f"]
    cell.rows = text_quality.rows(cell)
    assert text_quality.measure(cell)["rouge1"].value == pytest.approx(2 / 3)
    assert cell.rows["rougeL"].tolist() == [1, 0.5, 0]


WRITTEN = {  # a text of three words in each script, and one that shares two of them
    "Cyrillic": ("мама мыла раму", "мама мыла пол"),
    "Greek": ("η γάτα κοιμάται", "η γάτα τρέχει"),
    "Arabic": ("القط ينام هنا", "القط ينام هناك"),
    "Hebrew": ("החתול ישן כאן", "החתול ישן שם"),
    "Devanagari": ("बिल्ली यहाँ सोती", "बिल्ली यहाँ दौड़ती"),
    "Tamil": ("பூனை இங்கே தூங்கும்", "பூனை இங்கே ஓடும்"),
    "Hangul": ("고양이가 여기서 잔다", "고양이가 여기서 뛴다"),
    "accents": ("Ça coûte très", "ça COÛTE tres"),
    "accents apart": ("Cafe\u0301 nai\u0308ve o\u0308de", "caf\xe9 na\xefve ode"),
}


@pytest.mark.parametrize("script", WRITTEN)
def test_rouge_reads_the_words_of_every_script_with_spaces(script):
    text, other = WRITTEN[script]
    assert set(text_quality.rouge(text, text).values()) == {1.0}
    scores = text_quality.rouge(text, other)
    assert scores == {"rouge1": pytest.approx(2 / 3), "rouge2": pytest.approx(1 / 2), "rougeL": pytest.approx(2 / 3)}
    assert set(text_quality.rouge(text, "").values()) == {0.0}


ENGLISH = [
    "She said: “I don’t know – it’s 20% of $3,000.50!”", "a_b snake_case e-mail@x.org 3rd",
    "m² ½ ™ © … • 1\ufe0f\u20e3 ❤\ufe0f 😀",
    "MIXED Case\ttabs\nlines", "don't won't can't", "x\u200by", "", "?!",
]  # fmt: skip


@pytest.mark.parametrize("text", ENGLISH)
def test_words_of_english_are_those_of_the_rouge_package(text):
    assert text_quality.WordSplitter().tokenize(text) == DefaultTokenizer().tokenize(text)


UNSPACED = [
    "แมวนอนที่นี่",
    "猫在这里睡觉",
    "ねこ",
    "ネコ",
    "ﾈｺ",
    "ແມວນອນ",
    "ឆ្មាដេក",
    "ကြောင်အိပ်",
    "the cat 猫 sleeps",
    "?!",
    "",
]


@pytest.mark.parametrize("original", UNSPACED)
def test_rouge_without_known_words_is_missing_with_a_reason(original):
    assert text_quality.rouge(original, original) == {}
    cell = make_text_cell(filled=["a b", original, "c d"])
    cell.extra = ["a b", original, "e f"]
    cell.rows = text_quality.rows(cell)
    assert set(cell.rows) == {"entropy"}
    figures = columns_of(text_quality.measure(cell))
    for name in text_quality.ROUGE:
        assert name not in figures
        assert re.match(
            "1 of 3 originals: the first (has no words|is in a script without spaces)", figures[f"{name}_why"]
        )
    assert text_quality.rouge("a cat", original or "x")["rouge1"] < 1, "only the original has to have words"


def make_code_cell(run: bool) -> SimpleNamespace:
    """Make a cell of three completions of a published function: right, wrong, no Python."""
    cell = make_text_cell(run_code=run, texts=[""] * 3, filled=["return x + 1", "return x", "return ("])
    cell.extra = [{"before": "def f(x):\n    ", "after": "\n", "tests": "assert f(1) == 2\n"}] * 3
    return cell


@pytest.mark.skipif(bool(sandbox.probe()), reason=sandbox.probe() or "works")
def test_the_share_of_passed_unit_tests_is_given():
    cell = make_code_cell(run=True)
    cell.rows = text_quality.rows(cell)
    assert cell.rows["passed"].tolist() == [True, False, False]
    assert "SyntaxError" in cell.rows["why"][2]
    assert columns_of(text_quality.measure(cell))["passed"] == pytest.approx(1 / 3)


def test_code_is_run_only_on_request():
    cell = make_code_cell(run=False)
    assert set(text_quality.rows(cell)) == {"entropy"}
    assert columns_of(text_quality.measure(cell)) == {"passed_why": "run_generated_code is off"}


def make_probs(*rows: tuple[list[float], list[bool]]):
    """Yield for each row its distributions of two values, its tokens, whose probabilities are given, and which of them
    count."""
    for p, counts in rows:
        probability = torch.tensor([p])
        probs = torch.stack([1 - probability, probability], -1)
        yield probs, torch.ones(1, len(p), dtype=torch.long), torch.tensor([counts])


def test_a_last_word_is_right_if_all_its_tokens_are():
    batches = make_probs(([0.9, 0.6], [True, True]), ([0.9, 0.4], [True, True]), ([0.9, 0.4], [True, False]))
    assert accuracy.score_last_words(batches, [True, False, None]) == [(True, True), (False, False), (True, None)]


def test_the_choice_is_the_likeliest_end_per_token():
    """The second question's right end is longer: less likely as a whole, likelier per token."""
    whole = [True, True]
    batches = make_probs(([0.5, 0.5], whole), ([0.4, 0.4], whole), ([0.5, 0.5], whole), ([0.3, 0.9], [True, False]))
    extra = [(0, True, False), (0, False, False), (1, True, True), (1, False, True)]
    assert accuracy.score_choices(batches, extra) == [(True, False), (True, True)]


TESTS = "assert repr(f(1)) == '2'\nassert repr(f(-4)) == '-3'\n"
GOOD = "def f(x):\n    return x + 1\n"
PATIENT = 3600  # seconds for a program that ends by itself

needs_sandbox = pytest.mark.skipif(bool(sandbox.probe()), reason=sandbox.probe() or "works")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Things that a hostile program must not reach: a secret file, a token, a listening socket, a place to write."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    monkeypatch.setenv("HF_TOKEN", "t0ken")
    os.chmod(tmp_path, 0o777)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)  # a connection that was made is there already
    yield {"secret": secret, "canary": tmp_path / "canary", "port": listener.getsockname()[1], "listener": listener}
    listener.close()


def make_hostile_programs(machine) -> dict[str, str]:
    """Make programs, by what they try, that pass their tests only if a forbidden act succeeds."""
    s, c, port = str(machine["secret"]), str(machine["canary"]), machine["port"]
    solution = "\ndef f(x):\n    return x + 1\n"
    return {
        "loops": "while True:\n    pass\n",
        "forks": "import os\nn = [os.fork() for _ in range(300)]\n" + solution,
        "forks and stays": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(2)\n"
        f"    open({c!r}, 'w').write('x')\n    os._exit(0)\nraise SystemExit(0)\n",
        "reads a secret file": f"assert open({s!r}).read() == 's3cret'" + solution,
        "reads a token": "import os\nassert os.environ['HF_TOKEN'] == 't0ken'" + solution,
        "writes outside": f"open({c!r}, 'w').write('x')" + solution,
        "fills the disk": "f = open('/tmp/big', 'wb')\nfor _ in range(3000):\n    f.write(b'x' * 1_000_000)" + solution,
        "opens a socket": f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)" + solution,
        "calls the C library": f"import ctypes\nassert ctypes.CDLL(None).system(b'echo x > {c}') == 0" + solution,
        "starts a shell": f"import subprocess\nsubprocess.run('cat {s} > {c}', shell=True, check=True)" + solution,
        "takes memory": "x = bytearray(3 << 30)" + solution,
        "floods the output": "import sys\nwhile True:\n    sys.stdout.write('x' * 10_000)\n",
        "leaves with success": "import os\nos._exit(0)\n",
        "redefines the check": "def check(*a):\n    pass\nimport builtins\nbuiltins.repr = lambda x: '2'\n"
        "def f(x):\n    return 0\n",
        "kills its neighbours": "import os, signal\nos.kill(-1, signal.SIGKILL)\n" + "raise SystemExit(0)\n",
        "sees other processes": "import os\nassert len([p for p in os.listdir('/proc') if p.isdigit()]) > 5" + solution,
        "equals everything": "class E(int):\n    def __eq__(self, other):\n        return True\n"
        "def f(x):\n    return E(0)\n",
    }


NAMES = tuple(make_hostile_programs({"secret": "", "canary": "", "port": 0}))


@needs_sandbox
def test_a_good_program_passes_and_a_wrong_one_does_not():
    assert sandbox.run(GOOD, TESTS, PATIENT).passed
    wrong = sandbox.run("def f(x):\n    return x\n", TESTS, PATIENT)
    assert not wrong.passed
    assert "AssertionError" in wrong.why
    assert "SyntaxError" in sandbox.run("def f(:", TESTS, PATIENT).why
    assert "NameError" in sandbox.run("", TESTS, PATIENT).why


@needs_sandbox
@pytest.mark.parametrize("name", NAMES)
def test_hostile_programs_are_contained(name, machine):
    outcome = sandbox.run(make_hostile_programs(machine)[name], TESTS, seconds=1.5)
    assert not outcome.passed, outcome
    if name == "forks and stays":
        time.sleep(2)  # longer than the child would wait
    assert not machine["canary"].exists()
    assert machine["secret"].read_text() == "s3cret"
    with pytest.raises(TimeoutError):
        machine["listener"].accept()


def test_forbidden_acts_succeed_without_a_sandbox(machine):
    """Run as plain Python, three of the programs read, write and connect, so the tests above can fail."""
    for name in ("reads a secret file", "writes outside", "opens a socket"):
        subprocess.run([sys.executable, "-c", make_hostile_programs(machine)[name] + TESTS], check=True)
    assert machine["canary"].exists()
    machine["listener"].accept()


@pytest.mark.parametrize(
    ("program", "passes"),
    [(GOOD, True), ("def f(x):\n    return x\n", False), ("x = bytearray(3 << 30)\n" + GOOD, False)],
)
def test_the_launcher_reports_success_by_the_nonce_alone(program, passes):
    """The launcher alone, also on machines without bubblewrap: its limits hold and a failed test prints nothing."""
    job = json.dumps({"program": program, "tests": TESTS, "nonce": "0123"}).encode()
    process = subprocess.run([sys.executable, "-I", "-S", "-c", sandbox.LAUNCHER], input=job, capture_output=True)
    assert (process.stdout == b"0123") == passes


def test_without_bubblewrap_nothing_is_run(monkeypatch):
    sandbox.python.cache_clear()
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    try:
        assert "not installed" in sandbox.probe()
        with pytest.raises(RuntimeError, match="not installed"):
            sandbox.run(GOOD, TESTS)
    finally:
        sandbox.python.cache_clear()
