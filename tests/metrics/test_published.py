"""Pictures of published models: the networks that a configuration declares against their own libraries' use of them,
the protocols, what is compared with, and what stands where a network is not declared."""

import argparse
import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from parity.base.errors import ParityError
from parity.base.files import digest, read_arrays, read_json, write_arrays, write_json
from parity.base.weights import sha256
from parity.decode.shard_io import write_shard
from parity.measure.__main__ import measure
from parity.metrics import fid, judges, manifold, pictures, protocols
from parity.metrics.estimates import columns_of
from parity.metrics.networks import published
from parity.models import fetch
from parity.stand_ins import metrics as stand_ins
from parity.stand_ins import write

CAPTIONS = ["a red circle", "A photo of TWO cats & a dog", "blue", "a cat sat on the mat " * 30, "blue", "a small ring"]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    write("clip", folder)
    write("pickscore", folder)
    return folder


@pytest.fixture(scope="module")
def pixels():
    """uint8 [6, 40, 56, 3]: no squares, and of no network's size."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
    return coarse.repeat(8, 1).repeat(8, 2) // 2 + rng.integers(0, 120, (6, 40, 56, 3), dtype=np.uint8)


def manifest(tmp_path, name, file, **more):
    spec = {"file": str(file), "sha256": sha256(file), **more}
    write_json(tmp_path / f"{name}.json", fetch.make_manifest("networks", name, spec, tmp_path / name))
    return tmp_path / f"{name}.json"


def open_clips_own(folder, pixels, captions):
    """Cosines by open_clip's own forward, its own preparation and tokenizer."""
    import open_clip

    net, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{folder}", require_pretrained=True)
    words = open_clip.get_tokenizer(f"local-dir:{folder}")
    with torch.inference_mode():
        x = torch.stack([prepare(Image.fromarray(p)) for p in pixels])
        a, b, _ = net.eval()(x, words(captions))
    return (a * b).sum(-1).numpy()


def test_clip_score_is_open_clips_the_prefix_and_the_squeeze_the_protocols(stand_in, pixels, tmp_path):
    networks = judges.read_manifests([manifest(tmp_path, "clip", stand_in / "clip")])
    found = judges.measure_pictures(lambda: pixels, CAPTIONS, networks, "clean")
    assert np.abs(found["cosine"] - open_clips_own(stand_in / "clip", pixels, CAPTIONS)).max() < 1e-6
    assert found["cut"] == 1
    assert set(found) == {"cosine", "cut"}
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    squeezed = F.interpolate(x, size=(299, 299), mode="bilinear", align_corners=False).permute(0, 2, 3, 1).numpy()
    wanted = {
        "lantern": open_clips_own(stand_in / "clip", pixels, [f"A photo depicts {c}" for c in CAPTIONS]),
        "sjd": open_clips_own(stand_in / "clip", squeezed, CAPTIONS),
    }
    for protocol, expected in wanted.items():
        found = judges.measure_pictures(lambda: pixels, CAPTIONS, networks, protocol)["cosine"]
        assert np.abs(found - expected).max() < 1e-6
    assert np.abs(wanted["lantern"] - wanted["sjd"]).max() > 1e-3


def test_pickscore_is_transformers(stand_in, pixels, tmp_path):
    from transformers import CLIPModel

    networks = judges.read_manifests([manifest(tmp_path, "pickscore", stand_in / "pickscore")])
    found = judges.measure_pictures(lambda: pixels, CAPTIONS, networks, "clean")["pickscore"]
    net = CLIPModel.from_pretrained(stand_in / "pickscore").eval()
    ours = published.load_pickscore(stand_in / "pickscore", "networks.pickscore")
    with torch.inference_mode():
        x = torch.stack([ours.prepare(Image.fromarray(p)) for p in pixels])
        logits = net(input_ids=ours.tokenizer(CAPTIONS), pixel_values=x).logits_per_image
    assert np.abs(found - logits.diagonal().numpy()).max() < 1e-4


