"""A folder of images: a stopped command goes on, shards make the same images, and other settings are refused."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import parity
from parity.base.errors import ParityError
from parity.base.headers import find_largest_dtype
from parity.decode import loop
from parity.generate import __main__ as command
from tests.workflow.conftest import ROOT

pytestmark = pytest.mark.usefixtures("in_clone")

CAPTIONS = [
    f"a {size} {colour} circle on a white background"
    for size in ("small", "large")
    for colour in ("red", "blue", "green")
]
COMMAND = [sys.executable, "-m", "parity.generate", *CAPTIONS, "--method", "mtj", "--batch", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The images of CAPTIONS, made by one command that nothing stopped, by name."""
    folder = tmp_path_factory.mktemp("whole") / "deep" / "images"
    subprocess.run([*COMMAND, "--out", str(folder)], check=True, cwd=ROOT)
    return read_images(folder)


def read_images(folder):
    """Read the bytes of a folder's images by name."""
    return {file.name: file.read_bytes() for file in folder.glob("*.png")}


def test_a_killed_command_goes_on_and_makes_equal_bytes(tmp_path, images):
    """It is killed again and again, each time as soon as it has made an image more."""
    kills = 0
    while len(read_images(tmp_path)) < len(CAPTIONS) - 2:
        before = read_images(tmp_path)
        process = subprocess.Popen([*COMMAND, "--out", str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL)
        while len(read_images(tmp_path)) == len(before) and process.poll() is None:
            time.sleep(0.02)
        process.kill()
        process.wait()
        assert before.items() <= read_images(tmp_path).items()
        kills += 1
    assert kills >= 2
    done = subprocess.run([*COMMAND, "--out", str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=True)
    assert read_images(tmp_path) == images
    summary = json.loads((tmp_path / "images.json").read_text())
    assert summary["images"] == len(CAPTIONS) > summary["made_in_this_run"]
    assert f"of {len(CAPTIONS)} were there before" in done.stderr


def test_shards_make_all_images_between_them(tmp_path, images, run_main):
    for shard in ("1/3", "2/3", "3/3"):
        given = ["--method", "mtj", "--batch", "2", "--device", "cpu", "--shard", shard]
        run_main(command.main, *CAPTIONS, *given, "--out", tmp_path)
    made = read_images(tmp_path)
    assert made.keys() == images.keys()
    for name in images:
        (tmp_path / "whole.png").write_bytes(images[name])
        assert np.array_equal(Image.open(tmp_path / name), Image.open(tmp_path / "whole.png"))
    assert json.loads((tmp_path / "images-2-of-3.json").read_text())["images"] == 2


@pytest.mark.parametrize(
    ("flags", "prompts", "message"),
    [
        (["--seed", "1"], CAPTIONS[:1], "was made with seed 0, not 1"),
        (["--method", "ar"], CAPTIONS[:1], "was made with method 'mtj', not 'ar'"),
        (["--option", "window=5"], CAPTIONS[:1], "was made with options"),
        ([], CAPTIONS[1:2], "was made with prompt"),
    ],
)
def test_images_of_other_settings_are_refused_and_kept(
    tmp_path, images, monkeypatch, run_main, flags, prompts, message
):
    (tmp_path / "00000.png").write_bytes(images["00000.png"])
    monkeypatch.setattr(loop, "load", lambda *_: pytest.fail("a network was loaded"))
    with pytest.raises(ParityError, match=f"00000.png: {message}.*; allowed: another folder"):
        run_main(command.main, *prompts, *["--method", "mtj", "--device", "cpu", "--out", tmp_path, *flags])
    assert read_images(tmp_path) == {"00000.png": images["00000.png"]}
    run_main(command.main, CAPTIONS[0], "--method", "mtj", "--device", "cpu", "--out", tmp_path)  # nothing is left


def test_what_is_no_image_of_ours_is_never_overwritten(tmp_path, run_main):
    Image.new("RGB", (8, 8)).save(tmp_path / "00000.png")
    kept = read_images(tmp_path)
    with pytest.raises(ParityError, match=r"00000\.png: not an image of `parity generate`"):
        run_main(command.main, CAPTIONS[0], "--method", "ar", "--device", "cpu", "--out", tmp_path)
    assert read_images(tmp_path) == kept


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "a/b", "1/0", "2/7"])
def test_a_shard_that_does_not_exist_is_refused(run_main, capsys, shard):
    with pytest.raises((ParityError, SystemExit)) as refusal:
        run_main(command.main, *CAPTIONS, "--shard", shard)
    assert "allowed: " in f"{refusal.value} {capsys.readouterr().err}"


def test_rows_are_yielded_when_they_end_with_the_tokens_of_a_batch():
    scenes = parity.load("scenes")
    whole = {made.number: made for made in scenes.generate(CAPTIONS[:5], method="mtj", batch=5)}
    groups = list(scenes.make_batches(CAPTIONS[:5], "mtj", batch=2, refill=True))
    assert len(groups) > 1
    assert sorted(made.number for group in groups for made in group) == [0, 1, 2, 3, 4]
    for made in (one for group in groups for one in group):
        assert torch.equal(made.tokens, whole[made.number].tokens)
        assert made.passes == whole[made.number].passes
        assert np.array_equal(made.final, whole[made.number].final)


def test_the_dtype_is_that_of_the_files(tmp_path):
    half = {"a": torch.zeros(8, dtype=torch.bfloat16), "b": torch.zeros(2)}
    save_file(half, tmp_path / "model-1.safetensors")
    assert find_largest_dtype(tmp_path) == find_largest_dtype(tmp_path / "model-1.safetensors") == "BF16"
    save_file({"c": torch.zeros(99)}, tmp_path / "model-2.safetensors")
    assert find_largest_dtype(tmp_path) == "F32"
    (tmp_path / "model.pt").write_bytes(b"x")
    assert find_largest_dtype(tmp_path / "model.pt") == ""
    scenes = parity.load("scenes")
    scenes.case = scenes.case._replace(spec=scenes.case.spec.model_copy(update={"source": "files"}))
    part = scenes.family["files"][0]
    scenes.manifest = {**scenes.manifest, "files": {part: str(tmp_path / "model-1.safetensors")}}
    assert scenes.dtype == "bfloat16"
    assert parity.load("scenes", dtype="float64").dtype == "float64"
