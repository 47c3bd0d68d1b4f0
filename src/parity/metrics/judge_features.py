"""What the networks that a configuration declares (`networks:`) see in pictures of published models.

Which network a column is of stands in `metrics.missing_reasons`; a network that is not declared leaves its columns
out, and a metric then says in its own place what is missing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from parity.base.files import read_json
from parity.metrics.protocols import recipe

OF_CAPTIONS = ("clip", "hps", "pickscore")  # networks that read captions too
Pictures = Callable[[], Iterable[np.ndarray]]  # uint8 [H, W, 3] one after the other, from the first anew at each call


def declared(manifests: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Manifests of networks by their names."""
    return {said["family"]: said for said in map(read_json, manifests)}


def squeezed(pictures: Iterable[np.ndarray], side: int) -> Iterable[np.ndarray]:
    """Pictures at a side given by bilinear interpolation without antialiasing, rounded; 0 leaves them."""
    for picture in pictures:
        if side:
            x = torch.from_numpy(picture.transpose(2, 0, 1).copy())[None]
            small = F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)[0]
            picture = small.permute(1, 2, 0).numpy()
        yield picture


def contrastive(name: str, said: Mapping[str, Any], protocol: str, device: str) -> Any:
    """The network of pictures and captions that a manifest names."""
    from parity.metrics.networks import contrastive as networks

    file = Path(said["files"]["weights"])
    if name == "pickscore":
        return networks.pickscore_of(file, "networks.pickscore", device)
    usual = {"clip": recipe(protocol)["clip"], "hps": "ViT-H-14"}.get(name, "ViT-L-14-336-quickgelu")
    architecture = said["network"].get("architecture") or usual or "ViT-L-14-quickgelu"
    return networks.open_clip_of(file, architecture, f"networks.{name}", device, whole=name == "hps")


def looked_at(
    pictures: Pictures, captions: Sequence[str] | None, networks: Mapping[str, Any], protocol: str, device: str = "cpu"
) -> dict[str, np.ndarray]:
    """The columns of `absent.NEEDS` that the declared networks give, a row a picture; captions None leaves out what
    reads them. `cut` is how many captions CLIP cuts."""
    found: dict[str, np.ndarray] = {}
    how = recipe(protocol) if networks else {}
    for name, said in networks.items():
        if name == "inception":
            from parity.metrics.networks import inception

            net = inception.load(Path(said["files"]["weights"]), device)
            found |= inception.read(net, pictures(), how)
        elif name == "vgg16":
            if how.get("manifold") == name:
                from parity.metrics.networks import vgg16

                found[name] = vgg16.read(vgg16.load(Path(said["files"]["weights"]), device), pictures())
        elif name == "clip_vision":
            found["cmmd"] = contrastive(name, said, protocol, device).pictures(pictures()).numpy()
        elif captions is not None:
            both = contrastive(name, said, protocol, device)
            prefix, side = (how["prefix"], how["squeeze"]) if name == "clip" else ("", 0)
            texts = [prefix + caption for caption in captions]
            cosine = both.cosine(squeezed(pictures(), side), texts)
            if name == "clip":
                found |= {"cosine": cosine, "cut": np.array(both.cut(texts))}
            else:
                found[name] = cosine * float(both.net.logit_scale.detach().exp()) if name == "pickscore" else cosine
    return found