def test_cmmd_is_the_mean_kernel_over_all_pairs(stand_in, pixels, tmp_path):
    networks = judges.read_manifests([manifest(tmp_path, "clip_vision", stand_in / "clip")])
    x = judges.measure_pictures(lambda: pixels, None, networks, "clean")["cmmd"].astype(float)
    y = judges.measure_pictures(lambda: pixels[:3] // 2, None, networks, "clean")["cmmd"].astype(float)
    assert np.allclose((x**2).sum(1), 1)

    def kernel(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 200).mean()

    def cmmd(own, real):
        sample = SimpleNamespace(outputs={"cmmd": own}, reference_outputs={"cmmd": real}, groups=np.arange(len(own)))
        return fid.measure_cmmd(sample)["cmmd"].value

    assert cmmd(x, y) == pytest.approx(1000 * (kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)), rel=1e-9)
    assert abs(cmmd(x, x)) < 1e-9 < cmmd(x, y)


@pytest.mark.slow
def test_inception_is_torch_fidelitys_and_clean_fids(tmp_path, monkeypatch):
    """Each protocol's features against the library that its paper ran, on the same random weights; and the figures
    made of them."""
    import torch_fidelity
    from cleanfid import fid as clean
    from cleanfid import inception_pytorch
    from cleanfid.features import build_feature_extractor

    file = tmp_path / write("inception", tmp_path)["inception"]
    rng, sides = np.random.default_rng(0), {"a": [], "b": []}
    for side, kept in sides.items():
        (tmp_path / side).mkdir()
        for k in range(3):
            picture = rng.integers(0, 256, (12, 9, 3), dtype=np.uint8).repeat(25, 0).repeat(30, 1)
            Image.fromarray(picture).save(tmp_path / side / f"{k}.png")
            kept.append(picture)
    a, b = sides.values()
    net = published.load_inception(file)

    u = torch.from_numpy(np.stack(a)).permute(0, 3, 1, 2)
    features, logits = (x.numpy() for x in net(u))
    ours = published.read_inception(net, iter(a), protocols.recipe("torchfid50k"))
    assert np.array_equal(ours["features"], features)
    assert np.abs(ours["logits"] - logits).max() < 1e-5
    theirs = torch_fidelity.calculate_metrics(
        input1=str(tmp_path / "a"), input2=str(tmp_path / "b"), cuda=False, fid=True, isc=True, isc_splits=1,
        cache=False, feature_extractor_weights_path=str(file), verbose=False, batch_size=4,
    )  # fmt: skip
    real = published.read_inception(net, iter(b), protocols.recipe("torchfid50k"))
    found = fid.frechet(ours["features"], fid.reference_half(real["features"]))
    assert found == pytest.approx(theirs["frechet_inception_distance"], rel=1e-4)
    found = fid.inception_score(torch.from_numpy(ours["logits"]), 1)[0]
    assert found == pytest.approx(theirs["inception_score_mean"], rel=1e-6)

    state = torch.load(file, weights_only=True)
    monkeypatch.setattr(inception_pytorch, "load_state_dict_from_url", lambda *a, **k: state)
    names = [str(tmp_path / "a" / f"{k}.png") for k in range(3)]
    device = {"device": torch.device("cpu"), "num_workers": 0, "verbose": False}
    extractor = build_feature_extractor("legacy_pytorch", torch.device("cpu"), use_dataparallel=False)
    expected = clean.get_files_features(names, extractor, mode="legacy_pytorch", **device)
    sjd = published.read_inception(net, iter(a), protocols.recipe("sjd"))["features"]
    assert np.abs(sjd - expected).max() < 1e-4 * np.abs(expected).max()

    def layers(x):  # clean-fid's own wrapper of the network, its file aside
        return torch.from_numpy(through(net, (x - 128) / 128))

    expected = clean.get_files_features(names, layers, mode="clean", **device)
    ours = published.read_inception(net, iter(a), protocols.recipe("clean"))["features"]
    assert np.abs(ours - expected).max() < 1e-5 * np.abs(expected).max()
    assert np.abs(ours - sjd).max() > 1e-2 * np.abs(expected).max()  # which resizing it is, is seen


def through(net, x):
    with torch.inference_mode():
        for layer in list(net.children())[:-1]:
            x = layer(x)
        return x.flatten(1).numpy()


