"""`parity models add` identifies files by their tensors; a file replaced under its path stops the jobs that follow."""

import argparse
import hashlib
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from parity.base.digests import parts, read_manifest, sha256
from parity.base.errors import ConfigError, ParityError
from parity.base.files import write_json
from parity.experiment import checks
from parity.experiment.prompt_files import read_prompts
from parity.models import add, fetch
from parity.models.__main__ import add_model
from parity.models.discrete import load as models
from parity.models.discrete import vq
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer
from parity.models.discrete.t5 import make_t5_encoder
from parity.models.discrete.vq import VQ, VQConfig
from parity.stand_ins import make_entry, write
from parity.stand_ins.discrete import write_tokenizer

SMALL = {"dim": 128, "layers": 2, "heads": 2}
CLASSES = SMALL | {"prefix": 1, "caption_dim": 0, "classes": 10}


def write_llamagen(folder: Path, config: dict) -> Path:
    """Write a random LlamaGen as it is released to a new folder: transformer and tokenizer, pickled."""
    torch.manual_seed(0)
    net, vq = Transformer(LlamaGenConfig(**config)), VQ(VQConfig(ch=32, z_channels=32))
    folder.mkdir()
    torch.save({"model": net.state_dict(), "steps": 3}, folder / "t2i_256.pt")
    torch.save({"model": vq.state_dict()}, folder / "vq_ds16.pt")
    return folder


def write_t5(folder: Path) -> Path:
    write_tokenizer(folder, ["<pad>", "</s>", "<unk>"], pad_token="<pad>")
    make_t5_encoder().save_pretrained(folder)
    return folder


def test_a_folder_is_added_as_an_experiment(tmp_path):
    sizes = SMALL | {"caption_dim": 128}
    folder = write_llamagen(tmp_path / "m", sizes)
    write_t5(folder / "t5")
    addition = add.find(str(folder))
    entry = addition.entry
    assert entry["network"] == sizes
    assert entry["family"] == "llamagen"
    assert set(entry["files"]) == {"transformer", "vq", "text"}
    for name in ("transformer", "vq"):
        assert entry["sha256"][name] == hashlib.sha256(Path(entry["files"][name]).read_bytes()).hexdigest()
    add.write("m", addition, tmp_path / "m.yaml", tell=lambda text: None)
    raw = yaml.safe_load((tmp_path / "m.yaml").read_text())
    assert checks.make_config(raw).models["m"].network == sizes
    manifest = fetch.make_manifest("discrete", "m", raw["models"]["m"], tmp_path / "out")
    assert models.image_side(manifest) == 256
    with pytest.raises(ParityError, match="is there already"):
        add.write("m", addition, tmp_path / "m.yaml")
    Path(entry["files"]["vq"]).write_bytes(b"other")
    with pytest.raises(ParityError, match=r"files\.vq.*SHA-256 is"):
        fetch.make_manifest("discrete", "m", raw["models"]["m"], tmp_path / "again")


def test_classes_condition_the_model_as_the_network(tmp_path):
    from parity.models.discrete import llamagen

    torch.manual_seed(0)
    config = LlamaGenConfig(**CLASSES, vocab=16, grid=4)
    nets = {"net": Transformer(config).eval(), "vq": VQ(VQConfig(ch=32, z_channels=32))}
    label, tokens = torch.tensor([3, 7]), torch.randint(16, (2, 5))
    model = llamagen.condition(nets, {"label": label}, guided=True).target
    conditioning = torch.cat([label, label]), torch.ones(4, 1), torch.tensor([False, False, True, True])
    with torch.inference_mode():
        full = nets["net"].output(nets["net"].features(*conditioning, tokens.repeat(2, 1)))
        positions = torch.arange(-1, 5).expand(4, -1)
        fed = torch.cat([torch.zeros(4, 1, dtype=torch.int64), tokens.repeat(2, 1)], 1)
        assert torch.allclose(model.logits(fed, positions), full, atol=1e-5)
        assert not torch.allclose(full[:2], full[2:], atol=1e-2)  # distributions of another class differ


def test_a_folder_without_a_model_is_one_line(tmp_path):
    with pytest.raises(ParityError, match="no transformer among no files"):
        add.find(str(tmp_path), 16)
    half = {"quantize.embedding.weight": torch.zeros(2, 2), "post_quant_conv.weight": torch.zeros(1)}
    save_file(half, tmp_path / "vq.safetensors")
    with pytest.raises(ParityError, match="no transformer among"):
        add.find(str(tmp_path), 16)


