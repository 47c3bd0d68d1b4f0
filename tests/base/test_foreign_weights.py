"""Files of weights that others' tools write: numbers that are none, placeholders, tables of older libraries, and steps
of training in names."""

import os
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from parity.base.errors import ParityError
from parity.base.weights import load_weights, read_shapes
from parity.inputs.image_files import digest_state
from parity.metrics import images
from parity.models.add import read_pixels
from tests.inputs.test_image_files import COLOURS


def write(folder, kind, state):
    """Write tensors as a pickle, a pickle of a training run, or safetensors; return the file."""
    file = folder / ("w.safetensors" if kind == "safetensors" else "w.pt")
    if kind == "safetensors":
        save_file(state, file)
    else:
        torch.save({"module": state, "ds_version": "0.14"} if kind == "training" else state, file)
    return file


def make_state(**changes):
    return {name: x.clone() for name, x in torch.nn.Linear(3, 2).state_dict().items()} | changes


def spoil(value):
    """Make weights of which one number is this value."""
    state = make_state()
    state["weight"][1, 2] = value
    return state


@pytest.mark.parametrize("kind", ["pickle", "training", "safetensors"])
@pytest.mark.parametrize(
    ("state", "dtype", "message"),
    [
        (spoil(torch.inf), torch.float32, "weight holds infinite numbers; allowed: numbers"),
        (spoil(-torch.inf), torch.float64, "weight holds infinite numbers; allowed: numbers"),
        (spoil(torch.nan), torch.float16, "weight holds NaN; allowed: numbers"),
        (spoil(1e6), torch.float16, "weight holds infinite numbers in torch.float16; allowed: bfloat16, float32"),
        (spoil(-7e4), torch.float16, "weight holds infinite numbers in torch.float16; allowed: bfloat16, float32"),
        (make_state(weight=torch.ones(2, 3).int()), torch.float32, "weight is torch.int32; allowed: float16"),
        (make_state(weight=torch.zeros(3)), torch.float32, "weight has shape"),
        (make_state(extra=torch.zeros(1)), torch.float32, "unexpected extra"),
        ({"weight": torch.ones(2, 3)}, torch.float32, "missing bias"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, kind, state, dtype, message):
    file = write(tmp_path, kind, state)
    with pytest.raises(ParityError, match=message):
        load_weights(torch.nn.Linear(3, 2), file, dtype=dtype)
    if "float16;" in message:
        load_weights(torch.nn.Linear(3, 2), file, dtype=torch.bfloat16)
    if "extra" in message:
        load_weights(torch.nn.Linear(3, 2), file, ignored=("extra",))


@pytest.mark.parametrize("kind", ["pickle", "training", "safetensors"])
@pytest.mark.parametrize(
    "state",
    [
        make_state(weight=torch.zeros(0), bias=torch.zeros(0)),
        make_state(bias=torch.zeros(0)),
        make_state(weight=torch.zeros(1), bias=torch.zeros(1)),
        make_state(weight=torch.zeros(0, 3)),
    ],
)
def test_placeholders_of_parallel_training_are_named(tmp_path, kind, state):
    with pytest.raises(ParityError, match=r"is a placeholder: .*DeepSpeed ZeRO-3, FSDP.*zero_to_fp32"):
        read_shapes(write(tmp_path, kind, state))


@pytest.mark.parametrize("kind", ["pickle", "training", "safetensors"])
@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "rope.freqs",
        "rotary_emb.cos_cached",
        "transformer.rotary_pos_emb.inv_freq",
    ],
)
def test_rotary_tables_of_older_files_are_left_out(tmp_path, kind, name):
    file = write(tmp_path, kind, make_state() | {name: torch.arange(8.0)})
    assert set(read_shapes(file)) == {"weight", "bias"}
    net = torch.nn.Linear(3, 2)
    load_weights(net, file)
    with pytest.raises(ParityError, match=r"unexpected rotary_emb\.weight"):  # a parameter of that name is no table
        load_weights(net, write(tmp_path, kind, make_state() | {"rotary_emb.weight": torch.arange(8.0)}))


