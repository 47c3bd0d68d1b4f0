"""Published networks that a configuration declares give what their libraries give, under each protocol; references;
and the reasons shown where a network is missing."""

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
from parity.metrics import fid, images, judges, manifold, protocols
from parity.metrics.estimates import columns_of
from parity.metrics.networks import published
from parity.models import fetch
from parity.stand_ins import metrics as stand_ins
from parity.stand_ins import write
from tests.tables import make_shard_columns

CAPTIONS = ["a red circle", "A photo of TWO cats & a dog", "blue", "a cat sat on the mat " * 30, "blue", "a small ring"]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A folder with a small random CLIP and PickScore in their published formats."""
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


def write_manifest(tmp_path, name, file, **fields):
    """Write the manifest of a network's file, with further fields of its entry, to NAME.json and return that file."""
    spec = {"file": str(file), "sha256": sha256(file), **fields}
    write_json(tmp_path / f"{name}.json", fetch.make_manifest("networks", name, spec, tmp_path / name))
    return tmp_path / f"{name}.json"


def compute_open_clip_cosines(folder, pixels, captions):
    """Compute the cosines of images and captions by open_clip's forward, preparation and tokenizer."""
    import open_clip

    net, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{folder}", require_pretrained=True)
    words = open_clip.get_tokenizer(f"local-dir:{folder}")
    with torch.inference_mode():
        x = torch.stack([prepare(Image.fromarray(p)) for p in pixels])
        a, b, _ = net.eval()(x, words(captions))
    return (a * b).sum(-1).numpy()


def test_clip_score_equals_open_clips_under_each_protocol(stand_in, pixels, tmp_path):
    """LANTERN's protocol adds a prefix to captions, SJD's resizes images to a square."""
    networks = judges.read_manifests([write_manifest(tmp_path, "clip", stand_in / "clip")])
    columns = judges.measure_images(lambda: pixels, CAPTIONS, networks, "clean")
    assert np.abs(columns["cosine"] - compute_open_clip_cosines(stand_in / "clip", pixels, CAPTIONS)).max() < 1e-6
    assert columns["cut"] == 1
    assert set(columns) == {"cosine", "cut"}
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    squeezed = F.interpolate(x, size=(299, 299), mode="bilinear", align_corners=False).permute(0, 2, 3, 1).numpy()
    expected_cosines = {
        "lantern": compute_open_clip_cosines(stand_in / "clip", pixels, [f"A photo depicts {c}" for c in CAPTIONS]),
        "sjd": compute_open_clip_cosines(stand_in / "clip", squeezed, CAPTIONS),
    }
    for protocol, expected in expected_cosines.items():
        cosines = judges.measure_images(lambda: pixels, CAPTIONS, networks, protocol)["cosine"]
        assert np.abs(cosines - expected).max() < 1e-6
    assert np.abs(expected_cosines["lantern"] - expected_cosines["sjd"]).max() > 1e-3


def test_pickscore_equals_transformers(stand_in, pixels, tmp_path):
    from transformers import CLIPModel

    networks = judges.read_manifests([write_manifest(tmp_path, "pickscore", stand_in / "pickscore")])
    pickscore = judges.measure_images(lambda: pixels, CAPTIONS, networks, "clean")["pickscore"]
    net = CLIPModel.from_pretrained(stand_in / "pickscore").eval()
    ours = published.load_pickscore(stand_in / "pickscore", "networks.pickscore")
    with torch.inference_mode():
        x = torch.stack([ours.prepare(Image.fromarray(p)) for p in pixels])
        logits = net(input_ids=ours.tokenizer(CAPTIONS), pixel_values=x).logits_per_image
    assert np.abs(pickscore - logits.diagonal().numpy()).max() < 1e-4


def test_cmmd_is_the_mean_kernel_over_all_pairs(stand_in, pixels, tmp_path):
    networks = judges.read_manifests([write_manifest(tmp_path, "clip_vision", stand_in / "clip")])
    x = judges.measure_images(lambda: pixels, None, networks, "clean")["cmmd"].astype(float)
    y = judges.measure_images(lambda: pixels[:3] // 2, None, networks, "clean")["cmmd"].astype(float)
    assert np.allclose((x**2).sum(1), 1)

    def kernel(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 200).mean()

    def cmmd(generated, real):
        outputs = {"outputs": {"cmmd": generated}, "reference_outputs": {"cmmd": real}}
        sample = SimpleNamespace(**outputs, groups=np.arange(len(generated)))
        return fid.measure_cmmd(sample)["cmmd"].value

    assert cmmd(x, y) == pytest.approx(1000 * (kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)), rel=1e-9)
    assert abs(cmmd(x, x)) < 1e-9 < cmmd(x, y)


