"""One experiment after another in the same folder: what the first shared is not made again, all else is."""

import pytest

from tests.workflow.conftest import copied, finish, jobs, runner

DEFAULT, CI, WINDOW, PLAIN = (
    "config.yaml",
    *(f"workflow/experiments/{name}.yaml" for name in ("ci", "sjd-window", "sjd-init-plain")),
)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(CI, DEFAULT), (DEFAULT, CI), (WINDOW, PLAIN), ("every.yaml", WINDOW)])
def test_a_second_experiment_plans_all_that_the_first_did_not_make(tmp_path, first, second):
    """As in an empty folder, less what the first made."""
    project = copied(tmp_path)
    snakemake = runner(project)
    alone = jobs(snakemake("-n", config=second))
    made = {output for _, output in finish(project, snakemake, config=first)}
    planned = jobs(snakemake("-n", config=second))
    assert {job for job in alone if job[1] not in made} <= planned <= alone
    assert any(rule == "report" for rule, _ in planned)
    assert not any(rule == "checkpoint" and output in made for rule, output in planned)


def test_a_run_without_its_page_fails(project, snakemake):
    """Whatever Snakemake takes for finished: here the default target asks for the checkpoint alone."""
    main = project / "Snakefile"
    text = main.read_text()
    asked = '    input:\n        page_files(""),\n'
    assert asked in text
    main.write_text(text.replace(asked, "    input:\n        list(paths.manifests(EXPERIMENT).values()),\n"))
    run = snakemake()
    assert run.returncode != 0
    assert "results/tiny/report.html" in run.stdout + run.stderr


def test_a_file_of_the_page_that_is_gone_is_made_again(project, snakemake):
    finish(project, snakemake, config="tiny.yaml")
    for name in ("records.parquet", "summary.csv", "index.html"):
        file = project / "results/tiny" / name
        file.rename(file.with_suffix(".gone"))
        assert {rule for rule, _ in jobs(snakemake("-n"))} == {"report"}
        file.with_suffix(".gone").rename(file)
