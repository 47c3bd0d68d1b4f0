"""Every command and snippet of the pages Start and How-to, and of two others, runs.

A Python or YAML block whose first line names a file is written to it; other Python is executed, other YAML is checked
against the schema. In a `console` block, lines below a command are parts of its output; Snakemake runs as a dry run,
since CI and other tests run whole experiments. The commands of an `options` block need a server, a cluster or files of
others: their flags are checked. Pages of checkpoints run on small random weights in the published layouts, which lie
where a page's downloads would.
"""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial

import pytest
import yaml
from parity_certify.__main__ import make_parser as certify_parser
from pydantic import ValidationError
from snakemake.cli import get_argument_parser

from parity.experiment.schema import Config
from parity.stand_ins import write
from tests.workflow.conftest import ROOT, copy_project

PAGES = sorted([*(ROOT / "docs/start").glob("*.md"), *(ROOT / "docs/howto").rglob("*.md")])
PAGES += [ROOT / "decoders/README.md", ROOT / "docs/results/engines.md"]
# pages with snippets that decode, judge or tune
DECODING = (
    "certify", "checkpoint", "speculator", "decoder", "engine", "experiment", "generate", "speed", "tables", "texts",
    "train-arm", "transformers", "README",
)  # fmt: skip
CHECKPOINTS = {  # stand-ins of the pages of checkpoints: the path in its folder, and where the page has it
    "checkpoint": {"llamagen": {"": "llamagen"}},
    "llamagen": {"llamagen": {"": "llamagen"}, "llamagen_c2i": {"": "classes"}},
    "janus": {"janus_released": {"Janus-Pro-1B": "Janus-Pro-1B"}, "janus": {"Janus-Pro-1B": "Janus-Pro-1B-hf"}},
    "emu3": {"emu3": {"Emu3-Gen-hf": "Emu3-Gen-256"}},
    "emu3p5": {
        "emu3p5": {"Emu3.5-Image": "Emu3.5-Image-256", "Emu3.5-VisionTokenizer": "Emu3.5-VisionTokenizer"},
    },
    "imagegpt": {"imagegpt": {"imagegpt-small": "imagegpt-small"}},
    "liquid": {"liquid": {"Liquid_V1_7B": "Liquid_V1_7B"}, "chameleon": {"vqgan.ckpt": "vqgan.ckpt"}},
    "lumina": {
        "chameleon": {"Lumina-mGPT-7B-768": "Lumina-mGPT-7B-256", "vqgan.ckpt": "vqgan.ckpt"},
        "anole": {"Anole-7b-v0.1-hf": "Anole-7b-v0.1-hf"},
    },
    "mar": {"mar": {"": "mar"}},
    "xlnet": {"xlnet": {"": "."}, "gpt2": {"gpt2-large": "gpt2-large"}},
    "glm-image": {"glm_image": {"": "GLM-Image"}},
}
NEEDS = {"glm-image": "diffusers"}  # packages of the group dev that a page's script imports
# paths and sizes that a test changes: a folder's name says the size of its images
SHORTER = {
    "Emu3-Gen-hf": "Emu3-Gen-256", "Emu3.5-Image": "Emu3.5-Image-256", "Lumina-mGPT-7B-512": "Lumina-mGPT-7B-256",
    "720 // 8": "48 // 8", "1024 // 16": "256 // 16",
}  # fmt: skip
BLOCK = re.compile(r"^```(python|yaml|console|options)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OWN = re.compile(r"\d[\d.,]*(?= (?:passes,|by sjd_coupled|s each|images an hour))")  # numbers of a machine
FILE = re.compile(r"# ([\w/]+\.(?:py|yaml))\n")
PARITY = [sys.executable, "-c", "from parity.base.console import main; main()"]


def run_console(text, folder):
    """Run the commands of a `console` block in a folder and assert that each prints its expected lines, with times and
    passes of a fast decoder of its own, and fails exactly if one of them says "lossy"; snakemake runs dry, and `parity
    tune`, which tests/tune runs, not at all."""
    environment = os.environ | {"PYTHONPATH": f"{folder}/src:{folder}/certify/src:{folder}/decoders/src:{folder}"}
    for block in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *expected = block.strip().splitlines()
        words = shlex.split(line.removeprefix("uv run "))
        if words[:2] == ["parity", "tune"]:
            check_flags(line)
            continue
        command = {"parity": PARITY, "python": [sys.executable]}.get(words[0], words[:1]) + words[1:]
        command += ["--dry-run", "--quiet"] if words[0] == "snakemake" else []
        finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        output = finished.stdout + finished.stderr
        for line_expected in expected:
            pattern = r"\d[\d.,]*".join(map(re.escape, OWN.split(line_expected)))
            assert re.search(pattern, output), (line, line_expected, output)
        assert finished.returncode == any("lossy" in line_expected for line_expected in expected), (line, output)


def lay_weights(page, folder):
    """Write the stand-ins of a page of a checkpoint where its downloads would lie in `folder`."""
    for name, places in CHECKPOINTS.get(page, {}).items():
        written = folder / "written" / name
        if name == "glm_image":  # a pipeline of diffusers, which `parity` does not read
            importlib.import_module("decoders.tests.pipelines").write_pipeline(written)
        else:
            write(name, written)
        for source, target in places.items():
            copy = shutil.copy if (written / source).is_file() else partial(shutil.copytree, dirs_exist_ok=True)
            copy(written / source, folder / target)


def check_flags(line):
    """Assert that the flags of a command line exist, and that the files of this project which it names do."""
    words = shlex.split(line.removeprefix("uv run ").removeprefix("--extra cluster "))
    if words[0] == "snakemake":
        # Flags of the cluster's plugins are ignored, since the plugins are not installed here.
        get_argument_parser().parse_known_args(words[1:])
        assert all((ROOT / word).exists() for word in words if word.startswith(("workflow/", "profiles/"))), line
    elif words[:2] == ["parity", "certify"]:
        certify_parser().parse_args(shlex.split(line.partition(" -- ")[0])[2:])
    else:
        words = words[1:] if words[0] == "parity" else [words[2].removeprefix("parity."), *words[3:]]
        command = [*PARITY, *(word for word in words[:2] if not word.startswith("--")), "--help"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert all(flag in text for flag in words if flag.startswith("--")), (line, text)


def check_configuration(text):
    """Assert that a YAML block fits the schema, with digests in place of their placeholders; keys may be missing."""
    text = text.replace('"..."', f'"{0:064}"').replace('"40 hex digits"', f'"{0:040}"')
    try:
        Config.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        problems = [problem for problem in error.errors() if problem["type"] != "missing"]
        assert not problems, problems


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.long] * (page.stem in {*DECODING, *CHECKPOINTS}))
        for page in PAGES
    ],
)
def test_every_command_and_snippet_runs(page, tmp_path, monkeypatch):
    pytest.importorskip(NEEDS.get(page.stem, "pytest"))
    text = page.read_text(encoding="utf-8")
    for path in SHORTER if page.stem in CHECKPOINTS else ():
        text = text.replace(path, SHORTER[path])
    blocks = BLOCK.findall(text)
    assert blocks, f"{page.name}: no snippet"
    folder = tmp_path / "project"
    if any(kind == "console" for kind, _ in blocks):
        copy_project(folder)
        (folder / "docs").mkdir()
        (folder / "docs/example_decoders.py").write_text((ROOT / "docs/example_decoders.py").read_text())
        lay_weights(page.stem, folder)
    names = {}
    for kind, text in blocks:
        if kind == "console":
            run_console(text, folder)
        elif kind == "options":
            for line in text.strip().splitlines():
                check_flags(line)
        elif match := FILE.match(text):
            (folder / match[1]).write_text(text)
        elif kind == "yaml":
            check_configuration(text)
        else:
            exec(compile(text, str(page), "exec"), names)
