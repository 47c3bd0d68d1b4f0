"""Checkpoints in the published layouts by the user's path: converted or added, configured, decoded, drawn."""

import json
import shutil
import sys

import pytest
import torch
import yaml
from parity_decoders.continuous.cspd import cspd
from parity_decoders.continuous.mar import mar
from parity_decoders.protocols.continuous import Start, draw_order
from safetensors.torch import load_file, save_file

from parity.base.errors import ConfigError, ParityError
from parity.base.files import sums
from parity.base.row_noise import batch_noise
from parity.base.weights import sha256, unpickle
from parity.decode.continuous import record
from parity.experiment import checks, weights
from parity.experiment.cells import cells
from parity.models import add, fetch
from parity.models.__main__ import add_model, convert_model
from parity.models.continuous.load import load
from parity.models.continuous.mar import make_known_mask
from parity.models.continuous.published import convert
from parity.stand_ins import write

SAMPLING = {"steps": 2, "guidance": 2.0, "guidance_schedule": "constant", "last": "mean", "clip": 4.0}
CONTINUOUS = ("mar", "xar", "harmon")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Stand-ins of all continuous families: by family, the files by the part of a model they are."""
    files_of = {}
    for name in CONTINUOUS:
        folder = tmp_path_factory.mktemp(name)
        files = write(name, folder)
        files_of[name] = {part_name: folder / file for part_name, file in files.items()}
    return files_of


def make_config(model, location, tmp_path, **changes):
    """Make a configuration of two images by plain decoding and `cspd`. `location` is a folder of converted files, or
    the entry of published ones; `changes` replace keys of the section."""
    spec = {"family": model, "source": "files", **(location if isinstance(location, dict) else {"folder": location})}
    section = {"images": 2, "batch": [2], "sampling": dict(SAMPLING)}
    section["sampling"]["guidance_schedule"] = "linear" if model == "xar" else "constant"
    section["methods"] = {"mar": [{}], "cspd": [{"gamma": 2}]}
    if model == "harmon":
        (tmp_path / "captions.txt").write_text("a dog on the left {and} a cat\na pink stop sign\n", encoding="utf-8")
        section["captions"] = {"file": str(tmp_path / "captions.txt"), "limit": 2}
    return {"models": {model: spec}, "continuous": section | changes}


def decode_images(config, model, tmp_path):
    """Decode two images by two methods, as a run's jobs do; return the loaded model and the images by method."""
    value = checks.make_config(config)
    all_cells = cells(value, [])
    spec = value.models[model].model_dump(exclude={"grid"}) | value.continuous.model_dump(include={"captions"})
    manifest = fetch.make_manifest("continuous", model, spec, tmp_path / "m")
    loaded = load(manifest, needs="draft")
    images = []
    for decoder, options in ((mar, {"iterations": 0}), (cspd, {"gamma": 2, "give_up": "target"})):
        pair = loaded.pair(range(2), all_cells[0].spec["sampling"], True)
        noise = batch_noise(0, ["0", "1"])
        start = Start(draw_order(noise, 2, pair.target.length, pair.target.raster))
        decoded = record(pair, start, decoder(pair, start, noise=noise, **options))
        images.append(loaded.images(decoded.tokens))
    return loaded, images


@pytest.mark.parametrize("model", CONTINUOUS)
def test_converted_stand_ins_are_decoded(written, tmp_path, monkeypatch, capsys, model):
    flags = [text for name, file in written[model].items() for text in (f"--{name}", str(file))]
    monkeypatch.setattr(sys, "argv", ["models", "convert", "--model", model, *flags, "--out", str(tmp_path / "w")])
    convert_model()
    output = capsys.readouterr().out
    assert ("the moving average" in output) == (model == "mar")
    assert ("does not say" in output) == (model != "mar")
    loaded, images = decode_images(make_config(model, str(tmp_path / "w"), tmp_path), model, tmp_path)
    assert loaded.manifest["network"]["average"] == ("yes" if model == "mar" else "unsaid")
    side = 2 * loaded.network("target").config.grid
    for shown in images:
        assert shown.shape == (2, side, side, 3)
        assert (shown[0] != shown[1]).any()
    named = ["a dog on the left {and} a cat", "a pink stop sign"] if model == "harmon" else ["0", "7"]
    assert [loaded.class_of(i) for i in range(2)] == named  # not the names of Scenes' classes


