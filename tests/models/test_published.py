"""The published continuous architectures: parameter counts and names, and the way from released files to an
experiment."""

import argparse
import importlib
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from parity.base.errors import ConfigError, ParityError
from parity.base.files import sums
from parity.base.noise import counted_noise
from parity.base.weights import sha256, unpickle
from parity.decode.continuous import record
from parity.decoders.continuous.cspd import cspd
from parity.experiment import checks, weights
from parity.experiment.cells import cells
from parity.models import fetch
from parity.models.__main__ import converted
from parity.models.continuous.kl import KL, KLConfig, published_names
from parity.models.continuous.load import load
from parity.models.continuous.mar import MARConfig, MARNet
from parity.models.continuous.protocol import Start, draw_order
from parity.models.continuous.published import convert, sizes
from parity.models.continuous.xar import XARConfig, XARNet
from parity.stand_ins.continuous import kl16

SIZES = {  # width, blocks each way, heads, head width and depth, million parameters
    "mar_base": (768, 12, 12, 1024, 6, 208),
    "mar_large": (1024, 16, 16, 1280, 8, 478),
    "mar_huge": (1280, 20, 16, 1536, 12, 942),
}


@pytest.mark.parametrize("name", SIZES)
def test_mar_has_the_published_sizes(name):
    width, blocks, heads, head_width, depth, million = SIZES[name]
    config = MARConfig(
        width=width, encoder=blocks, decoder=blocks, heads=heads, head_width=head_width, head_depth=depth
    )
    with torch.device("meta"):
        net = MARNet(config)
    assert round(sum(p.numel() for p in net.parameters()) / 1e6) == million
    shapes = {k: tuple(v.shape) for k, v in net.state_dict().items()}
    wanted = {
        "encoder_pos_embed_learned": (1, 320, width),
        "diffusion_pos_embed_learned": (1, 256, width),
        "class_emb.weight": (1000, width),
        "fake_latent": (1, width),
        "z_proj_ln.bias": (width,),
        f"decoder_blocks.{blocks - 1}.mlp.fc2.weight": (width, 4 * width),
        f"diffloss.net.res_blocks.{depth - 1}.adaLN_modulation.1.weight": (3 * head_width, head_width),
        "diffloss.net.final_layer.linear.weight": (32, head_width),
    }
    assert {k: shapes.get(k) for k in wanted} == wanted


def kl16_names() -> list[str]:
    """The keys of kl16.ckpt, as latent diffusion names them."""

    def leaf(*names):
        return [f"{n}.{kind}" for n in names for kind in ("weight", "bias")]

    def block(prefix, shortcut):
        parts = ["norm1", "conv1", "norm2", "conv2", *(["nin_shortcut"] if shortcut else [])]
        return leaf(*(f"{prefix}.{p}" for p in parts))

    def attention(prefix):
        return leaf(*(f"{prefix}.{p}" for p in ("norm", "q", "k", "v", "proj_out")))

    mult, found = (1, 1, 2, 2, 4), leaf("quant_conv", "post_quant_conv")
    for side in ("encoder", "decoder"):
        found += leaf(f"{side}.conv_in", f"{side}.norm_out", f"{side}.conv_out")
        found += (
            block(f"{side}.mid.block_1", False) + attention(f"{side}.mid.attn_1") + block(f"{side}.mid.block_2", False)
        )
    for i in range(5):
        before = mult[i - 1] if i else 1
        for j in range(2):
            found += block(f"encoder.down.{i}.block.{j}", j == 0 and before != mult[i])
            found += attention(f"encoder.down.{i}.attn.{j}") if i == 4 else []
        found += leaf(f"encoder.down.{i}.downsample.conv") if i < 4 else []
        above = mult[min(i + 1, 4)]
        for j in range(3):
            found += block(f"decoder.up.{i}.block.{j}", j == 0 and above != mult[i])
        found += leaf(f"decoder.up.{i}.upsample.conv") if i else []
    return found


def test_kl16_has_the_published_names():
    with torch.device("meta"):
        net = KL(KLConfig())
    renamed = published_names({**dict.fromkeys(kl16_names(), torch.empty(0)), "loss.logvar": torch.empty(0)})
    assert set(renamed) == set(net.state_dict())
    assert round(4 * sum(p.numel() for p in net.parameters()) / 2**20) == 254  # MiB of the published file


