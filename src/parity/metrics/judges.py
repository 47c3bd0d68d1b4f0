"""What the networks that a configuration declares (`networks:`) measure in pictures of published models.

NEEDS names the network of each column. Without its network a column is missing, and the metric says which network is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from parity.base.files import read_json
from parity.metrics.estimates import Estimate
from parity.metrics.protocols import recipe

OF_CAPTIONS = ("clip", "hps", "pickscore")  # networks that read captions too
Pictures = Callable[[], Iterable[np.ndarray]]  # uint8 [H, W, 3] one after the other, from the first anew at each call


def declared(manifests: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Manifests of networks by their names."""
    return {manifest["family"]: manifest for manifest in map(read_json, manifests)}


def squeezed(pictures: Iterable[np.ndarray], side: int) -> Iterable[np.ndarray]:
    """Pictures at a side given by bilinear interpolation without antialiasing, rounded; 0 leaves them."""
    for picture in pictures:
        if side:
            x = torch.from_numpy(picture.transpose(2, 0, 1).copy())[None]
            small = F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)[0]
            picture = small.permute(1, 2, 0).numpy()
        yield picture


def contrastive(name: str, manifest: Mapping[str, Any], protocol: str, device: str) -> Any:
    """The network of pictures and captions that a manifest names."""
    from parity.metrics.networks import contrastive as networks

    file = Path(manifest["files"]["weights"])
    if name == "pickscore":
        return networks.pickscore_of(file, "networks.pickscore", device)
    usual = {"clip": recipe(protocol)["clip"], "hps": "ViT-H-14"}.get(name, "ViT-L-14-336-quickgelu")
    architecture = manifest["network"].get("architecture") or usual or "ViT-L-14-quickgelu"
    return networks.open_clip_of(file, architecture, f"networks.{name}", device, whole=name == "hps")


def looked_at(
    pictures: Pictures, captions: Sequence[str] | None, networks: Mapping[str, Any], protocol: str, device: str = "cpu"
) -> dict[str, np.ndarray]:
    """The columns of `NEEDS` that the declared networks give, a row a picture; captions None leaves out what
    reads them. `cut` is how many captions CLIP cuts."""
    seen: dict[str, np.ndarray] = {}
    how = recipe(protocol) if networks else {}
    for name, manifest in networks.items():
        if name == "inception":
            from parity.metrics.networks import inception

            net = inception.load(Path(manifest["files"]["weights"]), device)
            seen |= inception.read(net, pictures(), how)
        elif name == "vgg16":
            if how.get("manifold") == name:
                from parity.metrics.networks import vgg16

                seen[name] = vgg16.read(vgg16.load(Path(manifest["files"]["weights"]), device), pictures())
        elif name == "clip_vision":
            seen["cmmd"] = contrastive(name, manifest, protocol, device).pictures(pictures()).numpy()
        elif captions is not None:
            both = contrastive(name, manifest, protocol, device)
            prefix, side = (how["prefix"], how["squeeze"]) if name == "clip" else ("", 0)
            texts = [prefix + caption for caption in captions]
            cosine = both.cosine(squeezed(pictures(), side), texts)
            if name == "clip":
                seen |= {"cosine": cosine, "cut": np.array(both.cut(texts))}
            else:
                seen[name] = cosine * float(both.net.logit_scale.detach().exp()) if name == "pickscore" else cosine
    return seen


NEEDS = {  # columns of `metrics.judges`, by the network that gives them
    "features": "inception",  # [n, 2048]
    "logits": "inception",  # [n, 1008]
    "vgg16": "vgg16",  # [n, 4096], under protocols whose precision and recall are of them
    "cosine": "clip",  # [n] of a picture with its caption
    "cmmd": "clip_vision",  # [n, d] of unit length
    "hps": "hps",  # [n]
    "pickscore": "pickscore",  # [n]
}


def absent(sample: Any, column: str, figures: Iterable[str]) -> dict[str, Estimate]:
    """Figures of a published model that cannot be taken, each with the reason: the network that is not declared, or
    what there is nothing to compare with. Embedded models have networks of their own, and need no word."""
    if not sample.protocol:
        return {}
    section = "image" if sample.spec.get("prompts") else "continuous"
    why = "no reference: " + str(sample.compared.get("why", f"{section}.reference"))
    if column not in sample.seen:
        why = f"no network: networks.{NEEDS[column]}"
    return {name: Estimate(why=why) for name in figures}
