"""What an edit runs again: exactly the jobs that import what was edited."""

import re

from parity.experiment.declared import PACKAGE

STAGES = ("equality", "metrics", "report", "decode", "decoders")
EDITED = sorted(p for stage in STAGES for p in (PACKAGE / stage).rglob("*.py") if p.name != "__init__.py")


def test_one_more_variant_of_any_kind_runs_its_own_jobs_and_the_report(project, snakemake, finished):
    finished()
    for kind, more in (
        ("discrete", ("sjd: [{window: 16}]", "sjd: [{window: 16}, {window: 17}]")),
        ("anysubset", ("assd: [{k: 5}]", "assd: [{k: 5}, {k: 4}]")),
        ("continuous", ("cspd: [{gamma: 4}]", "cspd: [{gamma: 4}, {gamma: 3}]")),
    ):
        (project / "more.yaml").write_text(EVERY.replace(*more))
        plan = jobs(snakemake("-n", config="more.yaml"))
        new = {file.split("/")[-2] for rule, file in plan if rule == "specification"}
        assert len(new) == 1, plan
        allowed = re.compile("|".join([*new, "^results/every/", f"^results/equality/exact/{kind}/"]))
        assert not [job for job in plan if not allowed.search(job[1])], plan
        assert ("report", "results/every/report.html") in plan
