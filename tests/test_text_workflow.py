"""The text stages one after another, in one process; the rules that chain them; and what stops them before any job."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from parity.anysubset import __main__ as commands
from parity.base.files import canonical, read_arrays, read_json, write_json
from parity.equality import rows as R
from parity.experiment import config
from parity.experiment import paths as layout
from parity.report import anysubset as report
from parity.report.environment import environment
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


def test_words_from_a_model_cannot_become_markup():
    shown = environment(Path()).from_string("{{ text }}").render(text="<img src=x onerror=alert(1)>")
    assert "<" not in shown


# --- the page's arithmetic


def verdict_with(tmp_path, repeat, p):
    """The verdict on assd from teacher-forced rows of given p: of its cell, of the same on another task, of their repetitions."""
    tasks = {"infilling": [{"rows": 4, "length": 24}, {"rows": 4, "length": 32}]}
    text = {"methods": {"sequential": [{}], "assd": [{"k": 3}]}, "tasks": tasks}
    settings = config.load({"methods": {"ar": [{}]}, "repeat": repeat, "text": text})
    rows, exact = [], {}
    for cell in config.text_cells(settings):
        spec = cell["spec"]
        file = tmp_path / layout.text_exact(layout.text_exact_key(settings, spec), spec)
        write_json(file, {"rows": []})
        exact[file.name] = file
        values = p.pop(0) if spec["method"] == "assd" else [0.5]
        rows += [
            R.row("teacher-forced", f"t{i}", 100, p_value=v, key=cell["key"], decides=True)
            for i, v in enumerate(values)
        ]
    tests, found = report.judged(settings, list(exact.values()), {"rows": rows})
    return tests, next(v for v in found if v["method"] == "assd")


def test_a_teacher_forced_rejection_is_repeated_on_a_fresh_seed(tmp_path):
    _, once = verdict_with(tmp_path, False, [[1e-6], [0.5]])
    assert once["verdict"] == "inconclusive" and "repeat: true" in once["note"]
    _, cleared = verdict_with(tmp_path, True, [[1e-6], [0.5], [0.5], [0.5]])
    assert cleared["verdict"] == "inconclusive" and "not on the fresh seed" in cleared["note"]
    tests, confirmed = verdict_with(tmp_path, True, [[1e-6], [1e-6], [0.5], [0.5]])
    assert confirmed["verdict"].startswith("lossy") and confirmed["claim"] == "lossless"
    assert [r["repeat"] for r in tests if r["method"] == "assd"] == [0, 1, 0, 1]


def test_tests_of_all_tasks_are_one_family(tmp_path):
    """A p of 0.02 in one of two tasks is no rejection at 0.05 when there are four tests; it is one where it stands alone."""
    tests, found = verdict_with(tmp_path, False, [[0.02, 0.5], [0.6, 0.7]])
    assert found["verdict"] == "consistent" and max(
        r["p_holm"] for r in tests if r["p_value"] == 0.02
    ) == pytest.approx(0.08)


CELL = {
    "task": "infilling",
    "method": "assd",
    "cache": True,
    "role": "method",
    "key": "k5",
    "nfe_per_token": 0.7,
    "seconds_ratio": 1.2,
}
PLACE = {"length": 128, "masked": 0.95, "prompt": "scattered", "rows": 8}


def cells_of(*changes):
    made = []
    for change in changes:
        options = {"k": 5, "tolerance": 0.0} | change.pop("options", {})
        made.append(
            CELL | {"settings": json.dumps(PLACE | change.pop("place", {})), "options": json.dumps(options)} | change
        )
    return pd.DataFrame(made)


def beside(table, laws=()):
    return report.published([ROOT / "workflow/published/text/assd.csv"], table, list(laws))


def test_published_figures_stand_beside_the_cell_they_are_of():
    found = beside(cells_of({}))
    one = found[(found["table"] == "Table 1") & (found["metric"] == "nfe_per_token")].iloc[0]
    assert (
        one["ours"] == 0.7
        and one["value"] == 0.893
        and "Table 9" not in set(found["table"])
        and "Table 3" not in set(found["table"])
    )
    assert set(found[found["table"] == "Table 5"]["options"]) == {'{"k": 5}'}  # other k were not run, and this one was
    both = beside(cells_of({"place": {"length": 32}, "key": "short"}, {"key": "long"}))
    assert set(both[both["table"] == "Table 1"]["our_cell"]) == {"long"}
    lossy = beside(cells_of({"options": {"tolerance": 0.1}, "place": {"length": 256}}))
    assert lossy[lossy["table"] == "Table 1"]["ours"].isna().all()  # what the paper leaves unsaid is the default, 0
    assert set(lossy[lossy["our_cell"] != ""]["table"]) == {"Table 8"}
    prefix = beside(cells_of({"place": {"prompt": "prefix", "masked": 0.75}}))
    assert set(prefix["table"]) == {"Table 9"}
    accuracy = beside(cells_of(), [{"kind": "choice", "accuracy": 0.7}])
    assert (
        set(accuracy["table"]) == {"Table 10"}
        and set(accuracy["ours"]) == {0.7}
        and set(accuracy["task"]) == {"choice"}
    )


def test_every_published_row_can_be_run():
    """Its task, conditions, method and options are accepted by the configuration."""
    said = pd.read_csv(ROOT / "workflow/published/text/assd.csv", keep_default_na=False)
    for _, p in said.drop_duplicates(["task", "conditions", "method", "options"]).iterrows():
        where = {k: v for k, v in json.loads(p["conditions"]).items() if k != "cache"}
        options = {k: v for k, v in json.loads(p["options"]).items() if v is not None}
        methods = {"sequential": [{}]} | ({p["method"]: [options]} if p["method"] else {})
        config.load({"methods": {"ar": [{}]}, "text": {"methods": methods, "tasks": {p["task"]: [where]}}})
    assert set(said["metric"]) <= set(report.MEASURES)


def test_a_sweep_is_drawn_where_three_values_are():
    table = cells_of(*({"options": {"k": k}, "key": f"k{k}", "perplexity_ratio": 1.0} for k in (3, 5, 8)))
    found = report.sweeps(table, beside(table))
    assert [name for name, _ in found] == [report.SWEEPS["k"]] and found[0][1].startswith("data:image/svg+xml")
    assert not report.sweeps(table[:2], beside(table[:2]))


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
