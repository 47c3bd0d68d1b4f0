"""How images of published models are measured: frozen recipes, by the name that a configuration gives as `protocol`.

Figures of two papers compare only under the same recipe. A recipe is never edited: a change is another entry. Its
digest stands in the results and under each table. A recipe has

    crop     images of both sides are cropped at the centre to a square and reduced to this side (Lanczos); 0 leaves
             them as they are
    resize   then to the 299 pixels that Inception reads: "clean" (PIL, bicubic, antialiased, not rounded: clean-fid),
             "legacy_pytorch" (bilinear without antialiasing: pytorch-fid) or "tensorflow" (that of TensorFlow 1:
             torch-fidelity, and ADM's evaluation)
    centre   pixels become (x - centre) / centre: 128 as in the TensorFlow graph, 127.5 in pytorch-fid
    clip     open_clip's name of the paper's network of CLIP-score; "" for any
    squeeze  images are squeezed to this side (bilinear, rounded) before CLIP's own preparation; 0 leaves them
    prefix   before each caption
    manifold the network of whose features precision and recall are taken; by default Inception
    images   how many images the paper generated; fewer are measured, and do not compare

JUDGES lists the networks of a recipe, and NETWORKS where each is published: an experiment that names a recipe has them
without a word of its own (`config_overlay.add_networks`). A repository's commit is pinned as that of a checkpoint; an
address comes with its digest, whose first eight digits its authors put into the file's name.

Sources: SJD's evaluation_metrics.py (pytorch-fid at native sizes; torchmetrics' CLIPScore and Inception Score of
images squeezed to 299); LANTERN (which VVS builds on); MAR's fork of torch-fidelity with ADM's statistics. CLIP
cosines are not scaled. Precision and recall are of Inception's features (ADM's evaluation), LANTERN's of VGG16's (its
eval_prec_recall.py)."""

from typing import Any

from parity.base.errors import ConfigError
from parity.base.files import digest

PROTOCOLS: dict[str, dict[str, Any]] = {
    "clean": {
        "crop": 0, "resize": "clean", "centre": 128, "clip": "", "squeeze": 0, "prefix": "", "images": 0,
    },
    "sjd": {
        "crop": 0, "resize": "legacy_pytorch", "centre": 127.5, "clip": "ViT-B-16-quickgelu", "squeeze": 299,
        "prefix": "", "images": 5000,
    },
    "lantern": {
        "crop": 256, "resize": "clean", "centre": 128, "clip": "ViT-B-32-quickgelu", "squeeze": 0,
        "prefix": "A photo depicts ", "images": 5000, "manifold": "vgg16",
    },
    "torchfid50k": {
        "crop": 0, "resize": "tensorflow", "centre": 128, "clip": "", "squeeze": 0, "prefix": "", "images": 50_000,
    },
}  # fmt: skip
JUDGES: dict[str, tuple[str, ...]] = {  # by recipe; "clip" is the network that the recipe names
    "clean": (),
    "sjd": ("clip", "hps", "inception"),
    "lantern": ("clip", "hps", "inception", "vgg16"),
    "torchfid50k": ("inception",),
}
NETWORKS: dict[str, dict[str, str]] = {
    "ViT-B-16-quickgelu": {
        "repo": "timm/vit_base_patch16_clip_224.openai",
        "file": "open_clip_model.safetensors",
    },
    "ViT-B-32-quickgelu": {
        "repo": "timm/vit_base_patch32_clip_224.openai",
        "file": "open_clip_model.safetensors",
    },
    "hps": {"repo": "xswu/HPSv2", "file": "HPS_v2.1_compressed.pt"},
    "inception": {
        "file": "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/"
        "pt_inception-2015-12-05-6726825d.pth",
        "sha256": "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2",
    },
    "vgg16": {
        "file": "https://download.pytorch.org/models/vgg16-397923af.pth",
        "sha256": "397923af8e79cdbb6a7127f12361acd7a2f83e06b05044ddf496e83de57a5bf0",
    },
}


def recipe(name: str) -> dict[str, Any]:
    """Find a recipe by its name. Raises ConfigError for an unknown one."""
    if name not in PROTOCOLS:
        raise ConfigError(f"protocol = {name!r}: unknown; allowed: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def name_with_digest(name: str) -> str:
    """Join a recipe's name and digest, as tables show them."""
    return f"{name} {digest(recipe(name))}"