def test_lantern_crops_the_middle_square(pixels):
    square = np.asarray(Image.fromarray(pixels[0][:, 8:48]).resize((256, 256), Image.Resampling.LANCZOS))
    assert np.array_equal(published.crop(pixels[0], 256), square)
    assert np.array_equal(published.crop(pixels[0], 0), pixels[0])


def torch_fidelitys(file, monkeypatch):
    """torch-fidelity's own extractor of the layer before the ReLU, of torchvision's network as wide as the stand-in."""
    import torchvision
    from torch_fidelity.feature_extractor_vgg16 import FeatureExtractorVGG16
    from torchvision.models.vgg import VGG, make_layers

    def small():
        with torch.device("meta"):
            net, plan = VGG(make_layers([]), init_weights=False), torchvision.models.vgg.cfgs["D"]
        width, linear, relu, drop = stand_ins.VGG_WIDTH, torch.nn.Linear, torch.nn.ReLU(), torch.nn.Dropout()
        net.features = make_layers(["M" if layer == "M" else width for layer in plan])
        first = [linear(width * 49, width), relu, drop, linear(width, width)]
        net.classifier = torch.nn.Sequential(*first, relu, drop, linear(width, stand_ins.VGG_CLASSES))
        return net

    monkeypatch.setattr(torchvision.models, "vgg16", small)
    return FeatureExtractorVGG16("vgg16", ["fc2"], feature_extractor_weights_path=str(file))


def test_lanterns_precision_and_recall_are_torch_fidelitys_of_vgg16(tmp_path, monkeypatch):
    """Its network's features and its two shares. Of Inception's features under the same protocol they would be
    others."""
    from torch_fidelity.metric_prc import prc_features_to_metric

    file = tmp_path / write("vgg16", tmp_path)["vgg16"]
    rng = np.random.default_rng(2)
    coarse = [rng.integers(*ends, (16, 7, 7, 3), dtype=np.uint8) for ends in ((0, 156), (100, 256))]
    sides = [pictures_.repeat(32, 1).repeat(32, 2) for pictures_ in coarse]
    theirs = torch_fidelitys(file, monkeypatch)
    spec = {"vgg16": read_json(manifest(tmp_path, "vgg16", file))}
    columns, expected = [], []
    for pictures_ in sides:
        columns.append(judges.measure_pictures(lambda own=pictures_: own, None, spec, "lantern"))
        with torch.inference_mode():
            expected.append(theirs(torch.from_numpy(pictures_).permute(0, 3, 1, 2))[0])
        assert np.abs(columns[-1]["vgg16"] - expected[-1].numpy()).max() < 1e-5 * expected[-1].abs().max()
    assert judges.measure_pictures(lambda: sides[0], None, spec, "clean") == {}, "no other protocol takes it"
    said = prc_features_to_metric(*expected, prc_neighborhood=3, prc_batch_size=10, save_cpu_ram=False, verbose=False)
    other = {"features": rng.normal(size=(16, 5))}
    sample = SimpleNamespace(
        outputs=columns[0] | other,
        reference_outputs=columns[1] | other,
        groups=np.arange(16),
        protocol="lantern",
        spec={},
    )
    found = columns_of(manifold.measure(sample))
    assert {name: found[name] for name in ("precision", "recall")} == {n: said[n] for n in ("precision", "recall")}
    assert 0 < found["precision"] < 1
    assert 0 < found["recall"] < 1
    sample.protocol = "torchfid50k"
    assert columns_of(manifold.measure(sample))["precision"] == 1.0


def test_a_protocol_is_frozen():
    """An edit of a recipe is another recipe: results that name it by digest must not change their meaning."""
    assert {name: digest(recipe) for name, recipe in protocols.PROTOCOLS.items()} == {
        "clean": "57d30ab8", "sjd": "04de33dc", "lantern": "20210d35", "torchfid50k": "fd913341",
    }  # fmt: skip
    assert protocols.name_with_digest("sjd").split()[1] == digest(protocols.PROTOCOLS["sjd"])
    with pytest.raises(ParityError, match="protocol = 'sdj': unknown; allowed: clean, sjd"):
        protocols.recipe("sdj")


