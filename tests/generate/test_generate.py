"""`parity generate` and `parity.load`: the workflow's images, and one line for what cannot be made."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import parity
from parity.base.errors import ConfigError, ParityError
from parity.decode import loop
from parity.experiment import checks, pins
from parity.experiment.checks import read_config
from parity.generate import BLANK
from parity.generate import __main__ as command
from parity.generate.animation import GREY
from parity.inputs.prompts import encode, list_images
from parity.models import add
from parity.stand_ins import write
from tests.workflow.conftest import ROOT

pytestmark = pytest.mark.usefixtures("in_clone")

CAPTIONS = ["a large red circle on a blue background", "a small green square on a yellow background"]
STORY = "one morning anna could not find the ___ ."


@pytest.fixture(scope="module")
def scenes():
    """The embedded image model, loaded as people load it."""
    return parity.load("scenes", ROOT / "config.yaml")


@pytest.fixture(scope="module")
def images(scenes):
    """Images of CAPTIONS by `mtj`."""
    return scenes.generate(CAPTIONS, method="mtj", seed=2, window=24)


def test_tokens_are_those_of_the_workflow(scenes, images):
    method, options = scenes.choose_method("mtj", {"window": 24})
    entries = list_images(CAPTIONS, 1)
    ids = np.array([entry["id"] for entry in entries])
    rows = {"ids": ids, "captions": np.array(CAPTIONS), **encode(scenes.manifest, CAPTIONS)}
    spec = {**scenes.case.setting, "seed": 2, "method": method, "options": options}
    shard = loop.decode("discrete", scenes.load_networks("mtj"), spec, rows, 2)
    assert (np.stack([m.tokens.numpy() for m in images]) == shard.tokens).all()


def test_coupled_decoders_make_plain_decodings_image(scenes, images):
    plain = scenes.generate(CAPTIONS[:1], method="ar", seed=2)
    assert torch.equal(plain[0].tokens, images[0].tokens)
    assert plain[0].passes > images[0].passes
    assert plain[0].image.tobytes() == images[0].image.tobytes()


def test_classes_made_together_are_those_made_alone():
    mar = parity.load("mar")
    together = mar.generate(["red circle", "blue square"], method="mar", seed=4)
    (single,) = mar.generate(["blue square"], method="mar", seed=4)
    assert torch.allclose(together[1].tokens, single.tokens, atol=1e-4)


def test_blanks_of_a_text_are_filled_in():
    (story,) = parity.load("xlnet").generate([STORY], method="assd")
    prefix, suffix = STORY.split("___")
    assert story.text.startswith(prefix)
    assert story.text.endswith(suffix)
    assert "<" not in story.text.removeprefix(prefix).removesuffix(suffix)


def test_frames_fill_in_a_image(images, tmp_path):
    made = images[0]
    assert len(made.frames) == made.passes
    shares = [float((np.asarray(frame) == GREY).all(2).mean()) for frame in made.frames]
    assert sorted(shares, reverse=True) == shares
    assert shares[0] > 0.5
    assert made.frames[-1].tobytes() == made.image.tobytes()
    for pace in ("passes", "seconds"):
        command.save_animation([images, images[:1]], pace, tmp_path / "all.webp")
        assert Image.open(tmp_path / "all.webp").n_frames >= max(image.passes for image in images)


def test_a_image_says_how_it_was_made(scenes, images, tmp_path):
    command.save_made(images[:1], tmp_path / "circle.png")
    facts = json.loads(Image.open(tmp_path / "circle.png").info["parity"])
    assert (facts["method"], facts["seed"], facts["options"]["window"]) == ("mtj", 2, 24)


def test_a_prompt_file_stands_for_its_prompts(tmp_path):
    file = tmp_path / "captions.txt"
    file.write_text("\n".join(CAPTIONS))
    assert command.read_given_prompts([str(file), "another"]) == [*CAPTIONS, "another"]


@pytest.mark.parametrize("name", ["captions.yaml", "captions", "captions.json", "folder/", "absent.TXT"])
def test_what_exists_as_a_file_is_read_or_refused_and_never_drawn(tmp_path, name):
    (tmp_path / "folder").mkdir()
    if name.startswith("captions"):
        (tmp_path / name).write_text(CAPTIONS[0])
    with pytest.raises(ParityError, match=name):
        command.read_given_prompts([f"{tmp_path}/{name}"])
    (tmp_path / "P.TXT").write_text(CAPTIONS[0])
    assert command.read_given_prompts([f"{tmp_path}/P.TXT", "a/c circle, v1.5"]) == [
        CAPTIONS[0],
        "a/c circle, v1.5",
    ]


def add_stand_in(name, folder, grid=None, captions=None):
    """Add a stand-in's model as a person does, and load it from the file that was written."""
    write(name, folder)
    add.write(name, add.identify(str(folder), grid), folder / "m.yaml", captions, tell=lambda text: None)
    return parity.load(configfile=folder / "m.yaml")


