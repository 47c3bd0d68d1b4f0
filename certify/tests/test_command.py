"""Engines over stdin and stdout: a C engine is certified, its injected fault is lossy, and failures are one line."""

import argparse
import errno
import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parity_certify import __main__, certify_command, read_distribution, target_distribution, write_distribution
from parity_certify.distributions import random_distribution
from parity_certify.errors import ParityError

EXAMPLE = Path(__file__).parents[1] / "examples/c/engine.c"
QUIET = {"tell": lambda text: None}
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize(("flags", "kind"), [([], "certified"), (["-DFAULT"], "lossy")])
def test_the_example_in_c(tmp_path, flags, kind):
    write_distribution(random_distribution(4, 3), tmp_path / "target.json")
    engine = tmp_path / "engine"
    subprocess.run([COMPILER, "-O1", "-Wall", "-Werror", *flags, "-o", engine, EXAMPLE, "-lm"], check=True)
    distribution = read_distribution(tmp_path / "target.json")
    certificate = certify_command([str(engine), str(tmp_path / "target.json")], distribution, margin=0.05, **QUIET)
    assert certificate.verdict.kind == kind, str(certificate)
    assert 0 < certificate.details["accepted"] < certificate.details["drafted"]


TABLE_ENGINE = """
import json, random, sys
model = json.load(open(sys.argv[1]))
T, k = float(sys.argv[2]), int(sys.argv[3].removeprefix("--top-k="))
for line in sys.stdin:
    r = json.loads(line)
    random.seed(r["seed"])
    rows = []
    for prompt in r["prompts"]:
        tokens, row = [], 0
        for t in range(r["length"]):
            p = [float(x) ** (1 / (T + FAULT * (T == 0.7))) for x in model["target"][t][row]]
            p = [x if sum(y > x for y in p) < (k or 9) else 0 for x in p]
            tokens.append(random.choices(range(len(p)), p)[0])
            row = row * len(p) + tokens[-1]
        rows.append(tokens)
    print(json.dumps({"id": r["id"], "tokens": rows}), flush=True)
"""


@pytest.mark.parametrize(("fault", "code"), [(0, 0), (0.4, 1)])
def test_a_command_is_tested_under_the_options_that_it_names(tmp_path, fault, code):
    """A fault at temperature .7 alone is found, and named; what the command cannot vary is told."""
    write_distribution(random_distribution(3, 3), tmp_path / "target.json")
    (tmp_path / "engine.py").write_text(TABLE_ENGINE.replace("FAULT", str(fault)))
    command = [sys.executable, str(tmp_path / "engine.py"), str(tmp_path / "target.json"), "{temperature}"]
    settings = {"margin": 0.1, "draws": 999, "budget": 60, **QUIET}
    c = certify_command([*command, "--top-k={top_k}"], read_distribution(tmp_path / "target.json"), **settings)
    assert c.exit_code == code, str(c)
    missing = ["top_p", "min_p", "repetition_penalty", "drafts", "end"]
    assert {f"{name}: the command has no {{{name}}}" for name in missing} <= set(c.verdict.untested), str(c)
    if code:
        assert c.verdict.where.startswith("temperature 0.7, top_k 2"), c.verdict.where
        return
    assert c.verdict.kind == "certified" and len(c.details["conditions"]) == 4, str(c)
    assert "prompt 8" in str(c) and "rows: a request has no options" in c.verdict.untested


def test_a_fault_that_one_condition_shows_is_not_found_in_another(tmp_path):
    """At the neutral values, which a command without placeholders has, the certificate says what was not varied."""
    write_distribution(random_distribution(3, 3), tmp_path / "target.json")
    (tmp_path / "engine.py").write_text(TABLE_ENGINE.replace("FAULT", "0.4"))
    command = [sys.executable, str(tmp_path / "engine.py"), str(tmp_path / "target.json"), "1.0", "0"]
    c = certify_command(command, read_distribution(tmp_path / "target.json"), margin=0.1, draws=999, **QUIET)
    assert c.verdict.kind == "certified" and "temperature: the command has no {temperature}" in c.verdict.untested