# --- files that are not what they should be


def test_a_network_is_verified_and_fits(stand_in, tmp_path):
    with pytest.raises(ParityError, match=r"networks.clip.file = .*SHA-256"):
        spec = {"file": str(stand_in / "clip"), "sha256": "0" * 64}
        fetch.make_manifest("networks", "clip", spec, tmp_path)
    with pytest.raises(ParityError, match=r"networks.clip = .*does not fit ViT-B-32"):
        published.load_open_clip(stand_in / "clip/open_clip_model.safetensors", "ViT-B-32", "networks.clip")
    with pytest.raises(ParityError, match=r"networks.clip = .*half: holds no"):
        shutil.copytree(stand_in / "clip", tmp_path / "half", ignore=lambda *_: ["open_clip_model.safetensors"])
        published.load_open_clip(tmp_path / "half", "", "networks.clip")
    with pytest.raises(ParityError, match=r"networks.pickscore = .*allowed: a folder of transformers' CLIPModel"):
        published.load_pickscore(stand_in / "clip", "networks.pickscore")
    shutil.copytree(stand_in / "clip", tmp_path / "two")
    shutil.copy(tmp_path / "two/open_clip_model.safetensors", tmp_path / "two/model.safetensors")
    with pytest.raises(ParityError, match=r"networks.clip = .*: model.safetensors holds tensors that open_clip_m"):
        published.load_open_clip(tmp_path / "two", "", "networks.clip")
    (tmp_path / "x.pth").write_bytes(pickle.dumps(print))
    with pytest.raises(ParityError, match="not a checkpoint that can be read safely"):
        published.load_inception(tmp_path / "x.pth")
    torch.save({"fc.weight": torch.zeros(3)}, tmp_path / "y.pth")
    for load in (published.load_inception, published.load_vgg16):
        with pytest.raises(ParityError, match="not the file of this network") as error:
            load(tmp_path / "y.pth")
        assert "\n" not in str(error.value)


def test_references_are_a_folder_or_an_npz(tmp_path, pixels):
    for k, picture in enumerate(pixels):
        Image.fromarray(picture).save(tmp_path / f"{k}.{['png', 'jpg', 'webp', 'bmp', 'tiff', 'png'][k]}")
    (tmp_path / "note.txt").write_text("no picture")
    n, found = pictures.read_pictures(tmp_path)
    kept = list(found)
    assert n == len(kept) == 6
    assert np.array_equal(kept[0], pixels[0])
    assert kept[1].shape == pixels[1].shape
    np.savez(tmp_path / "p.npz", arr_0=pixels, mu=np.zeros(5), sigma=np.eye(5))
    n, found = pictures.read_pictures(tmp_path / "p.npz", 4)
    assert n == 4
    assert np.array_equal(np.stack(list(found)), pixels[:4])
    assert pictures.read_statistics(tmp_path / "p.npz")["sigma"].shape == (5, 5)
    said = pictures.measure_reference(tmp_path / "p.npz", {}, "clean")
    assert set(said) == {"mu", "sigma", "why"}
    assert set(pictures.measure_reference(None, {}, "clean")) == {"why"}


# --- a cell of a published model, through the commands


def cell(tmp_path, pixels):
    """Files of a cell whose model has no network of its own."""
    n = len(pixels)
    ids = np.array([f"{i:05d}/000" for i in range(n)])
    columns = {
        "ids": ids, "captions": np.array(CAPTIONS[:n]), "tokens": np.zeros((n, 4), np.int32), "batch": np.full(n, n),
        "at_once": np.full(n, n),
        "step": np.tile(np.arange(1, 5, dtype=np.int16), (n, 1)), "seconds": np.ones(n), "network_seconds": np.ones(n),
        "plain_seconds": np.ones(n), "single_seconds": np.ones(n), "plain_single_seconds": np.ones(n),
        "single_pass_cost": np.ones(n), "load": np.ones(n), "draft_calls": np.zeros(n), "draft_tokens": np.zeros(n),
        "passes": np.full(n, 4), "nfe": np.full(n, 4), "nodes": np.full(n, 4), "kept": np.ones((n, 4), np.int16),
    }  # fmt: skip
    folder = tmp_path / "xl/ar-00000000"
    write_json(folder / "spec.json", {"model": "xl", "method": "ar", "seed": 0, "options": {}, "prompts": "0"})
    write_shard(folder / "shards.npz", columns, {})
    write_arrays(folder / "pictures.npz", ids=ids, pixels=pixels)
    write_json(folder / "manifest.json", {"source": "files", "family": "llamagen", "files": {}, "network": {}})
    return folder