@pytest.mark.parametrize(
    ("name", "pixels"),
    [
        ("t2i_XL_stage1_256.pt", 256), ("c2i_B_384.pt", 384), ("ckpt-384-256px.pt", 256), ("ema_256x256.pt", 256),
        ("step_512.pt", None), ("0000256.pt", None), ("256.pt", None), ("epoch_256.pt", None), ("iter-384.bin", None),
        ("checkpoint-512.pt", None), ("global_step256", None), ("t2i_XL.pt", None), ("model-2560.pt", None),
    ],
)  # fmt: skip
def test_a_step_of_training_is_no_size_of_images(name, pixels, capsys):
    assert read_pixels(name, (256, 384, 512), "--grid") == pixels
    assert (f"images of {pixels} pixels" in capsys.readouterr().err) == (pixels is not None)


@pytest.mark.parametrize("name", ["t2i_256_384.pt", "stage_256px_512px.pt"])
def test_a_name_with_several_sizes_is_refused(name):
    with pytest.raises(ParityError, match=r"its name has \d+ and \d+; give --grid"):
        read_pixels(name, (256, 384, 512), "--grid")


def replace_keeping_times(file, content):
    """Put other content of the same size into a file's place, under its times, as archives and copies with times do."""
    status = file.stat()
    other = file.with_suffix(".new")
    other.write_bytes(content)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(file)


@pytest.mark.parametrize("of", ["folder", "archive"])
def test_replaced_references_have_another_digest(tmp_path, monkeypatch, of):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "images"
    folder.mkdir()
    for n in range(4):
        (folder / f"{n}.png").write_bytes(bytes([n]) * 100)
    np.savez(tmp_path / "ref.npz", arr_0=np.zeros((4, 8, 8, 3), np.uint8))
    path, file = (folder, folder / "2.png") if of == "folder" else (tmp_path / "ref.npz",) * 2
    for x in (*folder.iterdir(), file):
        os.utime(x, ns=(10**18, 10**18))  # long ago, so that digests are cached
    before = digest_state(path)
    assert digest_state(path) == before
    content = file.read_bytes()
    replace_keeping_times(file, content[:-1] + bytes([content[-1] ^ 1]))
    assert digest_state(path) != before
    replace_keeping_times(file, content)
    assert digest_state(path) == before
    if of == "folder":
        shutil.copytree(folder, tmp_path / "copy")  # without times, and with other inodes
        assert digest_state(tmp_path / "copy") == before
        (folder / "3.png").rename(folder / "4.png")
        assert digest_state(path) != before


IMAGES = np.stack([COLOURS] * 4)
MU, SIGMA = np.zeros(6), np.eye(6)


@pytest.mark.parametrize(
    ("sigma", "message"),
    [(np.full((6, 6), np.nan), "not finite"), (np.triu(np.ones((6, 6))), "sigma is not symmetric")],
)
def test_a_matrix_that_is_no_covariance_is_refused(tmp_path, sigma, message):
    np.savez(tmp_path / "ref.npz", mu=MU, sigma=sigma)
    with pytest.raises(ParityError, match=message):
        images.measure_reference(tmp_path / "ref.npz", {}, "sjd")


@pytest.mark.parametrize(
    ("protocol", "keeps"), [("clean", False), ("sjd", False), ("lantern", False), ("torchfid50k", True)]
)
def test_statistics_beside_images_are_of_one_recipe(tmp_path, monkeypatch, capsys, protocol, keeps):
    np.savez(tmp_path / "ref.npz", mu=MU, sigma=SIGMA, arr_0=IMAGES)
    np.savez(tmp_path / "alone.npz", mu=MU, sigma=SIGMA)
    assert ("mu" in images.measure_reference(tmp_path / "ref.npz", {}, protocol)) == keeps
    assert ("is measured on the images" in capsys.readouterr().err) == (not keeps)
    assert "mu" in images.measure_reference(tmp_path / "alone.npz", {}, protocol)