def test_xar_is_read_token_by_token(tmp_path):
    """`network: {cell: 1}` of weights of one cell of 4 x 4: sixteen ranks of a token each, and with 2 four of four."""
    files = {part: tmp_path / file for part, file in write("xar_tokens", tmp_path).items()}
    entry = list_files(files) | {"network": {"grid": 4}}
    sizes = []
    for cell in (2, 1):
        entry["network"]["cell"] = cell
        loaded, images = decode_images(make_config("xar", entry, tmp_path), "xar", tmp_path / str(cell))
        target = loaded.model("target", range(2), dict(SAMPLING))
        sizes.append((target.length, target.dim, [shown.shape for shown in images]))
    assert sizes == [(4, 64, [(2, 8, 8, 3)] * 2), (16, 16, [(2, 8, 8, 3)] * 2)]
    entry["network"]["cell"] = 3
    with pytest.raises(ConfigError, match=r"models.xar.network = .*'cell': 3.*allowed: a multiple of cell"):
        checks.make_config(make_config("xar", entry, tmp_path))
    with pytest.raises(ParityError, match="cell 3: allowed: a divisor of its 4 tokens a side"):
        convert("xar", files["target"], None, files["kl"], tmp_path / "w", cell=3)
    with pytest.raises(ParityError, match="--cell 1: mar has no cells; allowed: none"):
        convert("mar", files["target"], None, files["kl"], tmp_path / "w", cell=1)


def list_files(files):
    """Make the entry of published files, each with its digest; a tokenizer's folder counts as its tokenizer.json."""
    one = {p: f / "tokenizer.json" if f.is_dir() and p == "tokenizer" else f for p, f in files.items()}
    return {"files": {p: str(f) for p, f in files.items()}, "sha256": {p: sha256(f) for p, f in one.items()}}