def measured(folder, networks=(), reference=None, protocol="clean"):
    files = {"shards": [folder / "shards.npz"], "pictures": [folder / "pictures.npz"], "networks": networks}
    files |= {"checkpoint": folder / "manifest.json", "reference": reference}
    measure("discrete", folder, protocol=protocol, **files)
    return read_json(folder / "metrics.json")


def test_a_metric_without_its_network_says_so(tmp_path, pixels):
    found = measured(cell(tmp_path, pixels))
    wanted = {"clip_score": "clip", "fid": "inception", "kid": "inception", "is": "inception", "recall": "inception"}
    wanted |= {"cmmd": "clip_vision", "hps": "hps", "pickscore": "pickscore"}
    for name, network in wanted.items():
        assert found[f"{name}_why"] == f"no network: networks.{network}"
        assert name not in found
    assert found["protocol"] == protocols.name_with_digest("clean")
    assert set(judges.NEEDS.values()) == {*wanted.values(), "vgg16"}
    found = measured(cell(tmp_path, pixels), protocol="lantern")
    assert found["recall_why"] == "no network: networks.vgg16"
    assert found["fid_why"] == "no network: networks.inception"


def test_a_cell_is_measured_by_the_declared_networks(stand_in, tmp_path, pixels):
    networks = [manifest(tmp_path, name, stand_in / "clip") for name in ("clip", "clip_vision", "hps")]
    folder = cell(tmp_path, pixels)
    found = measured(folder, networks)
    own = open_clips_own(stand_in / "clip", pixels, CAPTIONS)
    assert found["clip_score"] == pytest.approx(own.mean(), abs=1e-6)
    assert found["clip_cut"] == 1
    assert found["hps"] != found["clip_score"]
    assert "cmmd" not in found
    assert found["cmmd_why"] == "no reference: image.reference"
    assert np.allclose(read_arrays(folder / "features.npz")["cosine"], own, atol=1e-6)
    (tmp_path / "real").mkdir()
    for k, picture in enumerate(pixels):
        Image.fromarray(picture // 2).save(tmp_path / f"real/{k}.png")
    out = tmp_path / "real.npz"
    pictures.look(
        argparse.Namespace(
            networks=networks, protocol="clean", reference=tmp_path / "real", count=0, device="cpu", out=out
        )
    )
    found = measured(folder, networks, out)
    assert found["cmmd"] > 0
    assert found["fid_why"] == "no network: networks.inception"


def test_statistics_alone_give_fid_and_nothing_else():
    rng = np.random.default_rng(0)
    own, real = rng.normal(size=(40, 6)), rng.normal(0.5, 1, (300, 6))
    held = {"mu": real.mean(0), "sigma": np.cov(real, rowvar=False), "why": "stats.npz holds statistics alone"}
    sample = SimpleNamespace(
        outputs={"features": own},
        reference_outputs=held,
        groups=np.arange(40),
        fewest=2,
        protocol="clean",
        spec={"prompts": "0"},
    )
    assert columns_of(fid.measure(sample))["fid"] == pytest.approx(fid.frechet(own, fid.reference_half(real)), rel=1e-9)
    for metric, name in ((manifold, "kid"), (manifold, "recall")):
        assert columns_of(metric.measure(sample))[f"{name}_why"] == "no reference: stats.npz holds statistics alone"
    sample.reference_outputs = {"mu": np.zeros(5), "sigma": np.eye(5)}
    with pytest.raises(ParityError, match=r"mu \(5,\); allowed: \(6,\)"):
        columns_of(fid.measure(sample))