def test_metas_own_layout_is_refused_by_name(tmp_path):
    """As Anole's authors released it."""
    (tmp_path / "models/7b").mkdir(parents=True)
    state = {"tok_embeddings.weight": torch.zeros(2, 2), "layers.0.attention.wq.weight": torch.zeros(2, 2)}
    torch.save(state, tmp_path / "models/7b/consolidated.pth")
    with pytest.raises(ParityError, match=r"consolidated.pth: Meta's own layout.*convert_chameleon_weights") as error:
        add.find(str(tmp_path))
    assert "llamagen" not in str(error.value)


def fail_on_hash(*_):
    pytest.fail("a file was read whole before what is missing was named")


def test_a_missing_part_is_named_before_files_are_hashed(tmp_path, monkeypatch):
    monkeypatch.setattr(add, "sha256", fail_on_hash)
    folder = write_llamagen(tmp_path / "m", SMALL)
    with pytest.raises(ParityError, match=r"no text among .*; give --text, the folder of a T5 encoder \(a model of cl"):
        add.write("m", add.identify(str(folder)), tmp_path / "m.yaml")
    (folder / "vq_ds16.pt").rename(tmp_path / "vq_ds16.pt")
    with pytest.raises(ParityError, match=r"no vq among .*t2i_256.pt; give --vq"):
        add.identify(str(folder))
    assert "vq" in add.identify(str(folder), None, {"vq": tmp_path / "vq_ds16.pt"}).paths
    (tmp_path / "m.yaml").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["models", "add", "m", "nowhere", "--out", str(tmp_path / "m.yaml")])
    with pytest.raises(ParityError, match="is there already"):
        add_model()


def test_what_is_damaged_is_named_and_what_is_left_out_is_counted(tmp_path, capsys):
    folder = write_llamagen(tmp_path / "m", SMALL)
    torch.save({"weight": torch.zeros(3)}, folder / "other.pt")
    assert add.identify(str(folder)).entry["family"] == "llamagen"
    assert re.search(r"left out: 1 files .*other\.pt", capsys.readouterr().err)
    (folder / "other.pt").unlink()
    add.identify(str(folder))
    assert "left out" not in capsys.readouterr().err
    (folder / "config.json").write_text('{"model_type": "chamel')
    with pytest.raises(ParityError, match=r"config\.json: not JSON"):
        add.identify(str(folder))
    (folder / "config.json").unlink()
    (folder / "drafter.safetensors").symlink_to(tmp_path / "nowhere")
    for read in (lambda: add.identify(str(folder)), lambda: sha256(folder)):
        with pytest.raises(ParityError, match=r"drafter\.safetensors: a link to '"):
            read()


def test_what_no_file_tells_must_be_given(tmp_path):
    (tmp_path / "256").mkdir()  # a number in a folder's name does not tell the size of images
    folder = write_llamagen(tmp_path / "256" / "m", SMALL)
    (folder / "t2i_256.pt").rename(folder / "model.pt")
    with pytest.raises(ParityError, match="give --grid"):
        add.find(str(folder))
    assert add.find(str(folder), 32).entry["network"] == SMALL | {"grid": 32}
    torch.save({"model": Transformer(LlamaGenConfig(**SMALL)).state_dict()}, folder / "other.pt")
    with pytest.raises(ParityError, match="transformer: both"):
        add.find(str(folder), 16)
    with pytest.raises(ParityError, match="no such folder"):
        add.find(str(tmp_path / "nowhere"), 16)