@pytest.mark.long
def test_inception_equals_torch_fidelitys_and_clean_fids(tmp_path, monkeypatch):
    """Each protocol's features and figures equal those of the library that its paper ran, on random weights."""
    import torch_fidelity
    from cleanfid import fid as clean
    from cleanfid import inception_pytorch
    from cleanfid.features import build_feature_extractor

    file = tmp_path / write("inception", tmp_path)["inception"]
    rng = np.random.default_rng(0)
    sides = {"a": [], "b": []}
    for side, side_images in sides.items():
        (tmp_path / side).mkdir()
        for k in range(3):
            image = rng.integers(0, 256, (12, 9, 3), dtype=np.uint8).repeat(25, 0).repeat(30, 1)
            Image.fromarray(image).save(tmp_path / side / f"{k}.png")
            side_images.append(image)
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
    figure = fid.frechet(ours["features"], fid.reference_half(real["features"]))
    assert figure == pytest.approx(theirs["frechet_inception_distance"], rel=1e-4)
    figure = fid.inception_score(torch.from_numpy(ours["logits"]), 1)[0]
    assert figure == pytest.approx(theirs["inception_score_mean"], rel=1e-6)

    state = torch.load(file, weights_only=True)
    monkeypatch.setattr(inception_pytorch, "load_state_dict_from_url", lambda *a, **k: state)
    names = [str(tmp_path / "a" / f"{k}.png") for k in range(3)]
    device = {"device": torch.device("cpu"), "num_workers": 0, "verbose": False}
    extractor = build_feature_extractor("legacy_pytorch", torch.device("cpu"), use_dataparallel=False)
    expected = clean.get_files_features(names, extractor, mode="legacy_pytorch", **device)
    sjd = published.read_inception(net, iter(a), protocols.recipe("sjd"))["features"]
    assert np.abs(sjd - expected).max() < 1e-4 * np.abs(expected).max()

    def layers(x):
        """Compute features of images of 0 to 255 by the stand-in, in place of clean-fid's downloading wrapper."""
        return torch.from_numpy(run_layers(net, (x - 128) / 128))

    expected = clean.get_files_features(names, layers, mode="clean", **device)
    ours = published.read_inception(net, iter(a), protocols.recipe("clean"))["features"]
    assert np.abs(ours - expected).max() < 1e-5 * np.abs(expected).max()
    assert np.abs(ours - sjd).max() > 1e-2 * np.abs(expected).max()  # another way of resizing gives other numbers


def run_layers(net, x):
    """Run all layers of a network but the last; return numbers [n, features]."""
    with torch.inference_mode():
        for layer in list(net.children())[:-1]:
            x = layer(x)
        return x.flatten(1).numpy()


def test_lantern_crops_the_middle_square(pixels):
    square = np.asarray(Image.fromarray(pixels[0][:, 8:48]).resize((256, 256), Image.Resampling.LANCZOS))
    assert np.array_equal(published.crop(pixels[0], 256), square)
    assert np.array_equal(published.crop(pixels[0], 0), pixels[0])


def make_torch_fidelity_extractor(file, monkeypatch):
    """Make torch-fidelity's extractor of the layer before VGG's ReLU, in the stand-in's width; patches torchvision."""
    import torchvision
    from torch_fidelity.feature_extractor_vgg16 import FeatureExtractorVGG16
    from torchvision.models.vgg import VGG, make_layers

    def small():
        with torch.device("meta"):
            net = VGG(make_layers([]), init_weights=False)
        width, linear, relu, drop = stand_ins.VGG_WIDTH, torch.nn.Linear, torch.nn.ReLU(), torch.nn.Dropout()
        net.features = make_layers(["M" if layer == "M" else width for layer in torchvision.models.vgg.cfgs["D"]])
        first = [linear(width * 49, width), relu, drop, linear(width, width)]
        net.classifier = torch.nn.Sequential(*first, relu, drop, linear(width, stand_ins.VGG_CLASSES))
        return net

    monkeypatch.setattr(torchvision.models, "vgg16", small)
    return FeatureExtractorVGG16("vgg16", ["fc2"], feature_extractor_weights_path=str(file))


