"""The frame of field/: folders that are right, faulty, that crash, hang or lack their code; and the page."""

import importlib
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from parity_certify import certify_conditions, certify_verifier

ROOT = Path(__file__).resolve().parents[2]
VERIFIER = """
from parity_certify.verifiers import chain

def verifier(fault=""):
    return lambda tokens, q, p, rng: chain(tokens, q, p, rng, fault)
"""
SAMPLER = """
import numpy as np
from parity_certify import Sampled

def sampler(distribution, models, temperature=1.0, accepted=1):
    tables = distribution.tables[0]
    def sample(prompts, seed):
        rng, out = np.random.default_rng(seed), np.zeros((len(prompts), 2), dtype=int)
        out[:, 0] = rng.choice(3, p=tables[0], size=len(out))
        for row in out:
            row[1] = rng.choice(3, p=tables[1 + row[0]])
        return Sampled(out, len(out), accepted)
    return sample
"""
DESIGN = """
import numpy as np
from parity_certify import Sampled
from parity_certify.design import make_conditions

P = np.array([0.5, 0.3, 0.2])

def design(models):
    def sample(prompts, seed, *, length):
        out = np.random.default_rng(seed).choice(3, p=P, size=(len(prompts), length))
        return Sampled(out, len(out), 1)
    return make_conditions(sample, lambda prefixes: np.tile(np.log(P), (len(prefixes), 1)), vocab=3)
"""
SPECULATION = """
from case import speculate

def speculation(flat=1):
    def tested(draft_model, target_model, prefixes, drafts, rng):
        return speculate(draft_model, lambda tokens: target_model(tokens) / flat, prefixes, drafts, rng)
    return tested
"""
FOLDERS = {
    "right": ("{level: verifier, shape: batch, n: 2000, margin: 0.2}", VERIFIER),
    "faulty": ("{level: verifier, shape: batch, n: 2000, options: {fault: residual not subtracted}}", VERIFIER),
    "sampler": ("{level: sampler, model: table, vocab: 3, length: 2, n: 2000, margin: 0.2}", SAMPLER),
    "undrafted": ("{level: sampler, model: table, vocab: 3, length: 2, n: 500, options: {accepted: 0}}", SAMPLER),
    "design": ("{level: design, n: 1000, margin: 0.2}", DESIGN),
    "speculation": ("{level: speculation, shape: batch, n: 2000, margin: 0.2}", SPECULATION),
    "crashes": ("{level: verifier}", "raise OSError('the <engine> is gone')"),
    "hangs": ("{level: verifier, minutes: 0.03}", "import time\ntime.sleep(10**6)"),
    "missing": ("{level: verifier}", VERIFIER),
}  # fmt: skip


