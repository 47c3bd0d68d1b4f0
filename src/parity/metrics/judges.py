"""What the networks that a configuration declares (`networks:`) measure in images of published models."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from parity.base.digests import read_manifest
from parity.metrics.estimates import Estimate
from parity.metrics.networks import published
from parity.metrics.protocols import recipe

OF_CAPTIONS = ("clip", "hps", "pickscore")  # these networks read captions beside images
NEEDS = {  # for each column the network that gives it; a column holds a row an image, [n, ...]
    "features": "inception",  # Inception's features, [n, 2048]
    "logits": "inception",  # Inception's logits, [n, 1008]
    "vgg16": "vgg16",  # VGG16's features [n, 4096], if the protocol takes precision and recall of them
    "cosine": "clip",  # CLIP's cosine of each image with its caption, [n]
    "cmmd": "clip_vision",  # features of unit length for CMMD, [n, d]
    "hps": "hps",  # HPSv2's score of each image, [n]
    "pickscore": "pickscore",  # PickScore's score of each image, [n]
}
Images = Callable[[], Iterable[np.ndarray]]  # each call yields all images, uint8 [H, W, 3], from the first


def read_manifests(manifests: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Read manifest files of networks, as a dict by the network's name."""
    return {manifest["family"]: manifest for manifest in map(read_manifest, manifests)}


def squeeze(images: Iterable[np.ndarray], side: int) -> Iterable[np.ndarray]:
    """Yield images as `side` x `side` by bilinear interpolation without antialiasing, rounded; side 0 leaves them."""
    for image in images:
        if side:
            x = torch.from_numpy(image.transpose(2, 0, 1).copy())[None]
            small = F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)[0]
            image = small.permute(1, 2, 0).numpy()
        yield image


def load_contrastive(name: str, manifest: Mapping[str, Any], protocol: str, device: str) -> published.Contrastive:
    """Load the network of images and captions that a manifest declares under `name`; without an architecture of its
    own, the protocol's or the network's usual one."""
    file = Path(manifest["files"]["weights"])
    if name == "pickscore":
        return published.load_pickscore(file, "networks.pickscore", device)
    usual = {"clip": recipe(protocol)["clip"], "hps": "ViT-H-14"}.get(name, "ViT-L-14-336-quickgelu")
    architecture = manifest["network"].get("architecture") or usual or "ViT-L-14-quickgelu"
    return published.load_open_clip(file, architecture, f"networks.{name}", device, whole=name == "hps")


def measure_images(
    images: Images, captions: Sequence[str] | None, networks: Mapping[str, Any], protocol: str, device: str = "cpu"
) -> dict[str, np.ndarray]:
    """Measure the columns of `NEEDS` that the declared networks give, a row an image; without captions, not those that
    need them. networks: manifests by name. `cut`: how many captions CLIP cut."""
    columns: dict[str, np.ndarray] = {}
    protocol_recipe = recipe(protocol) if networks else {}
    for name, manifest in networks.items():
        weights = Path(manifest["files"]["weights"])
        if name == "inception":
            columns |= published.read_inception(published.load_inception(weights, device), images(), protocol_recipe)
        elif name == "vgg16":
            if protocol_recipe.get("manifold") == name:
                columns[name] = published.read_vgg16(published.load_vgg16(weights, device), images())
        elif name == "clip_vision":
            columns["cmmd"] = load_contrastive(name, manifest, protocol, device).images(images()).numpy()
        elif captions is not None:
            network = load_contrastive(name, manifest, protocol, device)
            prefix, side = (protocol_recipe["prefix"], protocol_recipe["squeeze"]) if name == "clip" else ("", 0)
            texts = [prefix + caption for caption in captions]
            cosine = network.cosine(squeeze(images(), side), texts)
            if name == "clip":
                columns |= {"cosine": cosine, "cut": np.array(network.count_cut(texts))}
            else:
                scale = float(network.net.logit_scale.detach().exp()) if name == "pickscore" else 1
                columns[name] = cosine * scale
    return columns


def are_numbers(captions: Iterable[Any]) -> bool:
    """Return whether all captions are numbers, as those of a model of classes are: no text to compare an image with."""
    return all(str(caption).isdecimal() for caption in captions)


def explain_few(images: int, reference: int, needed: int) -> str:
    """Explain that there are fewer images or reference images than needed for a figure; "" if there are enough."""
    for count, noun in ((images, "images"), (reference, "reference images")):
        if count < needed:
            return f"too few {noun}: {needed} or more are needed"
    return ""


def explain_absent(sample: Any, column: str, figures: Iterable[str]) -> dict[str, Estimate]:
    """Give each of `figures` of a published model the reason why it is missing: prompts that are no captions, a network
    for `column` that is not declared, or nothing to compare with. {} for embedded models, which have networks of their
    own."""
    if not sample.protocol:
        return {}
    section = "image" if sample.spec.get("prompts") else "continuous"
    reason = "no reference: " + str(sample.reference_outputs.get("why", f"{section}.reference"))
    if NEEDS[column] in OF_CAPTIONS and are_numbers(sample.shard.captions):
        reason = "no captions: the prompts are numbers of classes"
    elif column not in sample.outputs:
        reason = f"no network: networks.{NEEDS[column]}"
    return {name: Estimate(why=reason) for name in figures}