PARTS = ("transformer", "vq", "text")
WRONG = {
    "layer": ({"network": {"layer": 3}}, "network.layer = 3: unknown size; allowed: vocab, dim"),
    "float": ({"network": {"layers": 3.5}}, "network.layers = 3.5: allowed: a whole number"),
    "heads": ({"network": {"heads": 7}}, "network.heads = 7: allowed: a divisor of dim, 1280"),
    "part": ({"files": {"transformer": "here"}, "sha256": {"transformer": "0" * 64}}, "needs vq"),
    "absent": ({"files": dict.fromkeys(PARTS, "nowhere.pt")}, "transformer = 'nowhere.pt': no such file"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_entries_of_users_are_checked_before_any_job(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    Path("here").write_bytes(b"")
    change, message = WRONG[case]
    spec = {"family": "llamagen", "source": "files", "files": dict.fromkeys(PARTS, "here")} | change
    spec.setdefault("sha256", dict.fromkeys(spec["files"], "0" * 64))
    raw = {"models": {"m": spec}, "image": {"methods": {"ar": [{}]}}}
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        checks.make_config(json.loads(json.dumps(raw)))


@pytest.mark.parametrize("pickled", [True, False])
def test_a_model_of_classes_draws_images_from_its_files(tmp_path, pickled):
    """With VQ-8, trained by torch.compile, with a table of rotations in the file; nothing is typed but the folder."""
    torch.manual_seed(0)
    (tmp_path / "c").mkdir()
    config = LlamaGenConfig(**CLASSES, vocab=64, grid=8)
    net, tokenizer = Transformer(config), VQ(VQConfig(codebook=64, ch=32, ch_mult=(1, 2, 2, 4), z_channels=32))
    state = {f"_orig_mod.{k}": v for k, v in net.state_dict().items()} | {"freqs_cis": net.rotary.table}
    pixels = {**tokenizer.state_dict(), "quantize.codebook_used": torch.zeros(65536)}
    if pickled:
        torch.save({"model": state, "args": argparse.Namespace(lr=1.0)}, tmp_path / "c/c2i_B_256.pt")
        torch.save({"model": pixels}, tmp_path / "c/vq_ds8_c2i.pt")
    else:
        save_file(state, tmp_path / "c/c2i_B_256.safetensors")
        save_file(pixels, tmp_path / "c/vq_ds8_c2i.safetensors")
    # Images of 256 pixels have 256 / 8 codes a side.
    assert add.find(str(tmp_path / "c")).entry["network"] == CLASSES | {"vocab": 64, "grid": 32}
    add.write("c", add.find(str(tmp_path / "c"), 8), tmp_path / "c.yaml", tell=lambda text: None)
    raw = yaml.safe_load((tmp_path / "c.yaml").read_text())
    prompts = read_prompts(checks.make_config(raw).image.prompts)
    manifest = fetch.make_manifest("discrete", "c", raw["models"]["c"], tmp_path / "out")
    loaded = models.load(manifest)
    assert torch.equal(loaded.nets["net"].rotary.table, net.rotary.table)
    assert set(models.load_painter(manifest).nets) == {"vq"}  # drawing images loads no transformer
    assert raw["image"]["sampling"] == {"guidance": 4.0, "top_k": 64}
    assert len(set(prompts)) == 10
    encode = models.load_encoder(manifest)
    for caption in ("10", "a cat"):
        with pytest.raises(ParityError, match="allowed: the number of a class, 0 to 9"):
            encode([caption])
    tokens = torch.randint(64, (2, 64))
    images = models.load_painter(manifest).images(tokens)
    assert images.shape == (2, 64, 64, 3)
    assert models.image_side(manifest) == 64
    with torch.inference_mode():
        assert (vq.to_pixels(tokenizer.eval().decode(tokens)) == images).all()


def make_pair(folder):
    """Write a published continuous pair, which is converted when it is fetched; return its entry."""
    files = {name: str(folder / path) for name, path in write("mar", folder).items()}
    digests = {name: sha256(Path(file)) for name, file in files.items()}
    return {"files": files, "sha256": digests, "network": {"grid": 4}}


def make_with(first, second, folder):
    entries = [make_entry(name, folder / name) for name in (first, second)]
    return {**entries[0], **{key: entries[0][key] | entries[1][key] for key in ("files", "sha256")}}


def make_judge(folder):
    """Write a file that stands for Inception's; return its entry."""
    folder.mkdir()
    (folder / "inception.pth").write_bytes(bytes(100))
    return {"file": str(folder / "inception.pth"), "sha256": sha256(folder / "inception.pth")}


MADE = {  # kind, family, and a function of a folder that writes files and returns the entry of a configuration
    "transformer, tokenizer, text encoder, drafter": (
        "discrete", "llamagen", lambda folder: make_with("llamagen", "eagle_drafter", folder),
    ),
    "a folder": ("discrete", "janus", lambda folder: make_entry("janus", folder)),
    "a pair": ("continuous", "mar", make_pair),
    "a converted pair": ("continuous", "mar", lambda folder: make_entry("mar", folder)),
    "text": ("anysubset", "xlnet", lambda folder: make_with("xlnet", "gpt2", folder)),
    "a judge": ("networks", "inception", make_judge),
}  # fmt: skip


@pytest.mark.parametrize("case", MADE)
def test_a_replaced_file_stops_what_follows(tmp_path, case):
    kind, family, make = MADE[case]
    entry = make(tmp_path / "files") | ({} if kind == "networks" else {"family": family, "source": "files"})
    write_json(tmp_path / "manifest.json", fetch.make_manifest(kind, family, entry, tmp_path / "out"))
    manifest = read_manifest(tmp_path / "manifest.json")
    verified = manifest["verified"]
    digests = entry.get("sha256", manifest["sha256"])
    assert set(digests.values() if isinstance(digests, dict) else [digests]) <= {digest for *_, digest in verified}
    for key, path, digest in verified:
        file = parts(Path(path))[0]
        content, status = file.read_bytes(), file.stat()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # size, time and inode are as before
        with pytest.raises(ParityError) as error:
            read_manifest(tmp_path / "manifest.json")
        assert all(word in str(error.value) for word in (key, path, digest, sha256(Path(path)), "put the former file"))
        file.write_bytes(content)
    assert read_manifest(tmp_path / "manifest.json") == manifest
