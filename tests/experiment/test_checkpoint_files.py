"""Planning: what files that are there say of themselves is refused before any job, by their headers."""

import json
import shutil
from pathlib import Path

import pytest

from parity.base.errors import ConfigError
from parity.experiment import checks
from parity.models import add
from parity.stand_ins import write

SECTIONS = {
    "llamagen": {"image": {"methods": {"ar": [{}]}}},
    "janus": {"image": {"methods": {"ar": [{}]}}},
    "emu3": {"image": {"methods": {"ar": [{}]}}},
    "mar": {"continuous": {"methods": {"mar": [{}], "cspd": [{}]}}},
    "xlnet": {"text": {"methods": {"sequential": [{}]}}},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Stand-ins in the published layouts: for each family a pair of its files by component and
    the sizes of its network, {} where the files tell them."""
    files_by_family = {}
    for family in SECTIONS:
        folder = tmp_path_factory.mktemp(family)
        names = ("xlnet", "gpt2") if family == "xlnet" else (family,)
        files = {component: str(folder / file) for name in names for component, file in write(name, folder).items()}
        files_by_family[family] = (files, {"grid": 4} if family == "mar" else {})
    files = files_by_family["llamagen"][0]
    files_by_family["llamagen"] = (files, add.identify(str(Path(files["text"]).parent), 8).entry["network"])
    for family in ("janus", "emu3"):
        files = files_by_family[family][0]
        files_by_family[family] = (files, add.identify(files["model"], pixels=96).entry["network"])
    return files_by_family


def plan(written, family, change=(), network=(), **top):
    """Check an experiment on a family's stand-in, with `change` of its files (None removes one) and of its sizes;
    digests are made up and not read. Raises ParityError if it is refused."""
    files, sizes = written[family]
    files = {component: file for component, file in {**files, **dict(change)}.items() if file}
    spec = {"family": family, "source": "files", "files": files, "network": {**sizes, **dict(network)}}
    spec["sha256"] = dict.fromkeys(set(files) - {"tokenizer"}, "0" * 64)
    return checks.make_config(json.loads(json.dumps({"models": {"m": spec}, **SECTIONS[family], **top})))


@pytest.mark.parametrize("family", SECTIONS)
def test_files_that_fit_are_planned(written, family):
    assert plan(written, family).models["m"].files == written[family][0]


SIZES = {
    "vocab": ("llamagen", {"vocab": 128}, r"files.transformer: .*network.vocab = 128, .*; allowed: 64"),
    "layers": ("llamagen", {"layers": 36}, r"network.layers = 36, .*; allowed: 2"),
    "width": ("llamagen", {"dim": 1280, "heads": 20}, r"network.dim = 1280, .*; allowed: 64"),
    "classes": ("llamagen", {"classes": 1000}, r"network.classes = 1000, .*; allowed: 0"),
    "caption": ("llamagen", {"caption_dim": 2048}, r"network.caption_dim = 2048, .*; allowed: 32"),
    "prefix": ("llamagen", {"prefix": 77}, r"network.prefix = 77, .*; allowed: 120"),
    "grid": ("mar", {"grid": 32}, r"files.target: .*network.grid = 32, .*; allowed: 4"),
    "codes of janus": ("janus", {"vocab": 16384}, r"files.model: .*network.vocab = 16384; allowed: \d+, as its config"),
    "codes of emu3": ("emu3", {"vocab": 32768}, r"files.model: .*network.vocab = 32768; allowed: \d+, as its config"),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_that_contradict_a_header_are_refused(written, case):
    family, network, message = SIZES[case]
    with pytest.raises(ConfigError, match=message):
        plan(written, family, network=network)


SWAPPED = {
    "transformer and vq": ("llamagen", ("transformer", "vq"), "not a file of transformer, it is a file of vq"),
    "transformer and text": ("llamagen", ("transformer", "text"), "not a file of transformer, it is a file of text"),
    "target and kl": ("mar", ("kl", "target"), "not a file of kl, it is a file of target"),
    "xlnet and judge": ("xlnet", ("xlnet", "judge"), "a folder of model_type 'gpt2'; allowed: xlnet"),
}


@pytest.mark.parametrize("case", SWAPPED)
def test_parts_that_are_swapped_are_refused(written, case):
    family, (one, another), message = SWAPPED[case]
    files = written[family][0]
    with pytest.raises(ConfigError, match=rf"models.m.files.{one}: .*{message}"):
        plan(written, family, {one: files[another], another: files[one]})


def test_a_folder_of_another_family_is_refused(written):
    with pytest.raises(ConfigError, match=r"files.model: .* a folder of model_type 'emu3'; allowed: janus"):
        plan(written, "janus", {"model": written["emu3"][0]["model"]})


def test_a_target_without_an_autoencoder_needs_one(written):
    with pytest.raises(ConfigError, match=r"models.m.files = \['draft', 'target'\]: needs kl"):
        plan(written, "mar", {"kl": None})


@pytest.mark.parametrize(("family", "component"), [("llamagen", "text"), ("xlnet", "tokenizer"), ("xlnet", "judge")])
def test_a_folder_with_spiece_model_alone_is_refused(written, tmp_path, family, component):
    names = ("config.json", "model.safetensors")
    folder = tmp_path / "folder"
    folder.mkdir()
    for file in Path(written[family][0][component]).iterdir():
        if file.name in names:
            shutil.copy(file, folder)
    (folder / "spiece.model").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"needs a tokenizer; allowed: a folder with tokenizer\.json of its spiece"):
        plan(written, family, {component: str(folder)})