def run_step(folder: Path, *arguments: object) -> None:
    """Run a script of field/ on the implementations in `folder`/field; raise CalledProcessError if it fails."""
    environment = {"PARITY_FIELD": str(folder / "field"), "PATH": "/usr/bin:/bin"}
    environment["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT / 'certify/src'}:{ROOT / 'decoders/src'}"
    command = [sys.executable, str(ROOT / "field" / str(arguments[0])), *map(str, arguments[1:])]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which each toy implementation of FOLDERS was judged and the page was written."""
    folder = tmp_path_factory.mktemp("toys")
    (folder / "docs/results").mkdir(parents=True)
    for name, (case, adapter) in FOLDERS.items():
        target = folder / "field" / name
        target.mkdir(parents=True)
        lines = f"title: the {name} one\nminutes: 2\nreleased: 2026-05-01\ncases: {{only: {case}}}\n"
        if name == "missing":
            lines += "repository: file:///nowhere/at/all\ncommit: abcdef0\n"
        (target / "field.yaml").write_text(lines)
        (target / "adapter.py").write_text(adapter)
        if name == "faulty":
            (target / "reproduce.py").write_text("import sys\nprint('TV .2 & more')\nsys.exit(1)\n")
        results = Path("results/field") / name
        run_step(folder, "frame.py", "environment", name, "--out", results / "environment.json")
        run_step(folder, "frame.py", "judge", name, "--environment", results / "environment.json", "--models",
             "results/field/models", "--out", results / "verdict.json")  # fmt: skip
    run_step(folder, "page.py", "--keep", *FOLDERS, "--out", "field.html")
    return folder


def read_row(folder: Path, name: str) -> dict:
    """Read the only row of an implementation's verdict, with what its script that shows the fault gave."""
    verdict = json.loads((folder / "field" / name / "verdict.json").read_text())
    assert len(verdict["rows"]) == 1
    return verdict["rows"][0] | {"reproduction": verdict["reproduction"]}


@pytest.mark.long
def test_correct_implementations_are_not_rejected(judged: Path) -> None:
    for name in ("right", "sampler", "design", "speculation"):
        row = read_row(judged, name)
        assert (row["error"], row["verdict"]["kind"]) == ("", "certified")
        assert row["verdict"]["bound"] < 0.2
        assert row["accepted"] > 0
        assert row["controls"] == {"right": row["controls"]["right"], "wrong": "lossy"}


@pytest.mark.long
def test_a_fault_is_rejected_on_two_seeds_and_reproduced(judged: Path) -> None:
    row = read_row(judged, "faulty")
    assert (row["error"], row["verdict"]["kind"], row["seeds"]) == ("", "lossy", [0, 1])
    assert row["verdict"]["interval"][0] > 0
    assert row["reproduction"]["shows"]
    assert row["reproduction"]["prints"] == "TV .2 & more"


@pytest.mark.long
def test_no_accepted_draft_is_inconclusive(judged: Path) -> None:
    assert read_row(judged, "undrafted")["verdict"]["kind"] == "inconclusive"


@pytest.mark.long
@pytest.mark.parametrize(
    "name, word", [("crashes", "is gone"), ("hangs", "stopped after"), ("missing", "not installed")]
)
def test_an_implementation_that_fails_to_run_is_a_row(judged: Path, name: str, word: str) -> None:
    row = read_row(judged, name)
    assert word in row["error"]
    assert "\n" not in row["error"]
    assert "verdict" not in row


@pytest.mark.long
def test_the_page_holds_every_row(judged: Path) -> None:
    page = (judged / "field.html").read_text()
    document = (judged / "docs/results/field.md").read_text()
    for name in FOLDERS:
        assert f"the {name} one" in page
        assert f"the {name} one" in document
    assert "<engine>" not in page
    assert "&lt;engine&gt;" in page  # a name is escaped
    assert "src=" not in page
    assert set(re.findall(r"href=.(.)", page)) == {"#"}  # the page needs no other file
    assert page.count("2026-05-01</td>") == len(FOLDERS)
    badges = re.findall(r"<li>.*?</li>", page, re.DOTALL)
    assert len(badges) == len(FOLDERS)
    assert "lossy in 1 of 1 setting<" in next(x for x in badges if "the faulty one" in x)


@pytest.mark.parametrize("released", ["soon", "2026", "'2026-05-01'", "2026-05-01 10:00:00"])
def test_a_release_without_a_date_is_refused(tmp_path: Path, released: str) -> None:
    folder = tmp_path / "field/wrong"
    folder.mkdir(parents=True)
    (folder / "field.yaml").write_text(f"released: {released}\ncases: {{only: {{level: verifier}}}}\n")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run_step(tmp_path, "frame.py", "environment", "wrong", "--out", "x.json")
    assert refused.value.stderr.decode().startswith("error: wrong: released ")


def test_an_older_version_is_shown_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that a newer version does not have makes no project lossy; in the newer one it does."""
    monkeypatch.syspath_prepend(str(ROOT / "field"))
    page = runpy.run_path(str(ROOT / "field/page.py"))

    def row(kind: str, older: bool) -> dict:
        of = {"older": older, "url": "address", "title": "one", "where": ""}
        verdict = {"bound": 0.04, "estimate": 0.2}
        return {"of": of, "kind": kind, "claim": "lossless", "options": {}, "case": "only", "verdict": verdict}

    replayed = [row("lossy", True), row("certified", False)]
    assert page["count_rows"](replayed) | {"lossy projects": 0, "settings": 1} == page["count_rows"](replayed)
    assert "No implementation that claims" in page["write_sentences"](replayed)[1]
    assert page["count_rows"]([row("lossy", False), row("certified", True)])["lossy projects"] == 1


def test_the_page_of_reports_counts_misses_and_rejected_controls() -> None:
    """Of two reports that were run one is missed; of two runs of a control one is rejected; one could not be run. One
    that was remade in our own code counts neither as run nor among the controls."""
    page = runpy.run_path(str(ROOT / "field/reports/page.py"))

    def row(case: str, kind: str, bound: float = 0.05) -> dict:
        verdict = {"kind": kind, "words": kind, "where": "drafts 2, prompt [1]", "estimate": 0.1, "reason": ""}
        return {"case": case, "verdict": verdict | {"bound": bound}, "n": [100], "error": "", "seconds": 1.26}

    about = {"report": "address", "version": "1", "kind": "fault", "expect": "lossy", "unseen": True}
    controls = [row("default, plain", "certified"), row("default, plain, second seed", "lossy", 0.06)]
    remade = about | {"remade": True}
    reports = [
        about | {"name": "found", "rows": [row("default", "lossy"), *controls]},
        about
        | {
            "name": "missed",
            "missed": "no such condition",
            "lifted": True,
            "rows": [row("default", "certified", 0.1661)],
        },
        about | {"name": "absent", "rows": [], "why": "needs a GPU"},
        about | {"name": "mistaken", "expect": "correct", "rows": [row("default", "certified")]},
        remade | {"name": "again", "rows": [row("default", "lossy"), row("default, without the fault", "certified")]},
        remade | {"name": "rare", "missed": "too rare", "rows": [row("default", "certified")]},
    ]
    text, counts = page["write_document"](reports), page["write_counts"](reports)
    assert "listed before any was run: 1 of 2 that were run. Missed: missed (no such condition)." in text
    assert "Correct controls rejected: 1 of 2 distinct samples, so at most 97.5 %\n" in text
    assert "Mistaken reports that were not rejected: 1 of 1." in text
    assert "| consistent, TV ≤ 0.167 |" in text  # as on the page of the field, whatever margin was asked
    assert "- Found: 1 of 2." in text
    assert "remade run,2\nremade found,1\n" in counts
    assert "unseen run as a function alone,1\n" in counts
    assert "distinct controls,2" in counts


VERIFIERS = ["rtp-llm-1295", "vllm-54893", "sglang-39253", "tensorrt-llm-15098"]
GENERATORS = ["sglang-36173", "mlxcel-902", "lattice-388"]


@pytest.mark.parametrize("name", [*VERIFIERS, *GENERATORS])
def test_a_remade_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default command finds the fault, and passes the same code without it on as few sequences as a test has."""
    monkeypatch.syspath_prepend(str(ROOT / "field"))
    remade = importlib.import_module("remade")
    if name in VERIFIERS:
        shape = "tree" if name.startswith("tensorrt") else "batch"
        common = {"shape": shape, "drafts": 2}
        assert certify_verifier(remade.make_verifier(name), **common).verdict.kind == "lossy"
        fixed = certify_verifier(remade.make_verifier(name, fixed=True), n=300, draws=300, **common)
    else:
        conditions, missing = remade.make_design(None, name)
        assert certify_conditions(conditions, missing=missing).verdict.kind == "lossy"
        fixed = certify_conditions(remade.make_design(None, name, fixed=True)[0], n=300, draws=300, budget=None)
    assert fixed.verdict.kind != "lossy"
