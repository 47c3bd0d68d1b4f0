"""`parity.models add`: files are known by what is in them, nobody types a digest or a layer count."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import save_file

from parity.base.errors import ConfigError, ParityError
from parity.experiment import checks
from parity.experiment.prompts import read_prompts
from parity.models import add, fetch
from parity.models.discrete import load as models
from parity.models.discrete.t5 import t5_encoder
from parity.models.discrete.transformer import LlamaGenConfig, Transformer
from parity.models.discrete.vq import VQ, VQConfig

SMALL = {"dim": 128, "layers": 2, "heads": 2}
CLASSES = SMALL | {"prefix": 1, "caption_dim": 0, "classes": 10}


def lay(folder: Path, config: dict, pickled: bool = True) -> Path:
    """A LlamaGen as it is released: transformer and tokenizer, pickled beside other things or as safetensors."""
    torch.manual_seed(0)
    net, vq = Transformer(LlamaGenConfig(**config)), VQ(VQConfig(ch=32, z_channels=32))
    folder.mkdir()
    if pickled:
        torch.save({"model": net.state_dict(), "steps": 3}, folder / "t2i_256.pt")
    else:
        save_file(net.state_dict(), folder / "t2i_256.safetensors")
    torch.save({"model": vq.state_dict()}, folder / "vq_ds16.pt")
    return folder


@pytest.mark.parametrize("pickled", [True, False])
def test_a_folder_becomes_an_experiment_that_the_checks_take(tmp_path, pickled):
    folder = lay(tmp_path / "m", SMALL, pickled)
    t5_encoder().save_pretrained(folder / "t5")
    said = add.entry(str(folder), None, None)
    assert (
        said["network"] == SMALL
        and said["family"] == "llamagen"
        and set(said["files"]) == {"transformer", "vq", "text"}
    )
    for part in ("transformer", "vq"):
        assert said["sha256"][part] == hashlib.sha256(Path(said["files"][part]).read_bytes()).hexdigest()
    add.write("m", said, tmp_path / "m.yaml", tell=lambda text: None)
    raw = yaml.safe_load((tmp_path / "m.yaml").read_text())
    assert checks.load(raw).image.models["m"].network == SMALL
    manifest = fetch.manifest("discrete", "m", raw["image"]["models"]["m"], tmp_path / "out")
    assert models.side(manifest) == 256
    with pytest.raises(ParityError, match="is there already"):
        add.write("m", said, tmp_path / "m.yaml")
    Path(said["files"]["vq"]).write_bytes(b"other")
    with pytest.raises(ParityError, match=r"files\.vq.*SHA-256 is"):
        fetch.manifest("discrete", "m", raw["image"]["models"]["m"], tmp_path / "again")


def test_a_model_of_classes_needs_no_text_and_reads_their_numbers(tmp_path):
    said = add.entry(str(lay(tmp_path / "c", CLASSES)), None, None)
    assert said["network"] == CLASSES and set(said["files"]) == {"transformer", "vq"}
    add.write("c", said, tmp_path / "c.yaml", tell=lambda text: None)
    raw = yaml.safe_load((tmp_path / "c.yaml").read_text())
    prompts = read_prompts(checks.load(raw).image.prompts)
    manifest = {"source": "files", "family": "llamagen", "network": CLASSES, "files": {}}
    encode = models.encoder(manifest)
    assert len(set(prompts)) == 10 and encode(prompts)["label"].max() == 9
    for caption in ("10", "-1", "a cat", ""):
        with pytest.raises(ParityError, match="allowed: the number of a class, 0 to 9"):
            encode([caption])


def test_classes_condition_as_the_network_reads_them(tmp_path):
    from parity.models.discrete import llamagen

    torch.manual_seed(0)
    config = LlamaGenConfig(**CLASSES, vocab=16, grid=4)
    nets = {"net": Transformer(config).eval(), "vq": VQ(VQConfig(ch=32, z_channels=32))}
    label, tokens = torch.tensor([3, 7]), torch.randint(16, (2, 5))
    model = llamagen.condition(nets, {"label": label}, guided=True)
    told = torch.cat([label, label]), torch.ones(4, 1), torch.tensor([False, False, True, True])
    with torch.inference_mode():
        whole = nets["net"](*told, tokens.repeat(2, 1))
        positions = torch.arange(-1, 5).expand(4, -1)
        fed = torch.cat([torch.zeros(4, 1, dtype=torch.int64), tokens.repeat(2, 1)], 1)
        assert torch.allclose(model.logits(fed, positions), whole, atol=1e-5)
        assert not torch.allclose(whole[:2], whole[2:], atol=1e-2)  # the class is read


HALF = {"quantize.embedding.weight": torch.zeros(2, 2), "post_quant_conv.weight": torch.zeros(1)}
PARTS = ("transformer", "vq", "text")
BAD = {
    "nothing": (lambda f: None, "no transformer among no files"),
    "half a checkpoint": (lambda f: save_file(HALF, f / "vq.safetensors"), "no transformer among"),
    "a page for weights": (lambda f: (f / "x.safetensors").write_text("<html>gone</html>"), "not a safetensors file"),
    "another pickle": (lambda f: (f / "x.pt").write_bytes(b"<html>"), "not a checkpoint that can be read safely"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_folder_that_holds_no_model_is_one_line(tmp_path, case):
    make, message = BAD[case]
    make(tmp_path)
    with pytest.raises(ParityError, match=message) as told:
        add.entry(str(tmp_path), 16, None)
    assert "\n" not in str(told.value)


def test_what_no_file_tells_is_asked_for(tmp_path):
    folder = lay(tmp_path / "m", SMALL)
    (folder / "t2i_256.pt").rename(folder / "model.pt")
    with pytest.raises(ParityError, match="give --grid"):
        add.entry(str(folder), None, None)
    assert add.entry(str(folder), 32, None)["network"] == SMALL | {"grid": 32}
    torch.save({"model": Transformer(LlamaGenConfig(**SMALL)).state_dict()}, folder / "other.pt")
    with pytest.raises(ParityError, match="transformer: both"):
        add.entry(str(folder), 16, None)
    with pytest.raises(ParityError, match="no such folder"):
        add.entry(str(tmp_path / "nowhere"), 16, None)


def test_a_repository_is_pinned(tmp_path, monkeypatch):
    import huggingface_hub as hub

    folder, sha = lay(tmp_path / "m", SMALL), "0123abcd" * 5
    siblings = [SimpleNamespace(rfilename=f.name) for f in folder.iterdir()] + [SimpleNamespace(rfilename="README.md")]
    monkeypatch.setattr(
        hub.HfApi, "model_info", lambda self, repo, revision=None: SimpleNamespace(sha=sha, siblings=siblings)
    )
    told = SimpleNamespace(will_download=False)
    get = lambda repo, file, revision, dry_run=False: told if dry_run else folder / file  # noqa: E731
    monkeypatch.setattr(hub, "hf_hub_download", get)
    said = add.entry("hub:a/b", None, None)
    assert (said["source"], said["repo"], said["revision"]) == ("hub", "a/b", sha)
    assert said["files"] == {"transformer": "t2i_256.pt", "vq": "vq_ds16.pt"}

    def gated(self, repo, revision=None):
        raise hub.errors.GatedRepoError.__new__(hub.errors.GatedRepoError, "no")

    monkeypatch.setattr(hub.HfApi, "model_info", gated)
    with pytest.raises(ParityError, match=r"a/b at main cannot be had: GatedRepoError.*accept its terms.*HF_TOKEN"):
        add.entry("hub:a/b", None, None)


WRONG = {
    "layer": ({"network": {"layer": 3}}, "network.layer = 3: unknown size; allowed: vocab, dim"),
    "float": ({"network": {"layers": 3.5}}, "network.layers = 3.5: allowed: a whole number"),
    "heads": ({"network": {"heads": 7}}, "network.heads = 7: allowed: a divisor of dim, 1280"),
    "part": ({"files": {"transformer": "here"}, "sha256": {"transformer": "0" * 64}}, "needs vq"),
    "absent": ({"files": dict.fromkeys(PARTS, "nowhere.pt")}, "transformer = 'nowhere.pt': no such file"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_the_user_typed_is_checked_before_any_job(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    Path("here").write_bytes(b"")
    change, message = WRONG[case]
    spec = {"source": "files", "files": dict.fromkeys(PARTS, "here")} | change
    spec.setdefault("sha256", dict.fromkeys(spec["files"], "0" * 64))
    raw = {"image": {"models": {"m": spec}, "methods": {"ar": [{}]}}}
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")) as told:
        checks.load(json.loads(json.dumps(raw)))
    assert "\n" not in str(told.value)