def test_an_added_model_of_captions_reads_any_caption(tmp_path, monkeypatch):
    """Harmon's configuration lists captions, here two; others are read too."""
    monkeypatch.chdir(tmp_path)
    listed = tmp_path / "listed.txt"
    listed.write_text("a red circle\na dog\n")
    harmon = add_stand_in("harmon", tmp_path / "harmon", captions=listed)
    dog, cat = harmon.generate(["a dog", "a cat"], method="mar")
    horse, same_cat = harmon.generate(["a horse", "a cat"], method="mar")
    assert torch.allclose(same_cat.tokens, cat.tokens, rtol=1e-3)
    assert not torch.allclose(horse.tokens, dog.tokens, rtol=1e-1)


def test_a_caption_that_llamagen_cannot_read_is_refused_by_number_and_text(tmp_path, monkeypatch):
    """By `generate` before networks are loaded, and by the workflow's plan before any job."""
    model = add_stand_in("llamagen", tmp_path / "g", grid=8)
    monkeypatch.setattr(loop, "load", lambda *_: pytest.fail("a network was loaded"))
    prompts = ["a red circle", "一只红色的猫", "@midjourney"]
    message = r"prompt 2 \('一只红色的猫'\) is empty after the cleaning .*; 2 prompts in all: also 3$"
    with pytest.raises(ParityError, match=f"^{message}"):
        model.generate(prompts, method="ar")
    (tmp_path / "p.txt").write_text("\n".join(prompts))
    raw = yaml.safe_load((tmp_path / "g/m.yaml").read_text())
    raw["image"] |= {"methods": {"ar": [{}]}, "prompts": {"file": str(tmp_path / "p.txt")}}
    with pytest.raises(ConfigError, match=f"^image.prompts.file = '.*p.txt': {message}"):
        checks.make_plan(raw, str, lambda name: pins.NONE, [])
    (tmp_path / "p.txt").write_text("a red circle\n")
    assert checks.make_plan(raw, str, lambda name: pins.NONE, []).prompts == prompts[:1]