SMALL = {  # one head of 64, as wide as the released ones' are
    "mar": lambda blocks: MARNet(
        MARConfig(
            classes=5, grid=4, width=64, encoder=blocks, decoder=1, heads=1, buffer=2, head_width=32, head_depth=2
        )
    ),
    "xar": lambda blocks: XARNet(XARConfig(classes=5, grid=16, width=64, encoder=blocks, decoder=1, heads=1)),
}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Files as they are released: pickled, MAR's with its moving average beside the raw weights and the run's
    arguments."""
    folder = tmp_path_factory.mktemp("released")
    torch.manual_seed(0)
    nets = {(model, part): SMALL[model](blocks) for model in SMALL for part, blocks in (("", 2), ("-draft", 1))}
    for (model, part), net in nets.items():
        state = net.state_dict()
        if model == "mar":
            raw = {k: torch.zeros_like(v) for k, v in state.items()}
            kept = {"model": raw, "model_ema": state, "epoch": 3, "args": argparse.Namespace(lr=1.0)}
        else:
            kept = {**state, "mask": torch.ones(2, 2), "rope.freqs": torch.ones(2)}
        torch.save(kept, folder / f"{model}{part}.pth")
    kl16(folder)
    return folder, nets


def section(folder, model, **more):
    """A configuration of converted weights."""
    own = {"methods": {"mar": [{}], "cspd": [{"gamma": 2}]}, "images": 2, "batch": [2], **more}
    return {"models": {model: {"family": model, "source": "files", "folder": str(folder)}}, "continuous": own}


@pytest.mark.parametrize("model", SMALL)
def test_released_files_become_an_experiment(released, tmp_path, model, monkeypatch):
    folder, nets = released
    flags = {"target": f"{model}.pth", "draft": f"{model}-draft.pth", "kl": "kl16.ckpt"}
    given = [text for flag, file in flags.items() for text in (f"--{flag}", str(folder / file))]
    monkeypatch.setattr(sys, "argv", ["models", "convert", "--model", model, *given, "--out", str(tmp_path / "w")])
    converted()
    config = checks.load(section(tmp_path / "w", model))
    every = cells(config, [])
    assert len(every) == 3 and len({c.spec["revision"] for c in every}) == 1
    spec = {"family": model, "source": "files", "folder": str(tmp_path / "w")}
    manifest = fetch.manifest("continuous", model, spec, tmp_path)
    loaded = load(manifest, needs="draft")
    for name, part in (("", "target"), ("-draft", "draft")):  # the moving average, not the zeros
        mine = loaded.network(part).state_dict()
        assert all(torch.equal(v, mine[k]) for k, v in nets[model, name].state_dict().items())
    pair = loaded.pair(range(2), {**every[0].spec["sampling"], "steps": 3}, True)
    noise = counted_noise(0, range(2), torch.float32)
    start = Start(draw_order(noise, 2, pair.target.length, pair.target.raster))
    tokens = record(pair, start, cspd(pair, start, noise=noise, gamma=2)).tokens
    pixels = loaded.pictures(tokens[:1])  # the released decoder takes seconds a picture
    side = 2 * nets[model, ""].config.grid
    assert len(tokens) == 2 and pixels.shape == (1, side, side, 3) and pixels.dtype == np.uint8
    assert loaded.class_of(3) == str(21 % 5)
    assert weights.places(config.models[model]) == pair.target.length
    longer = {"mar": [{}], "cspd": [{"gamma": pair.target.length + 1}]}
    with pytest.raises(ConfigError, match=f"at most {pair.target.length} "):
        checks.load(section(tmp_path / "w", model, methods=longer))


def test_converted_files_that_were_changed_are_one_line(released, tmp_path):
    folder, _ = released
    convert("mar", folder / "mar.pth", folder / "mar-draft.pth", folder / "kl16.ckpt", tmp_path)
    file, spec = tmp_path / "mar.safetensors", {"family": "mar", "source": "files", "folder": str(tmp_path)}
    assert sums(tmp_path)["mar.safetensors"] == sha256(file)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ParityError, match="SHA-256"):
        fetch.manifest("continuous", "mar", spec, tmp_path)
    save_file({"x": torch.zeros(1)}, file)  # nobody's header
    with pytest.raises(ConfigError, match="says nothing of its sizes"):
        checks.load(section(tmp_path, "mar"))


@pytest.mark.parametrize("model", SMALL)
def test_sizes_are_read_off_the_shapes(released, model):
    folder, nets = released
    family = importlib.import_module(f"parity.models.continuous.{model}")
    read = sizes(family, unpickle(folder / f"{model}.pth"), folder)
    assert asdict(read) == asdict(nets[model, ""].config)


def harmful():
    raise AssertionError("a checkpoint was executed")


class Harmful:
    def __reduce__(self):
        return harmful, ()


WRONG = {
    "harmful.pth": "safely",
    "text.pth": "safely",
    "gone.pth": "no such file",
    "other.pth": "not a checkpoint of mar",
    "wide.pth": "width 7: allowed: a multiple of 64",
    "part.pth": "missing mask_token",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_checkpoint_is_one_line(released, tmp_path, name):
    folder, _ = released
    part = unpickle(folder / "mar.pth")
    part.pop("mask_token")
    made = {
        "harmful.pth": {"model": Harmful()},
        "other.pth": {"model": {"x": torch.zeros(7, 3)}},
        "wide.pth": {"model": {"z_proj.weight": torch.zeros(7, 3)}},
        "part.pth": part,
    }
    if name in made:
        torch.save(made[name], tmp_path / name)
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(ParityError, match=WRONG[name]) as error:
        convert("mar", tmp_path / name, folder / "mar-draft.pth", folder / "kl16.ckpt", tmp_path / "w")
    assert "\n" not in str(error.value) and name in str(error.value)
    with pytest.raises(ConfigError, match="no SHA256SUMS"):  # nothing half written passes for whole
        checks.load(section(tmp_path / "w", "mar"))