def test_lanterns_precision_and_recall_use_vgg16(tmp_path, monkeypatch):
    """Features and shares equal torch-fidelity's; Inception's features under the same protocol would give others."""
    from torch_fidelity.metric_prc import prc_features_to_metric

    file = tmp_path / write("vgg16", tmp_path)["vgg16"]
    rng = np.random.default_rng(2)
    coarse = [rng.integers(*ends, (16, 7, 7, 3), dtype=np.uint8) for ends in ((0, 156), (100, 256))]
    sides = [side.repeat(32, 1).repeat(32, 2) for side in coarse]
    theirs = make_torch_fidelity_extractor(file, monkeypatch)
    spec = {"vgg16": read_json(write_manifest(tmp_path, "vgg16", file))}
    columns, expected = [], []
    for side in sides:
        columns.append(judges.measure_images(lambda side=side: side, None, spec, "lantern"))
        with torch.inference_mode():
            expected.append(theirs(torch.from_numpy(side).permute(0, 3, 1, 2))[0])
        assert np.abs(columns[-1]["vgg16"] - expected[-1].numpy()).max() < 1e-5 * expected[-1].abs().max()
    assert judges.measure_images(lambda: sides[0], None, spec, "clean") == {}, "no other protocol uses VGG16"
    prc_settings = {"prc_neighborhood": 3, "prc_batch_size": 10, "save_cpu_ram": False, "verbose": False}
    shares = prc_features_to_metric(*expected, **prc_settings)
    inception = {"features": rng.normal(size=(16, 5))}
    outputs, reference_outputs = (side_columns | inception for side_columns in columns)
    fields = {"groups": np.arange(16), "protocol": "lantern", "spec": {}}
    sample = SimpleNamespace(outputs=outputs, reference_outputs=reference_outputs, **fields)
    figures = columns_of(manifold.measure(sample))
    for name in ("precision", "recall"):
        assert 0 < figures[name] == shares[name] < 1, name
    sample.protocol = "torchfid50k"
    assert columns_of(manifold.measure(sample))["precision"] == 1.0


def test_protocols_are_frozen():
    """Results name a recipe by digest, so its meaning must not change; an edit needs another recipe."""
    assert {name: digest(recipe) for name, recipe in protocols.PROTOCOLS.items()} == {
        "clean": "57d30ab8", "sjd": "04de33dc", "lantern": "20210d35", "torchfid50k": "fd913341",
    }  # fmt: skip
    assert protocols.name_with_digest("sjd").split()[1] == digest(protocols.PROTOCOLS["sjd"])
    with pytest.raises(ParityError, match="protocol = 'sdj': unknown; allowed: clean, sjd"):
        protocols.recipe("sdj")


# --- what is refused in files of networks and references


def test_a_file_of_another_network_is_refused(stand_in, tmp_path):
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
        with pytest.raises(ParityError, match="not the file of this network"):
            load(tmp_path / "y.pth")


# --- a cell of a published model, through the commands


def write_cell(tmp_path, pixels, captions=CAPTIONS):
    """Write a cell whose images are `pixels` and whose model declares no network of its own; return its folder."""
    n = len(pixels)
    ids = np.array([f"{i:05d}/000" for i in range(n)])
    columns = make_shard_columns(n, 4) | {"ids": ids, "captions": np.array(captions[:n])}
    columns |= {"nfe": np.full(n, 4), "nodes": np.full(n, 4), "kept": np.ones((n, 4), np.int16)}
    folder = tmp_path / "xl/ar-00000000"
    write_json(folder / "spec.json", {"model": "xl", "method": "ar", "seed": 0, "options": {}, "prompts": "0"})
    write_shard(folder / "shards.npz", columns, {})
    write_arrays(folder / "images.npz", ids=ids, pixels=pixels)
    write_json(folder / "manifest.json", {"source": "files", "family": "llamagen", "files": {}, "network": {}})
    return folder


def measure_cell(folder, networks=(), reference=None, protocol="clean"):
    """Run `measure` on a cell under a protocol of quality and return its figures."""
    files = {"shards": [folder / "shards.npz"], "image_files": [folder / "images.npz"], "networks": networks}
    files |= {"checkpoint": folder / "manifest.json", "reference": reference}
    measure("discrete", folder, protocol=protocol, **files)
    return read_json(folder / "metrics.json")


