"""One place each: a decoder, a model family, a metric, an equality layer and an experiment are added by one file."""

from parity.new.__main__ import RULE
from tests.workflow.conftest import ALL_KINDS, read_jobs

DECODER = '''"""Plain decoding under another name."""

from collections.abc import Iterator

from torch import Tensor

from parity_decoders.noise import Noise
from parity_decoders.discrete.ar import ar
from parity_decoders.steps import Step

CLAIM = "lossless"
SOURCE = "a toy"


def toy(model, start: Tensor, *, noise: Noise, speed: int = 1) -> Iterator[Step]:
    """speed  of nothing"""
    return ar(model, start, noise=noise)
'''
METRIC = '''"""How long a caption is."""

KINDS = ("discrete",)
MEASURES = {"letters": ("letters of a caption", "", "none")}


def measure(sample) -> dict[str, float]:
    """{"letters": mean length of the captions}."""
    return {"letters": float(sum(map(len, sample.captions)) / len(sample.captions))}
'''
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


def test_a_decoder_is_added_by_one_file(project, snakemake):
    (project / "decoders/src/parity_decoders/discrete/toy.py").write_text(DECODER)
    (project / "toy.yaml").write_text(ALL_KINDS.replace("mtj: [{}]", "toy: [{}, {speed: 2}]"))
    planned = read_jobs(snakemake("-n", config="toy.yaml"))
    assert len([1 for rule, file in planned if rule == "decode" and "/toy-" in file]) == 2
    assert any("equality/discrete/toy-" in file for _, file in planned)
    (project / "toy.yaml").write_text(ALL_KINDS.replace("mtj: [{}]", "toy: [{quick: 2}]"))
    wrong = snakemake("-n", config="toy.yaml")
    assert wrong.returncode != 0
    assert "toy.0.quick = 2: unknown key; allowed: speed" in wrong.stderr
    # Now the method has a rule of its own; the other methods keep the common one.
    (project / "workflow/methods/mine.smk").write_text(RULE.format(name="toy", kind="discrete"))
    (project / "toy.yaml").write_text(ALL_KINDS.replace("mtj: [{}]", "toy: [{}]"))
    decoded = {(rule, file) for rule, file in read_jobs(snakemake("-n", config="toy.yaml")) if "/shards/" in file}
    assert {rule for rule, file in decoded if "/toy-" in file} == {"decode_toy"}
    assert {rule for rule, file in decoded if "/toy-" not in file} == {"decode"}
    assert len(decoded) > 4


def test_a_family_is_added_by_a_module_that_declares_itself(project, snakemake):
    source = (project / "src/parity/models/discrete/llamagen.py").read_text()
    (project / "src/parity/models/discrete/other.py").write_text(source)
    raw = ALL_KINDS.replace("image:", "models: {scenes: {family: other}}\nimage:")
    (project / "toy.yaml").write_text(raw)
    assert "checkpoint" in {rule for rule, _ in read_jobs(snakemake("-n", config="toy.yaml"))}
    file = project / "src/parity/models/discrete/other.py"
    file.write_text(source.replace('"network"', '"net"', 1))
    wrong = snakemake("-n", config="toy.yaml")
    assert "models/discrete/other.py: FAMILY has no 'network'" in wrong.stderr
    file.write_text(source)
    (project / "toy.yaml").write_text(raw.replace("other", "another"))
    wrong = snakemake("-n", config="toy.yaml")
    assert "models.scenes.family = 'another'" in wrong.stderr
    assert "llamagen, other" in wrong.stderr


def test_a_metric_is_added_by_one_file(project, snakemake):
    (project / "src/parity/metrics/letters.py").write_text(METRIC)
    figure = "  study: [{title: t, x: method, y: [letters]}]\n"
    (project / "toy.yaml").write_text(ALL_KINDS.replace("text:\n", f"{figure}text:\n", 1))
    assert read_jobs(snakemake("-n", config="toy.yaml"))
    (project / "src/parity/metrics/letters.py").write_text(METRIC.replace(', "none")', ")"))
    wrong = snakemake("-n", config="toy.yaml")
    assert "metrics/letters.py" in wrong.stderr
    assert "no direction" in wrong.stderr


def test_a_layer_is_added_by_one_file(project, snakemake):
    (project / "src/parity/equality/layers/discrete/toy.py").write_text(LAYER)
    planned = snakemake("-n", "-p", config="every.yaml")
    commands = [line for line in planned.stdout.splitlines() if "--layers" in line and '"toy":{"alpha"' in line]
    assert planned.returncode == 0
    assert len(commands) == 3  # those of plain decoding and of two methods, not of the control
    (project / "src/parity/equality/layers/discrete/toy.py").write_text(LAYER.replace("def rows", "def lines"))
    wrong = snakemake("-n", config="every.yaml")
    assert "layers/discrete/toy.py" in wrong.stderr
    assert "rows(...)" in wrong.stderr


def test_an_experiment_may_have_a_single_section(project, snakemake):
    text = ALL_KINDS[ALL_KINDS.index("text:") : ALL_KINDS.index("continuous:")]
    (project / "alone.yaml").write_text(f"experiment: alone\n{text}")
    assert ("report", "results/alone/report.html") in read_jobs(snakemake("-n", config="alone.yaml"))
