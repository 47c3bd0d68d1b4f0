"""The workflow as a user runs it: bad input stops it, and so does a run beside it."""

import yaml

from parity.base import machine
from parity.experiment.options import KINDS, methods
from tests.workflow.conftest import EVERY, ROOT, TINY, jobs


def errors(run):
    assert run.returncode != 0 and "Traceback" not in run.stderr, run.stderr
    return [line for line in run.stderr.splitlines() if line.startswith("error:")]


def test_bad_input_stops_before_any_job_with_one_line(project, snakemake):
    raw = yaml.safe_load(EVERY)
    raw["image"]["batchh"] = 3
    (project / "bad.yaml").write_text(yaml.safe_dump(raw))
    (line,) = errors(snakemake(config="bad.yaml"))
    assert "image.batchh = 3" in line and "unknown key" in line and not (project / "results").exists()
    del raw["image"]["batchh"]
    (project / "words.txt").write_text("zebra xylophone quixotic\n")
    raw["text"]["tasks"]["last_word"] = [{"rows": 2, "data": "words.txt"}]
    (project / "bad.yaml").write_text(yaml.safe_dump(raw))
    (line,) = errors(snakemake(config="bad.yaml"))
    assert "'zebra'" in line


def test_a_wrong_checkpoint_stops_with_one_line_after_one_try(project, snakemake):
    weights = project / "src/parity/embedded/weights/discrete/vq.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    done = snakemake("--until", "checkpoint")
    assert not errors(done) and "models.scenes" in done.stderr and done.stderr.count("SHA-256") == 1


def test_the_default_experiment_leaves_no_discrete_method_out(snakemake):
    """Every decoder at once, planned and not run."""
    given = yaml.safe_load((ROOT / "config.yaml").read_text())
    assert set(given["image"]["methods"]) == set(methods("discrete"))
    planned = {file for rule, file in jobs(snakemake("--dry-run", config="config.yaml")) if rule == "decode"}
    named = {(kind, m) for kind, section in KINDS.items() for m in given[section]["methods"]}
    assert {(file.split("/")[2], file.split("/")[4].rpartition("-")[0]) for file in planned} == named


def test_a_second_run_at_once_is_refused_in_one_line(project, snakemake):
    """Whatever it would make, for its jobs and the first one's need not be the same; a plan is not refused."""
    with machine.lock_folder(project / ".snakemake"):
        (line,) = errors(snakemake("--until", "shard_prompts"))
        assert "another run" in line and not (project / "results/cells").exists()
        assert snakemake("--until", "shard_prompts", "-n").returncode == 0
    machine.lock_folder(project / ".snakemake").close()


OPEN = """
experiment: open
models: {theirs: {family: chameleon, source: hub, repo: o/n, files: {model: ., vq: 'hub:x/y:vq.ckpt'}}}
image: {prompts: {file: prompts/scenes.txt, limit: 4}, methods: {ar: [{}], sjd: [{window: 16}]}}
"""


def test_a_dry_run_needs_no_commit_and_a_run_does(project, snakemake):
    """Before its first job, and whichever file of it is asked for."""
    (project / "open.yaml").write_text(OPEN)
    assert {rule for rule, _ in jobs(snakemake("-n", config="open.yaml"))} >= {"checkpoint", "decode", "report"}
    for asked in ((), ("--until", "shard_prompts"), ("--", "plan")):
        (line,) = errors(snakemake(*asked, config="open.yaml"))
        assert "o/n has no commit yet" in line or "x/y has no commit yet" in line
        assert not list(project.glob("results/*"))


def test_a_plan_is_printed_beside_a_run(project, snakemake):
    with machine.lock_folder(project / ".snakemake"):
        beside = snakemake("--", "plan")
    assert beside.returncode == 0 and "scenes" in beside.stdout + beside.stderr
    machine.lock_folder(project / ".snakemake").close()


def test_until_takes_one_rule_and_runs_all_that_leads_to_it(project, snakemake):
    (line,) = errors(snakemake("--until", "checkpoint", "shard_prompts", "decode"))
    assert "--until checkpoint decode shard_prompts" in line and not (project / "results").exists()
    found = {rule for rule, _ in jobs(snakemake("-n", "--until", "decode"))}
    assert found == {"checkpoint", "shard_prompts", "captions", "decode"}


def test_command_lines_do_not_grow_with_shards(project, snakemake):
    """Files that differ in their number are one name: a thousand would be more than a command line holds."""
    (project / "many.yaml").write_text(TINY.replace("limit: 4, shards: 2", "limit: 120, shards: 120, jobs: 120"))
    done = snakemake("-n", "-p", config="many.yaml")
    assert done.returncode == 0, done.stderr
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.lstrip().startswith(("python", "--"))]
    assert sum("/*-of-120.npz'" in line for line in lines) >= 3 and max(map(len, lines)) < 1000