def test_a_placeholder_that_is_none_is_one_line():
    with pytest.raises(
        ParityError, match=r"command: \{temprature\}: no such option; allowed: \{temperature\}, .*\{end\}"
    ):
        certify_command(["./engine", "--t={temprature}"], make_coin_distribution())


ENGINE = """
import json, random, sys, time
for line in sys.stdin:
    r = json.loads(line)
    random.seed(r["seed"])
    tokens = [random.choices(range(2), k=r["length"]) for _ in r["prompts"]]
    answer = {"id": r["id"], "tokens": tokens}
    ANSWER
    print(json.dumps(answer), flush=True)
"""


def write_engine(file, answer="pass"):
    """Write an engine in Python that runs the code `answer` before it answers; return its command."""
    file.write_text(ENGINE.replace("ANSWER", answer))
    return [sys.executable, str(file)]


def make_coin_distribution():
    """Make the distribution of two fair coins."""
    distribution = random_distribution(2, 2)
    distribution.tables[:] = 0.5
    return distribution


def test_an_engine_without_counts_is_certified(tmp_path):
    certificate = certify_command(write_engine(tmp_path / "engine.py"), make_coin_distribution(), margin=0.1, **QUIET)
    assert certificate.verdict.kind == "certified" and certificate.details["drafted"] is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("sys.exit('out of memory')", r"request 0: the engine ended .*\(exit code 1\); stderr: out of memory"),
        ("print('hello', flush=True)", "request 0: line 'hello' is no JSON"),
        ("time.sleep(10**6)", "request 0: no answer in 0.3 seconds"),
        ("answer['id'] = 7", "request 0: line .*allowed: an object with the request's id"),
        ("answer = {'id': 0, 'error': 'no such prompt'}", "the engine's error: no such prompt"),
        ("answer['tokens'][3][1] = 9", "row 3, position 1: token 9; allowed: 0 to 1; line '{"),
        ("answer['tokens'].pop()", "499 sequences for 500 prompts; allowed: one each; line '{"),
        ("answer['drafted'] = 'many'", "drafted, accepted and rounds, integers"),
    ],
)
def test_a_failing_engine_is_one_line(tmp_path, answer, message):
    with pytest.raises(ParityError, match=message) as caught:
        certify_command(
            write_engine(tmp_path / "engine.py", answer),
            make_coin_distribution(),
            timeout=0.3 if "sleep" in answer else 10**6,
            **QUIET,
        )
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_a_command_that_is_none_is_one_line():
    with pytest.raises(ParityError, match=r"command: \./no-such-engine: does not start"):
        certify_command(["./no-such-engine"], make_coin_distribution())
    with pytest.raises(ParityError, match="allowed: a list"):
        certify_command("./engine", make_coin_distribution())


