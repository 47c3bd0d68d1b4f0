"""One place each: a decoder, a model family, a metric, an equality layer and an experiment are added by one file."""

import pytest

from parity.base.errors import ConfigError
from parity.experiment import module_metadata
from parity.experiment.layers import read_layers
from parity.experiment.study import metrics
from parity.experiment.weights import list_families, read_family
from parity.new.__main__ import DISCRETE, HEAD, METRIC, RULE
from tests.workflow.conftest import ALL_KINDS, read_jobs

FIGURE = "  study: [{title: t, x: method, y: [letters]}]\n"
LAYER = '''"""Whether there are tokens at all."""

from parity_certify import result_rows as R

ROLES = ("reference", "method")
WHEN = "always"
READS = ("shards",)
WRITES = ()
SETTINGS = ("alpha",)


def rows(cell):
    """One row: never rejected."""
    return [R.make_row("toy", "some", len(cell.shards.tokens), p_value=1.0, **cell.columns)]
'''


def test_a_file_adds_a_decoder_a_rule_a_family_a_metric_or_a_layer(project, snakemake):
    """All five at once. The other methods keep the common rule."""
    source = project / "src/parity"
    (project / "decoders/src/parity_decoders/discrete/toy.py").write_text((HEAD + DISCRETE).format(name="toy"))
    (project / "workflow/methods/mine.smk").write_text(RULE.format(name="toy", kind="discrete"))
    (source / "models/discrete/other.py").write_text((source / "models/discrete/llamagen.py").read_text())
    (source / "metrics/letters.py").write_text(METRIC.format(name="letters", kind="discrete", item="image"))
    (source / "equality/layers/discrete/toy.py").write_text(LAYER)
    raw = ALL_KINDS.replace("mtj: [{}]", "toy: [{}]").replace("text:\n", f"{FIGURE}text:\n", 1)
    (project / "toy.yaml").write_text(raw.replace("image:", "models: {scenes: {family: other}}\nimage:", 1))
    planned = snakemake("-n", "-p", config="toy.yaml")
    jobs = read_jobs(planned)
    decoded = {(rule, file) for rule, file in jobs if "/shards/" in file}
    assert {rule for rule, file in decoded if "/toy-" in file} == {"decode_toy"}
    assert {rule for rule, file in decoded if "/toy-" not in file} == {"decode"}
    assert any("equality/discrete/toy-" in file for _, file in jobs)
    assert "checkpoint" in {rule for rule, _ in jobs}
    commands = [line for line in planned.stdout.splitlines() if "--layers" in line and '"toy":{"alpha"' in line]
    assert len(commands) == 3  # those of plain decoding and of two methods, not of the control


def test_a_file_that_declares_too_little_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module_metadata, "PACKAGE", tmp_path)
    for file, text, words, read in (
        ("models/discrete/thin.py", "FAMILY = {'files': ()}\n", "FAMILY has no 'also'", lambda: read_family("thin")),
        (
            "metrics/thin.py",
            METRIC.replace(', "none")', ")").format(name="thin", kind="discrete", item="image"),
            "no direction",
            lambda: metrics("discrete"),
        ),
        (
            "equality/layers/discrete/thin.py",
            LAYER.replace("def rows", "def lines"),
            "rows",
            lambda: read_layers("discrete"),
        ),
    ):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
        for cached in (list_families, metrics):
            cached.cache_clear()
        with pytest.raises(ConfigError, match=f"{file}.*{words}"):
            read()
    for cached in (list_families, metrics):
        cached.cache_clear()