@pytest.mark.parametrize("out", ["pictures", "a/deep/folder"])
def test_a_folder_of_images_is_made(tmp_path, run_main, out):
    given = ["a large red circle on a blue background", "--method", "ar", "--n", "2", "--device", "cpu"]
    run_main(command.main, *given, "--out", tmp_path / out)
    assert sorted(file.name for file in (tmp_path / out).iterdir()) == ["00000.png", "00001.png", "images.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--method", "sjdd"], "'sjdd': unknown method; allowed: ar, "),
        (["a", "--method", "made"], "'made': tokens that were made elsewhere; allowed: in an experiment alone"),
        (["a", "--method", "sjd", "--option", "windw=3"], "windw"),
        (["a", "--method", "sjd", "--option", "window"], "allowed: NAME=VALUE"),
        (["a", "--model", "nope"], "'nope': not in config.yaml; allowed: scenes, xlnet, mar"),
        (["a", "--out", "nowhere/a.png"], "no folder nowhere"),
        (["a", "--out", "config.yaml/pictures"], "config.yaml is a file; allowed: a folder"),
        (["a", "--device", "cuda"], "--device cuda: .*no CUDA device here; allowed: cpu"),
        (["a", "--device", "cuda:7"], "--device cuda:7: .*allowed: cpu"),
        (["a", "--device", "tpu"], "--device tpu: allowed: cpu, cuda"),
        (["a", "b", "--out", "a.png"], "one file for 2 images"),
        (["a", "--out", "a.jpg"], "ends in .png"),
        (["missing.txt"], "missing.txt"),
        (["a", "--animate", "a.gif"], "ends in .webp"),
        (["a", "--animate", "a.webp", "--n", "9", "--grid"], "9 images; allowed: --batch, 8"),
        (["a", "--n", "0"], "--n 0: allowed: 1 or more"),
        (["a", "--threads", "0"], "--threads 0: allowed: 1 or more"),
        (["a", "--method", "sjd", "--option", "window=[3"], "allowed: NAME=VALUE"),
        (["a", "--method", "sjd", "--option", "window=257"], "sjd.window = 257: allowed: at most 256"),
        (["a red cat", "--method", "sjd"], "unknown word 'cat'; allowed: a, of, on, "),
        ([" ", "--method", "sjd"], "allowed: one or more words"),
        (["red", "a red\0", "--method", "sjd", "--grid"], "prompt 2 .* holds a NUL character"),
        (["a \udcff red", "--method", "sjd"], r"prompt 1 .* holds U\+DCFF, half of a character"),
        (["red", "\u200b", "--method", "sjd", "--grid"], "prompt 2 .* has no visible character"),
        ([f"anna \0 {BLANK}", "--model", "xlnet"], "holds a NUL character"),
        (["red " * 24, "--method", "sjd"], "tokens long; allowed: at most 24"),
        (["anna could", "--model", "xlnet"], "a blank, ___, for each word"),
        (["anna could ______ .", "--model", "xlnet"], "'______' is no whole blank"),
        (["anna c___d .", "--model", "xlnet"], "'c___' is no whole blank"),
        (["anna ___could .", "--model", "xlnet"], "'___c' is no whole blank"),
        (["red cat", "--model", "mar"], "no class of mar; allowed: "),
        (["a", "--configfile", "none.yaml"], "no such file"),
    ],
)
def test_bad_input_is_one_line_before_networks_load(monkeypatch, run_main, arguments, message):
    monkeypatch.setattr(loop, "load", lambda *_: pytest.fail("a network was loaded"))
    with pytest.raises(ParityError, match=message):
        run_main(command.main, *arguments)


@pytest.mark.parametrize("name", ["pipe", "gone", "gone.txt", "/dev/null", "fd"])
def test_what_is_no_prompt_file_but_there_is_one_line_and_no_caption(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for link in ("gone", "gone.txt"):
        Path(link).symlink_to("nowhere")
    read, write = os.pipe()
    given = f"/dev/fd/{read}" if name == "fd" else name
    with pytest.raises(ParityError, match=f"^{re.escape(given)}: (a pipe or a device|a link to 'nowhere')"):
        command.read_given_prompts([given])
    os.close(read), os.close(write)
    Path("there").symlink_to("prompts.txt")
    Path("prompts.txt").write_text("a red circle\n")
    Path("circle").mkdir()
    assert command.read_given_prompts(["prompts.txt", "circle", "a blue square"]) == [
        "a red circle",
        "circle",
        "a blue square",
    ]


def test_the_shipped_prompts_are_found_from_another_folder(tmp_path, monkeypatch):
    """As the workflow finds them; a file that lies here comes first."""
    monkeypatch.chdir(tmp_path)
    Path("x.json").write_text(json.dumps({"image": {"methods": {"ar": [{}]}}}, indent="\t"))
    assert Path(read_config(Path("x.json"))[0].image.prompts.file) == ROOT / "prompts/scenes.txt"
    Path("prompts").mkdir()
    Path("prompts/scenes.txt").write_text("a red circle\n")
    assert read_config(Path("x.json"))[0].image.prompts.file == "prompts/scenes.txt"