def test_a_metric_without_its_network_says_why(tmp_path, pixels):
    figures = measure_cell(write_cell(tmp_path, pixels))
    networks = {"clip_score": "clip", "fid": "inception", "kid": "inception", "is": "inception", "recall": "inception"}
    networks |= {"cmmd": "clip_vision", "hps": "hps", "pickscore": "pickscore"}
    for name, network in networks.items():
        assert figures[f"{name}_why"] == f"no network: networks.{network}"
        assert name not in figures
    assert figures["protocol"] == protocols.name_with_digest("clean")
    assert set(judges.NEEDS.values()) == {*networks.values(), "vgg16"}
    figures = measure_cell(write_cell(tmp_path, pixels), protocol="lantern")
    assert figures["recall_why"] == "no network: networks.vgg16"
    assert figures["fid_why"] == "no network: networks.inception"


@pytest.mark.parametrize(
    ("captions", "are_texts"),
    [
        (["207", "3", "0", "999", "1", "207"], False),
        (["7"] * 6, False),
        (["007", "٣", "12", "0", "1", "2"], False),
        (["207", "a dog", "3", "1", "2", "0"], True),
        (["3 dogs", "1.5", "-1", "route 66", "²", "x"], True),
    ],
)
def test_images_are_not_compared_with_numbers_of_classes(stand_in, tmp_path, pixels, captions, are_texts):
    networks = [write_manifest(tmp_path, name, stand_in / "clip") for name in ("clip", "hps")]
    figures = measure_cell(write_cell(tmp_path, pixels, captions), networks)
    for name in ("clip_score", "hps"):
        assert (name in figures) == are_texts
        assert figures.get(f"{name}_why") == (None if are_texts else "no captions: the prompts are numbers of classes")
    assert ("clip_cut" in figures) == are_texts
    assert figures["pickscore_why"].startswith("no network" if are_texts else "no captions")
    assert figures["fid_why"] == "no network: networks.inception", "which reads no captions"


def test_a_cell_is_measured_by_the_declared_networks(stand_in, tmp_path, pixels):
    networks = [write_manifest(tmp_path, name, stand_in / "clip") for name in ("clip", "clip_vision", "hps")]
    folder = write_cell(tmp_path, pixels)
    figures = measure_cell(folder, networks)
    cosines = compute_open_clip_cosines(stand_in / "clip", pixels, CAPTIONS)
    assert figures["clip_score"] == pytest.approx(cosines.mean(), abs=1e-6)
    assert figures["clip_cut"] == 1
    assert figures["hps"] != figures["clip_score"]
    assert "cmmd" not in figures
    assert figures["cmmd_why"] == "no reference: image.reference"
    assert np.allclose(read_arrays(folder / "features.npz")["cosine"], cosines, atol=1e-6)
    (tmp_path / "real").mkdir()
    for k, image in enumerate(pixels):
        Image.fromarray(image // 2).save(tmp_path / f"real/{k}.png")
    out = tmp_path / "real.npz"
    flags = {"protocol": "clean", "reference": tmp_path / "real", "count": 0, "device": "cpu", "out": out}
    images.write_reference_features(argparse.Namespace(networks=networks, **flags))
    figures = measure_cell(folder, networks, out)
    assert figures["cmmd"] > 0
    assert figures["fid_why"] == "no network: networks.inception"


def test_statistics_alone_give_only_fid():
    rng = np.random.default_rng(0)
    features, real = rng.normal(size=(40, 6)), rng.normal(0.5, 1, (300, 6))
    reference = {"mu": real.mean(0), "sigma": np.cov(real, rowvar=False), "why": "stats.npz holds statistics alone"}
    fields = {"groups": np.arange(40), "fewest": 2, "protocol": "clean", "spec": {"prompts": "0"}}
    sample = SimpleNamespace(outputs={"features": features}, reference_outputs=reference, **fields)
    expected = fid.frechet(features, fid.reference_half(real))
    assert columns_of(fid.measure(sample))["fid"] == pytest.approx(expected, rel=1e-9)
    for metric, name in ((manifold, "kid"), (manifold, "recall")):
        assert columns_of(metric.measure(sample))[f"{name}_why"] == "no reference: stats.npz holds statistics alone"
    sample.reference_outputs = {"mu": np.zeros(5), "sigma": np.eye(5)}
    with pytest.raises(ParityError, match=r"mu \(5,\); allowed: \(6,\)"):
        columns_of(fid.measure(sample))