def test_a_distribution_file_loses_nothing(tmp_path):
    distribution = random_distribution(4, 3, seed=5)
    write_distribution(distribution, tmp_path / "target.json")
    loaded = read_distribution(tmp_path / "target.json")
    assert (loaded.tables == distribution.tables).all() and (loaded.extra["draft"] == distribution.extra["draft"]).all()
    assert (tmp_path / "target.json").read_text().startswith('{\n "format": "parity-distribution",\n "version": 1')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("parity-distribution", "other"), "format: allowed: 'parity-distribution', version 1"),
        (lambda t: t.replace('"vocab": 4', '"vocab": 5'), r"target: allowed: levels of \[1, 5\] rows, each of 5"),
        (lambda t: t.replace('"0.', '"-0.', 1), "target, row 0: not a distribution"),
        (lambda t: t[:50], "no distribution"),
    ],
)
def test_a_distribution_file_that_is_none_is_one_line(tmp_path, change, message):
    file = tmp_path / "target.json"
    write_distribution(random_distribution(4, 2), file)
    file.write_text(change(file.read_text()))
    with pytest.raises(ParityError, match=message) as caught:
        read_distribution(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", [["transformers"], ["texts", "--texts", "t.jsonl"], ["models", "--out", "m"]])
def test_a_missing_extra_is_one_line(monkeypatch, capsys, words):
    for name in ("adapters.transformers", "adapters.replaying", "models", "teacher_forced", "texts"):
        monkeypatch.delitem(sys.modules, f"parity_certify.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(sys, "argv", ["parity-certify", *words])
    with pytest.raises(SystemExit, match="3"):
        __main__.main()
    assert capsys.readouterr().err == 'error: needs torch: pip install "parity-certify[transformers]"\n'


@pytest.mark.parametrize("name", __main__.EXAMPLES)
def test_help_shows_a_command_that_is_read(monkeypatch, capsys, name):
    """On one line, with its options after --."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        __main__.make_parser().parse_args([name, "--help"])
    line = capsys.readouterr().out.rstrip().splitlines()[-1].strip()
    words, _, rest = line.partition(" -- ")
    assert __main__.make_parser().parse_args(words.split()[1:]).way == name and rest
    if name != "command":
        assert dict(map(__main__.parse_option, rest.split()))["temperature"] == 0.7


SAMPLER = """
import numpy as np

def probs(prefixes):
    return np.full((len(prefixes), 2), .5)

def sample(prompts, seed):
    return (np.random.default_rng(seed).random((len(prompts), 2)) < SHARE).astype(int)
"""


OWN = """
import sys, torch
import numpy as np

TABLE = np.array([[.7, .3], [.2, .8]])

def probs(prefixes): return TABLE[prefixes[:, -1]]
def probs_of_half(prefixes): return torch.tensor(probs(prefixes)).bfloat16()
def probs_with_gradient(prefixes): return torch.tensor(probs(prefixes), requires_grad=True)
def probs_of_no_key(prefixes): return {}["x"]
def probs_of_no_row(prefixes): return TABLE[prefixes[:, -1] + 2]
def probs_of_text(prefixes): return "a text"
def probs_that_exits(prefixes): sys.exit(0)
def sample(prompts, seed):
    tokens, rng = [prompts[:, -1]], np.random.default_rng(seed)
    for _ in range(2): tokens.append((rng.random(len(prompts)) < TABLE[tokens[-1], 1]).astype(int))
    return torch.tensor(np.stack(tokens[1:], 1))
def sample_that_raises(prompts, seed): raise ValueError("bad luck\\nand more")
def sample_that_exits(prompts, seed): sys.exit(0)
def logits(prefixes): return np.log(probs(prefixes))
def sample_at(prompts, seed, temperature=1.0):
    tokens, rng = [prompts[:, -1]], np.random.default_rng(seed)
    p = TABLE ** (1 / temperature)
    p = p / p.sum(1, keepdims=True)
    for _ in range(2): tokens.append((rng.random(len(prompts)) < p[tokens[-1], 1]).astype(int))
    return np.stack(tokens[1:], 1)
def sample_at_one(prompts, seed, temperature=1.0): return sample(prompts, seed)
def verify_that_exits(tokens, q, p): sys.exit(1)
"""


def run_main(monkeypatch, folder, *words):
    """Run parity-certify in a folder that holds own.py; return its exit code."""
    (folder / "own.py").write_text(OWN)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["parity-certify", *words])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    return ended.value.code


OWN_WORDS = ["sampler", "own.py:sample", "--distribution", "own.py:probs", "--vocab", "2", "--length", "2"]
OF_OWN = ["--vocab", "2", "--length", "2", "--margin", "0.1", "--out", "out"]


@pytest.mark.parametrize("name", ["probs", "probs_of_half", "probs_with_gradient"])
def test_a_distribution_in_tensors_is_a_distribution(tmp_path, monkeypatch, capsys, name):
    code = run_main(monkeypatch, tmp_path, "sampler", "own.py:sample", "--distribution", f"own.py:{name}", *OF_OWN)
    assert code == 0, capsys.readouterr()


@pytest.mark.parametrize(("name", "code"), [("sample_at", 0), ("sample_at_one", 1)])
def test_a_sampler_with_options_is_tested_under_conditions(tmp_path, monkeypatch, capsys, name, code):
    """One that ignores its temperature is lossy, and the page says what was covered."""
    words = ["sampler", f"own.py:{name}", "--logits", "own.py:logits", *OF_OWN[:4], "--margin", "0.05"]
    assert run_main(monkeypatch, tmp_path, *words, "--out", "out") == code
    out = capsys.readouterr().out
    assert "temperature 0.7, prompt 1" in out and "top_k: the sampler has no such option" in out
    assert "temperature 0.7" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["sampler", "own.py:sample", "--distribution", "own.py:probs_of_no_key"],
            r"distribution: failed .*KeyError: 'x' \(.*own.py, line",
        ),
        (
            ["sampler", "own.py:sample", "--distribution", "own.py:probs_of_no_row"],
            "distribution: failed .*IndexError: index . is out",
        ),
        (["sampler", "own.py:sample", "--distribution", "own.py:probs_of_text"], "distribution: failed .*ValueError"),
        (
            ["sampler", "own.py:sample", "--distribution", "own.py:probs_that_exits"],
            "distribution: failed .*SystemExit: 0",
        ),
        (
            ["sampler", "own.py:sample_that_raises", "--distribution", "own.py:probs"],
            "sampler: failed .*ValueError: bad luck$",
        ),
        (["sampler", "own.py:sample_that_exits", "--distribution", "own.py:probs"], "sampler: failed .*SystemExit: 0"),
        (
            ["sampler", "own.py:sample", "--distribution", "own.py:probs", "--prompts", "[[0], [1, 0]]"],
            "prompts: .* of one length",
        ),
        (["sampler", "own.py:sample", "--distribution", "own.py:probs", "--prompts", "[[0.5]]"], "prompts: allowed: "),
        (
            ["command", "--engine", "top_k,top_a", "--distribution", "l"],
            "argument --engine: engine 'top_a': allowed: .* in order",
        ),
        (["verifier", "own.py:verify_that_exits", "--drafts", "1"], "the tested code ends the process: SystemExit: 1"),
        (["sampler", "own.py:none", "--distribution", "own.py:probs"], "own.py: has no 'none'"),
        (["samples", "own.py", "--distribution", "own.py"], "own.py: no distribution"),
    ],
)
def test_what_is_no_verdict_is_one_line_and_code_3(tmp_path, monkeypatch, capsys, words, message):
    """Exit codes 0 to 2 are verdicts; code of others that ends the process asks for 0 or 1."""
    settings = {"sampler": OF_OWN, "verifier": ["--vocab", "2"]}.get(words[0], [])
    assert run_main(monkeypatch, tmp_path, *words, *settings) == 3
    errors = capsys.readouterr().err
    assert re.fullmatch(f"error: {message}.*", errors.rstrip()), errors


@pytest.mark.parametrize(
    "words", [["sampler", "own.py:sample", "--distribution", "own.py:probs", *OF_OWN], ["distribution"]]
)
def test_a_full_disk_is_no_verdict_and_leaves_no_cut_file(tmp_path, monkeypatch, capsys, words):
    def write_half(path, data):
        """Write half of the data, and fail as on a full disk."""
        with path.open("wb") as stream:
            stream.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_half)
    assert run_main(monkeypatch, tmp_path, *words) == 3
    errors = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"(npz|json): No space left on device", errors), errors
    assert [file.name for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".pyc"] == ["own.py"]


def test_deprecated_names_of_a_distribution_work_and_say_so(monkeypatch, tmp_path, capsys):
    file, samples = tmp_path / "old.json", tmp_path / "drawn.jsonl"
    assert run_main(monkeypatch, tmp_path, "law", "--out", str(file)) == 0
    assert capsys.readouterr().err == "law: deprecated; use distribution\n"
    known = read_distribution(file)
    file.write_text(file.read_text().replace("parity-distribution", "parity-law"))
    assert (read_distribution(file).tables == known.tables).all()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    for named, code, flag in (
        (digest, 3, lambda name: ("--law", name)),
        ("0" * 64, 3, lambda name: (f"--law={name}",)),
    ):
        samples.write_text(json.dumps({"format": "parity-samples", "law_sha256": named}) + "\n")
        assert run_main(monkeypatch, tmp_path, "samples", str(samples), *flag(str(file))) == code
        err = capsys.readouterr().err
        assert err.startswith("--law: deprecated; use --distribution\n")
        assert ("of another distribution" in err) == (named != digest)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_verdict_that_nobody_can_read_is_none(tmp_path):
    command = [sys.executable, "-m", "parity_certify", "distribution", "--out", "target.json"]
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 3 and len(run.stderr.splitlines()) == 1 and "No space left" in run.stderr


def restore_interrupts():
    """Restore the handler of SIGINT, which a shell ignores in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_is_one_line(tmp_path, number):
    (tmp_path / "own.py").write_text(SAMPLER.replace("SHARE", ".5").replace("return (np", "time.sleep(1); return (np"))
    (tmp_path / "own.py").write_text("import time\n" + (tmp_path / "own.py").read_text())
    words = ["sampler", "own.py:sample", "--distribution", "own.py:probs", "--vocab", "2", "--length", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for opening in (r"(\d+)", r"continues after \d+ of (\d+)"):
        command = [sys.executable, "-m", "parity_certify", *words]
        with subprocess.Popen(command, cwd=tmp_path, preexec_fn=restore_interrupts, **pipes) as run:
            first = re.match(opening + " sequences, about .*: if it is lossless, expect TV", run.stderr.readline())
            run.send_signal(number)
            out, errors = run.communicate()
        stopped = rf"stopped after \d+ of {first[1]} sequences; the same command continues\n"
        assert out == "" and re.fullmatch(stopped, errors) and run.returncode == 3


def test_output_that_nobody_reads_leaves_files_and_no_traceback(tmp_path):
    (tmp_path / "own.py").write_text(SAMPLER.replace("SHARE", ".8"))
    words = [*OWN_WORDS, "--out", "out"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-m", "parity_certify", *words], cwd=tmp_path, **pipes) as run:
        run.stdout.close()
        errors = run.stderr.read()
    assert run.returncode in (1, 3) and b"BrokenPipe" not in errors and (tmp_path / "out/report.html").exists()


def test_an_edited_sampler_is_another_sampler(tmp_path):
    """The samples that were kept answer for the file as it was."""
    words = [*OWN_WORDS, "--margin", "0.1"]
    for share, verdict in (("0.50", 0), ("0.8", 1)):
        (tmp_path / "own.py").write_text(SAMPLER.replace("SHARE", share))
        completed = subprocess.run([sys.executable, "-m", "parity_certify", *words], cwd=tmp_path, capture_output=True)
        assert completed.returncode == verdict, completed.stdout.decode() + completed.stderr.decode()


def test_a_finished_engine_that_may_have_changed_is_drawn_anew(tmp_path, monkeypatch):
    """And nothing else in the folder is touched."""
    monkeypatch.setattr(sys, "argv", ["parity certify"])
    target = target_distribution(
        lambda prefixes: np.full((len(prefixes), 2), 0.5), vocab=2, length=2, prompts=[[0], [1]]
    )
    flags = {"n": 2000, "minutes": None, "budget": None, "repeat": None, "batch": 100, "processes": 1}
    flags |= {
        "margin": 0.1,
        "alpha": 0.05,
        "require": "certified",
        "history": None,
        "seed": 0,
        "length": 2,
        "prompts": 2,
        "prompt_length": 1,
        "out": tmp_path,
    }
    (tmp_path / "mine.txt").write_text("of the user")
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples/mine.npz").write_text("of the user")
    for may_change, share, verdict in ((True, 0.5, 0), (False, 0.8, 0), (True, 0.8, 1)):

        def sample(prompts, seed, share=share):
            return (np.random.default_rng(seed).random((len(prompts), 2)) < share).astype(int)

        a = argparse.Namespace(**flags)
        assert __main__.judge_sampler(a, sample, target, {"engine": "x"}, "x", may_change=may_change) == verdict
    assert (tmp_path / "mine.txt").exists() and (tmp_path / "samples/mine.npz").exists()
