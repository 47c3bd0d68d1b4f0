"""What `parity new` writes passes ruff, decodes, and has a test that passes."""

import importlib
import subprocess
import sys

import pytest
import torch
from parity_decoders.noise import counted_noise
from parity_decoders.protocols.continuous import Start, draw_order

from parity.decode.anysubset import record as record_texts
from parity.decode.continuous import record as record_vectors
from parity.experiment import options
from parity.experiment.module_metadata import find_folder
from parity.new import __main__ as new
from tests import tables
from tests.workflow.conftest import ROOT

KINDS = list(options.KINDS)
NAMES = ("mine", "a_name_of_twenty")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty project in which `parity new` writes, instead of this one, and whose decoders can be imported."""
    monkeypatch.setattr(new, "ROOT", tmp_path)
    monkeypatch.setattr(new, "PACKAGE", tmp_path / "src/parity")
    monkeypatch.setattr(new, "find_folder", lambda package: tmp_path / find_folder(package).relative_to(ROOT))
    (tmp_path / "Snakefile").touch()
    for kind in KINDS:
        package = importlib.import_module(f"parity_decoders.{kind}")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(new.find_folder(f"decoders/{kind}"))])
        monkeypatch.delattr(package, "mine", raising=False)
        monkeypatch.delitem(sys.modules, f"{package.__name__}.mine", raising=False)
    return tmp_path


def run_ruff(folder):
    """Run ruff's check and format on the Python files in a folder, with this project's settings; return complaints."""
    output = ""
    decoders = [path for path in folder.rglob("*.py") if path.is_relative_to(folder / "decoders")]
    others = [path for path in folder.rglob("*.py") if path not in decoders]
    for roots, files in (("['decoders/src']", decoders), ("['src', '.']", others)):
        settings = ["--config", f"{ROOT}/pyproject.toml", "--config", f"src = {roots}", *map(str, files)]
        for command in (["check", "--quiet"], ["format", "--diff", "--quiet"]):
            output += subprocess.run(["ruff", *command, *settings], capture_output=True, text=True, cwd=ROOT).stdout
    return output


def test_written_files_pass_ruff(folder):
    """Decoders and metrics of every kind, and copies of every decoder."""
    for kind in KINDS:
        for name in NAMES:
            new.write_decoder(f"{name}_{kind}", kind, "")
            new.write_metric(f"{name}_{kind}", kind)
        for number, like in enumerate(options.methods(kind)):
            source = ROOT / f"decoders/src/parity_decoders/{kind}/{like}.py"
            original = folder / f"decoders/src/parity_decoders/{kind}/{like}.py"
            original.write_text(source.read_text())
            new.write_decoder(f"m_{number}", kind, like)
            original.unlink()
    assert len(list(folder.rglob("*.py"))) > 50
    assert run_ruff(folder) == ""
    (folder / "wrong.py").write_text("import sys, os\n")
    assert "wrong.py" in run_ruff(folder)


def decode_small_model(kind, decoder):
    """Decode 50 rows of a tabular model of a kind by a decoder; return their tokens."""
    noise = counted_noise(3, range(50))
    if kind == "discrete":
        forced = torch.tensor([1, -1, 2, 0, -1, -1, 3])
        return tables.decode_table(decoder, tables.make_table(4, 7), 7, 50, forced=forced).tokens
    if kind == "anysubset":
        model = tables.make_text_model(3, 6, 3)
        start = tables.draw_prompts(model, 50)
        return record_texts(model, start, decoder(model, start, noise=noise)).tokens
    models = tables.make_mixtures(50)
    start = Start(draw_order(noise, 50, 5, False))
    return record_vectors(models, start, decoder(models, start, noise=noise)).tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_decoder_draws_plain_decodings_tokens(folder, kind):
    new.write_decoder("mine", kind, "")
    plain = tables.import_decoder(kind, options.find_plain_method(kind))
    assert torch.equal(decode_small_model(kind, tables.import_decoder(kind, "mine")), decode_small_model(kind, plain))


@pytest.mark.parametrize("kind", KINDS)
def test_the_written_test_passes(folder, kind):
    new.write_decoder("mine", kind, "")
    names = {}
    exec((folder / "tests/decoders/test_mine.py").read_text(), names)
    names["test_mine_draws_from_the_distribution"]()
    names["test_the_test_can_fail"]()


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_of_its_own_passes_ruff_and_its_test(folder, kind, monkeypatch):
    """Its decoder draws plain decoding's tokens, and a fault put into it is found."""
    package = folder / "package"
    new.write_package("outer", kind, "", False, package)
    settings = ["--isolated", "--line-length", "120", "--quiet", "."]
    for command in (["check", "--select", "E,F,I"], ["format", "--diff"]):
        assert subprocess.run(["ruff", *command, *settings], capture_output=True, text=True, cwd=package).stdout == ""
    names = {"__file__": str(package / "test_outer.py")}
    exec((package / "test_outer.py").read_text(), names)
    plain = tables.import_decoder(kind, options.find_plain_method(kind))
    assert torch.equal(decode_small_model(kind, names["DECODER"]), decode_small_model(kind, plain))
    names["test_a_fault_is_found"](monkeypatch)


def test_the_page_shows_the_whole_file(folder):
    new.write_decoder("mine", "discrete", "")
    text = (folder / "decoders/src/parity_decoders/discrete/mine.py").read_text()
    assert f"```python\n{text}```\n" in (ROOT / "docs/start/decoder.md").read_text()


def test_the_page_shows_the_drafted_decoder_as_it_is_written():
    text = new.fill("drafted.py", name="mine")
    function = text[text.index("@torch.inference_mode()") :]
    assert f"```py\n{function}```\n" in (ROOT / "docs/howto/decoders-of-others.md").read_text()
