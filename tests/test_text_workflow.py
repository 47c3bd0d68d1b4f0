"""The text stages one after another, in one process; the rules that chain them; and what stops them before any job."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from parity.anysubset import __main__ as commands
from parity.base.files import canonical, read_arrays, read_json
from parity.experiment import config
from parity.experiment import paths as layout
from tests.test_workflow import project, snakemake  # noqa: F401

ROOT = Path(__file__).parent.parent
SETTINGS = {
    "experiment": "t",
    "methods": {"ar": [{}]},
    "equality": {"n": 10000},
    "text": {
        "methods": {"sequential": [{}], "assd": [{"k": 3}], "gpt2": [{}], "diffusion": [{"steps": 4}]},
        "tasks": {
            "infilling": [{"rows": 6, "length": 24}, {"rows": 3, "length": 24, "prompt": "prefix"}],
            "stories": [{"rows": 3}],
            "code": [{"rows": 2}],
            "last_word": [{"rows": 5}],
            "choice": [{"rows": 3}],
        },
        "batch": 4,
    },
}


def run(*arguments):
    a = commands.parser().parse_args([str(x) for x in arguments])
    a.run(a)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every stage of a small experiment, called as the rules call it."""
    here = tmp_path_factory.mktemp("text")
    settings = config.load(SETTINGS)
    cells, tasks = config.text_cells(settings), config.text_tasks(settings.text)
    model = ["--model", canonical(settings.text.model.model_dump())]
    laws, exact = [], {}
    for t in tasks:
        file = here / f"results/text/tasks/{t['kind']}-{t['key']}.npz"
        run("task", "--kind", t["kind"], "--settings", canonical(t["settings"]), *model, "--out", file)
        if t["kind"] in ("last_word", "choice"):
            laws.append(here / f"{t['kind']}.json")
            run("laws", "--kind", t["kind"], "--task", file, *model, "--out", laws[-1])
    for c in cells:
        run(
            "decode",
            "--spec",
            canonical(c["spec"]),
            "--task",
            here / layout.text_task(c["spec"]),
            *model,
            "--out",
            here / layout.text_cell(c),
        )
        key, spec = layout.text_exact_key(settings, c["spec"]), c["spec"]
        if spec["method"] != "gpt2" and key not in exact:
            exact[key] = here / layout.text_exact(key, spec)
            run(
                "exact", "--method", spec["method"], "--options", canonical(layout.text_small(spec["options"])), "--seeds", "[11, 12]",
                "--n", 10000, "--out", exact[key],
            )  # fmt: skip
    files = [here / layout.text_cell(c) for c in cells]
    given = [here / layout.text_task(c["spec"]) for c in cells]
    run(
        "measure",
        "--cells",
        *files,
        "--tasks",
        *given,
        *model,
        "--equality",
        here / "forced.json",
        "--out",
        here / "records.parquet",
    )
    run(
        "report", "--config", settings.model_dump_json(exclude_unset=True), "--records", here / "records.parquet", "--equality",
        here / "forced.json", "--exact", *exact.values(), "--laws", *laws, "--published", ROOT / "workflow/published/text/assd.csv",
        "--out", here / "text.html",
    )  # fmt: skip
    return here, settings, cells


def test_every_cell_has_records_and_a_verdict(results):
    here, _, cells = results
    table = pd.read_csv(here / "text.csv")
    assert len(table) == len(cells) and table["perplexity"].notna().all()
    sequential = table[table["method"] == "sequential"]
    assert (sequential["nfe_per_token"] == 1).all() and (table[table["method"] == "assd"]["nfe_per_token"] <= 1).all()
    assert set(table[table["method"] == "gpt2"]["settings"].map(lambda s: json.loads(s)["prompt"])) == {"prefix"}
    diffusion = table[(table["method"] == "diffusion") & (table["task"] == "infilling")]
    assert diffusion["verdict"].str.startswith("lossy").all() and (diffusion["nfe"] <= 4).all()
    assert not table[table["method"] == "sequential"]["verdict"].str.startswith("lossy").any()
    assert table[table["role"] != "reference"]["p_perplexity_welch"].notna().all()
    assert table[table["task"] == "stories"]["rouge1"].between(0, 1).all()


def test_prompts_stand_in_every_cell(results):
    here, _, cells = results
    for c in cells:
        rows, task = read_arrays(here / layout.text_cell(c)), read_arrays(here / layout.text_task(c["spec"]))
        assert (rows["tokens"][task["known"]] == task["tokens"][task["known"]]).all()


def test_page_is_whole_and_says_why_code_was_not_run(results):
    here, _, _ = results
    page = (here / "text.html").read_text()
    assert page.rstrip().endswith("</html>") and "<script" not in page and "http://" not in page
    assert "pass@1 not run" in page and "run_generated_code is off" in page
    assert "0.893" in page  # the paper's passes per token
    assert read_json(here / "last_word.json")["n"] == 5 and read_json(here / "choice.json")["n"] == 3


def dry_run(folder, settings):
    (folder / "x.yaml").write_text(yaml.safe_dump(settings))
    return snakemake(folder, "-n", "text", config="x.yaml")


def test_rules_chain_and_bad_data_stops_before_any_job(project):  # noqa: F811
    """A dry run of the chain; the same without a text section; and a data file without its columns: a single line, no job."""
    done = dry_run(project, SETTINGS)
    assert done.returncode == 0, done.stderr[-2000:]
    for rule in ("text_task", "text_decode", "text_laws", "text_exact", "text_measure", "text_report"):
        assert rule in done.stdout + done.stderr
    done = dry_run(project, {k: v for k, v in SETTINGS.items() if k != "text"})
    assert done.returncode == 0 and "text_decode" not in done.stdout + done.stderr
    (project / "bad.csv").write_text("a,b\n1,2\n")
    done = dry_run(
        project, {**SETTINGS, "text": {"methods": {"sequential": [{}]}, "tasks": {"stories": [{"data": "bad.csv"}]}}}
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert (
        done.returncode
        and len(errors) == 1
        and "row 1 has no sentence1 or InputSentence1; its columns: a, b" in errors[0]
    )