def test_all_published_layouts_are_converted(written, tmp_path):
    """mar-huge.safetensors, kl16.safetensors, and Harmon's folder with its autoencoder and tokenizer."""
    files = written["mar"]
    save_file(unpickle(files["target"]), tmp_path / "mar-huge.safetensors")
    save_file(unpickle(files["kl"]), tmp_path / "kl16.safetensors")
    messages = []
    files_of_mar = tmp_path / "mar-huge.safetensors", None, tmp_path / "kl16.safetensors"
    convert("mar", *files_of_mar, tmp_path / "a", tell=messages.append)
    convert("mar", files["target"], None, files["kl"], tmp_path / "b", tell=messages.append)
    assert ["does not say" in line for line in messages] == [True, False]
    for name in ("mar", "kl"):
        one, two = (load_file(tmp_path / k / f"{name}.safetensors") for k in "ab")
        assert all(torch.equal(value, two[key]) for key, value in one.items())
        assert set(one) == set(two)
    folder = tmp_path / "Harmon-1_5B"
    shutil.copytree(written["harmon"]["tokenizer"], folder)
    state = unpickle(written["harmon"]["target"])
    half = sorted(state)[: len(state) // 2]
    for i, keys in enumerate((half, sorted(set(state) - set(half)))):
        save_file({k: state[k] for k in keys}, folder / f"model-0000{i + 1}-of-00002.safetensors")
    convert("harmon", folder, None, None, tmp_path / "c", grid=2, tell=messages.append)
    assert sums(tmp_path / "c")["kl.safetensors"] == sums(tmp_path / "b")["kl.safetensors"]
    with pytest.raises(ConfigError, match=r"harmon-draft.safetensors is missing"):
        checks.make_config(make_config("harmon", str(tmp_path / "c"), tmp_path))


# Conditions at the first position of two images, at two grids, by an independent rewrite of the released forward pass.
RELEASED = {
    2: [[-1.4656056168, -0.2186596364, -1.5076182218], [-0.6222653866, -0.7460656960, -0.4960930264]],
    4: [[-0.4253114189, 0.1829289309, -0.9712316847], [-0.6102368704, 0.1062903409, -1.0040760444]],
}


@pytest.mark.parametrize("grid", RELEASED)
@torch.no_grad()
def test_harmon_computes_what_its_released_code_does(written, tmp_path, grid):
    """At the trained size and at twice it, with the shorter prompt padded."""
    files = written["harmon"]
    convert("harmon", files["target"], None, files["kl"], tmp_path / "w", files["tokenizer"], grid, tell=print)
    spec = {"family": "harmon", "source": "files", "folder": str(tmp_path / "w")}
    spec["captions"] = make_config("harmon", "", tmp_path)["continuous"]["captions"]
    loaded = load(fetch.make_manifest("continuous", "harmon", spec, tmp_path), dtype=torch.float64)
    net, ids = loaded.network("target"), loaded.condition(range(2))
    assert len({len(row[row >= 0]) for row in ids}) == 2
    g = torch.Generator().manual_seed(0)
    tokens = torch.randn(2, grid**2, 16, generator=g, dtype=torch.float64)
    order = torch.stack([torch.randperm(grid**2, generator=g) for _ in range(2)])
    known_mask = make_known_mask(order, torch.tensor([1, 3]))
    expected = torch.tensor(RELEASED[grid], dtype=torch.float64)
    assert (net(tokens, known_mask, ids)[:, 0, :3] - expected).abs().max() < 1e-8
    assert (net(tokens, known_mask, ids.flip(0))[:, 0, :3] - expected).abs().max() > 1e-4


class Harmful:
    """An object that prints a message when it is unpickled."""

    def __reduce__(self):
        return print, ("a checkpoint was executed",)


WRONG = {
    "another family": ("harmon", {"target": "mar"}, r"not a checkpoint of harmon: no entry"),
    "another autoencoder": ("mar", {"kl": "xar"}, r"not a checkpoint of kl: no entry"),
    "code": ("mar", {"target": "harmful"}, r"harmful.pth: .*safely"),
    "a width": ("mar", {"target": "wide"}, r"width 7: allowed: a multiple of 64"),
    "another tokenizer": ("harmon", {"tokenizer": "gpt2"}, r"does not know <\|im_start\|>; allowed"),
    "no tokenizer": ("harmon", {"tokenizer": "empty"}, r"no such file; allowed: --tokenizer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_unfit_files_are_one_line_and_convert_to_nothing(written, tmp_path, name):
    model, change, message = WRONG[name]
    wrong_files = {part_name: tmp_path / part_name for part_name in ("empty", "gpt2")}
    wrong_files["empty"].mkdir()
    shutil.copytree(written["harmon"]["tokenizer"], wrong_files["gpt2"])
    tokenizer = json.loads((tmp_path / "gpt2/tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "gpt2/tokenizer.json").write_text(json.dumps(tokenizer | {"added_tokens": []}), encoding="utf-8")
    for pickled, state in (("harmful", Harmful()), ("wide", {"z_proj.weight": torch.zeros(7, 3)})):
        wrong_files[pickled] = tmp_path / f"{pickled}.pth"
        torch.save({"model": state}, wrong_files[pickled])
    wrong_files |= {name: written[name]["target"] for name in ("mar", "xar")}
    files = written[model] | {part_name: wrong_files[wrong] for part_name, wrong in change.items()}
    with pytest.raises(ParityError, match=message):
        convert(model, files["target"], None, files["kl"], tmp_path / "w", files.get("tokenizer"), tell=print)
    with pytest.raises(ConfigError, match="no SHA256SUMS"):
        checks.make_config(make_config(model, str(tmp_path / "w"), tmp_path))


def test_captions_are_required_only_where_they_are_read(written, tmp_path):
    for model, changes, message in (
        ("harmon", {"captions": None}, "continuous.captions: harmon reads captions; needed"),
        ("mar", {"captions": {"file": "prompts/scenes.txt"}}, "mar reads no captions; allowed: no captions"),
        ("harmon", {"captions": {"file": "nowhere.txt"}}, r"continuous.captions.file = 'nowhere.txt': no such file"),
        ("gmm", {}, "gmm has no published files"),
    ):
        location = list_files(written["mar" if model == "mar" else "harmon"])
        location |= {"network": {"grid": 4}} if model == "mar" else {}
        with pytest.raises(ConfigError, match=message):
            checks.make_config(make_config(model, location, tmp_path, **changes))
    config = checks.make_config(make_config("harmon", list_files(written["harmon"]), tmp_path))
    specs = config.models["harmon"], config.continuous.captions
    (tmp_path / "captions.txt").write_text("another\nand another\n", encoding="utf-8")
    revision = weights.compute_revision(*specs)
    (tmp_path / "captions.txt").write_text("other words\nand another\n", encoding="utf-8")
    assert weights.compute_revision(*specs) != revision  # the key depends on the captions, as images do


def test_two_networks_or_autoencoders_of_one_size_are_refused(written, tmp_path):
    """No file tells which is the target and which its draft, or a copy of it."""
    target, kl = written["mar"]["target"], written["mar"]["kl"]
    (tmp_path / "m").mkdir()
    for name, file in (("a.pth", target), ("b.pth", target), ("kl16.ckpt", kl)):
        shutil.copy(file, tmp_path / "m" / name)
    with pytest.raises(ParityError, match=r"both .*a\.pth and .*b\.pth: networks of one size"):
        add.identify(str(tmp_path / "m"))
    (tmp_path / "m/b.pth").unlink()
    shutil.copy(kl, tmp_path / "m/old.ckpt")
    with pytest.raises(ParityError, match=r"kl: both .*kl16\.ckpt and .*old\.ckpt"):
        add.identify(str(tmp_path / "m"))


@pytest.mark.parametrize("model", CONTINUOUS)
def test_a_folder_is_added_as_an_experiment(written, tmp_path, monkeypatch, capsys, model):
    """Nobody types a digest or a size; the settings are the family's, whose sampler returns the mean."""
    (tmp_path / "captions.txt").write_text("a pink stop sign\n" * 64, encoding="utf-8")
    folder = written[model]["kl"].parent
    flags = ["--captions", str(tmp_path / "captions.txt")] if model == "harmon" else []
    out = tmp_path / "own.yaml"
    monkeypatch.setattr(sys, "argv", ["models", "add", f"{model}-h", str(folder), *flags, "--out", str(out)])
    add_model()
    assert "written" in capsys.readouterr().out
    config = checks.make_config(yaml.safe_load(out.read_text(encoding="utf-8")))
    section = config.continuous
    spec_of_model = config.models[f"{model}-h"]
    assert spec_of_model.files == {p: str(f if p != "tokenizer" else f / "tokenizer.json") for p, f in
                                  written[model].items()}  # fmt: skip
    assert section.sampling.last == "mean"
    assert section.sampling.clip == 0
    assert section.sampling.temperature == 1
    assert section.sampling.steps == {"mar": 100, "xar": 40, "harmon": 100}[model]
    spec = spec_of_model.model_dump(exclude={"grid"}) | section.model_dump(include={"captions"})
    loaded = load(fetch.make_manifest("continuous", model, spec, tmp_path / "m"), needs="draft")
    assert loaded.network("target").config.grid == spec_of_model.network["grid"]
    with pytest.raises(ParityError, match=r"own.yaml: is there already"):
        add_model()


def test_a_folder_that_lacks_a_part_is_one_line(written, tmp_path):
    shutil.copy(written["mar"]["target"], tmp_path / "mar.pth")
    with pytest.raises(ParityError, match="no autoencoder among them"):
        add.find(str(tmp_path))
    shutil.copy(written["xar"]["target"], tmp_path / "xar.pth")
    with pytest.raises(ParityError, match="networks of mar and xar; allowed: one"):
        add.find(str(tmp_path))
    (tmp_path / "mar.pth").unlink()
    shutil.copy(written["xar"]["kl"], tmp_path / "kl16.ckpt")
    assert add.find(str(tmp_path)).entry["network"] == {"grid": 16, "cell": 8}
    with pytest.raises(ParityError, match=r"--grid 8: the images of xar have one size; allowed: 16"):
        add.find(str(tmp_path), 8)
