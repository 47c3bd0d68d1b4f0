"""The networks of a model and their sizes: from the headers of files on this machine, from a table of released
networks, or assumed. Imports no torch."""

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zipfile import is_zipfile

from parity.base.digests import parts
from parity.base.errors import ParityError
from parity.base.headers import PICKLED, Shape, read_tensor_shapes
from parity.experiment import weights
from parity.experiment.schema import HUB, PINNED, ModelSpec, NetworkSpec

LAYER = re.compile(r"(?:^|[._])(?:layers|layer|blocks?|h)\.(\d+)\.")
# Of an image tokenizer or autoencoder in a file of several networks.
VISION = re.compile(r"(?:^|\.)vqmodel\.|^gen_vision_model\.|^vae\.")
UNUSED = re.compile(r"(?:^|\.)(?:vision_model|aligner)\.|^decoder\.(?:block|final|embed)")  # of networks no job loads
KEYS = (  # tensors whose axis, divided by the last number, has as many numbers as the keys of a position in a layer
    ("attention.wqkv.weight", 0, 3), ("attn.qkv.weight", 0, 3), ("self_attn.k_proj.weight", 0, 1),
    ("SelfAttention.k.weight", 0, 1), ("attn.c_attn.weight", 1, 3), ("rel_attn.k", 0, 1),
)  # fmt: skip
HIDDEN = (  # tensors whose axis has as many numbers as the feed-forward inside
    ("feed_forward.w1.weight", 0), ("mlp.gate_proj.weight", 0), ("mlp.fc1.weight", 0), ("mlp.fc1_g.weight", 0),
    ("ff.layer_1.weight", 0), ("DenseReluDense.wi_0.weight", 0), ("mlp.c_fc.weight", 1),
)  # fmt: skip


class Network(NamedTuple):
    """A network that jobs load. What it does not have is 0."""

    parameters: int
    stored: int  # bytes of its file, or its share of a file of several networks
    layers: int = 0  # with keys and values in a cache
    hidden: int = 0  # numbers inside a feed-forward
    keys: int = 0  # numbers of a position's keys in a layer
    channels: int = 0  # of the pictures that an image tokenizer or autoencoder makes, before its last layer
    stride: int = 0  # pixels of a token a side
    vocab: int = 0  # words of a text model


Networks = dict[str, Network]


def describe_released(parameters: int, width: int, **sizes: int) -> Network:
    """Describe a released network whose file has `width` bytes a number."""
    return Network(parameters, parameters * width, **sizes)


CHAMELEON = {"net": describe_released(7_043_090_432, 2, layers=32, hidden=11008, keys=4096)}
DRAFTER = {"drafter": describe_released(44_567_040, 2, layers=1, hidden=3584, keys=1280)}
XL = {"net": describe_released(777_923_840, 4, layers=36, hidden=3584, keys=1280)}
XLNET = {"xlnet": describe_released(116_750_336, 4, hidden=3072, keys=768, vocab=32000)}
XLNET_LARGE = {"xlnet": describe_released(360_300_800, 4, hidden=4096, keys=1024, vocab=32000)}
GPT2_LARGE = {"judge": describe_released(774_030_080, 4, hidden=5120, keys=1280, vocab=50257)}
# The file holds the encoder, too, of 29,423,616 numbers, which no job loads.
VQGAN = Network(41_457_795, 4 * (41_457_795 + 29_423_616), channels=128, stride=16)
KL16 = {"kl": describe_released(66_456_019, 4, channels=128, stride=16)}
# The networks of papers' tables by repository and path. tests/experiment/test_network_sizes.py counts their parameters
# anew; bytes of files follow from the dtype that their authors name, and the hub tells the true ones.
RELEASED: dict[str, Networks] = {
    "Alpha-VLLM/Lumina-mGPT-7B-512:.": CHAMELEON,
    "Alpha-VLLM/Lumina-mGPT-7B-768:.": CHAMELEON,
    "Alpha-VLLM/Lumina-mGPT-7B-1024:.": CHAMELEON,
    "leloy/Anole-7b-v0.1-hf:.": CHAMELEON,
    "GAIR/Anole-7b-v0.1:tokenizer/vqgan.ckpt": {"vq": VQGAN},
    "peizesun/llamagen_t2i:t2i_XL_stage1_256.pt": XL,
    "peizesun/llamagen_t2i:t2i_XL_stage2_512.pt": XL,
    "peizesun/llamagen_t2i:vq_ds16_t2i.pt": {"vq": describe_released(71_883_403, 4, channels=128, stride=16)},
    "google/flan-t5-xl:.": {
        "text": Network(1_223_527_424, 4 * 2_783_959_040, hidden=5120, keys=2048),  # the decoder is not read
    },
    "jadohu/llamagen_drafter:.": DRAFTER,
    "jadohu/llamagen2_drafter:.": DRAFTER,
    "jadechoghari/mar:mar-base.safetensors": {
        "target": describe_released(207_924_768, 4, hidden=3072, keys=768),
    },
    "jadechoghari/mar:mar-large.safetensors": {
        "target": describe_released(478_326_304, 4, hidden=4096, keys=1024),
    },
    "jadechoghari/mar:mar-huge.safetensors": {
        "target": describe_released(942_403_104, 4, hidden=5120, keys=1280),
    },
    "jadechoghari/mar:kl16.safetensors": KL16,
    "OliverRen/xAR:xAR-B.pth": {"target": describe_released(172_638_224, 4, hidden=2048, keys=768)},
    "OliverRen/xAR:xAR-H.pth": {"target": describe_released(1_186_024_096, 4, hidden=3413, keys=1280)},
    "wusize/harmon:harmon_0.5b.pth": {"target": describe_released(706_712_352, 4, hidden=4864, keys=768)},
    "wusize/harmon:harmon_1.5b.pth": {
        "target": describe_released(2_497_723_168, 4, hidden=8960, keys=1280),
    },
    "wusize/harmon:kl16.ckpt": KL16,
    "therealgabeguo/ASARM:.": XLNET,
    "xlnet/xlnet-base-cased:.": XLNET,
    "xlnet/xlnet-large-cased:.": XLNET_LARGE,
    "openai-community/gpt2-large:.": GPT2_LARGE,
    "timm/vit_base_patch16_clip_224.openai:open_clip_model.safetensors": {"": describe_released(149_620_737, 4)},
    "timm/vit_base_patch32_clip_224.openai:open_clip_model.safetensors": {"": describe_released(151_277_313, 4)},
    "xswu/HPSv2:HPS_v2.1_compressed.pt": {"": describe_released(986_109_441, 4)},
}  # fmt: skip


ASSUMED = CHAMELEON["net"]._replace(vocab=65536)  # for a network of which nothing is known: 7 billion parameters
ASSUMED_PAINTER = KL16["kl"]  # for an image tokenizer or autoencoder of which nothing is known


def name_released(spec: ModelSpec, component: str) -> str:
    """Name a component of a model in a repository as the table does: "owner/name:path", without commit and branch."""
    file = spec.files[component]
    if pinned := PINNED.fullmatch(file):
        return f"{pinned['repo']}:{pinned['path'] or '.'}"
    if file.startswith(HUB):
        repo, _, path = file.removeprefix(HUB).partition(":")
        return f"{repo.partition('@')[0]}:{path or '.'}"
    return f"{spec.repo}:{file}"


@cache
def read_file(path: Path, modified: int) -> tuple[dict[str, Shape], int]:
    """Read the shapes of the tensors of a file or folder, and its bytes. modified: when it was, in nanoseconds."""
    shapes: dict[str, Shape] = {}
    stored = 0
    for file in parts(path):
        shapes |= read_tensor_shapes(file)
        stored += file.stat().st_size
    return shapes, stored


def describe(shapes: Mapping[str, Shape], stored: int) -> Network:
    """Describe the network of tensors with these shapes, whose file has so many bytes."""

    def find_size(table: Iterable[tuple[str, int, int]]) -> int:
        """Find the largest size that the table's tensors tell."""
        sizes = [
            shape[axis] // share for end, axis, share in table for name, shape in shapes.items() if name.endswith(end)
        ]
        return max(sizes, default=0)

    layers = {match[1] for name in shapes if (match := LAYER.search(name)) and "res" not in name}
    output_layer = next((s for n, s in shapes.items() if n.endswith("decoder.conv_out.weight")), None)
    words = ("word_embedding.weight", "wte.weight")
    vocab = max([0, *(shape[0] for name, shape in shapes.items() if name.endswith(words))])
    levels = {m[1] for n in shapes if (m := re.search(r"decoder\.(?:conv_blocks|up|up_block\.up)\.(\d+)\.", n))}
    return Network(
        sum(map(math.prod, shapes.values())),
        stored,
        layers=len(layers) if find_size(KEYS) else 0,
        hidden=find_size([(end, axis, 1) for end, axis in HIDDEN]),
        keys=find_size(KEYS),
        channels=output_layer[1] if output_layer else 0,
        stride=2 ** (len(levels) - 1) if output_layer and levels else 0,
        vocab=vocab,
    )


def read_networks(path: Path, name: str) -> Networks:
    """Read the networks of a file or folder by what jobs call them: `name`, and "vq" or "kl" for an image tokenizer or
    autoencoder that lies in it, too. {} if headers do not say them."""
    try:
        shapes, stored = read_file(path, path.stat().st_mtime_ns)
    except (OSError, ParityError):
        return {}
    loaded = {tensor: shape for tensor, shape in shapes.items() if not UNUSED.search(tensor)}
    vision = {tensor: shape for tensor, shape in loaded.items() if VISION.search(tensor)}
    total = max(1, sum(map(math.prod, shapes.values())))
    share = sum(map(math.prod, vision.values())) / total
    language = {tensor: shape for tensor, shape in loaded.items() if tensor not in vision}
    result = {name: describe(language, round(stored * (1 - share)))} if language else {}
    if vision:
        result["kl" if name in ("target", "draft") else "vq"] = describe(vision, round(stored * share))
    return result


def list_networks(spec: ModelSpec) -> tuple[Networks, list[str]]:
    """List the networks of a model by what jobs call them ("net", "vq", "text", "drafter", "draft"; "target", "draft",
    "kl"; "xlnet", "judge"), and the components whose sizes are assumed because nothing says them."""
    kind = weights.find_kind(spec.family)
    names = {"transformer": "net", "model": "net", "tokenizer": ""}
    if spec.source == "embedded" or spec.folder:
        files = list_local_files(spec)
    else:
        files = {component: Path(file) for component, file in spec.files.items()}
    networks: Networks = {}
    unknown = []
    for component, file in files.items():
        name = names.get(component, component)
        if not name or (kind == "discrete" and name == "clip"):
            continue
        described = read_networks(file, name) if file.exists() else {}
        if not described and component in spec.files and spec.source == "hub":
            described = dict(RELEASED.get(name_released(spec, component), {}))
            if name == "draft" and "target" in described:  # released for a target, too
                described = {"draft": described["target"]}
        if not described:
            unknown.append(component)
            described = {name: ASSUMED_PAINTER if name in ("vq", "kl") else ASSUMED}
        networks = {**described, **networks} if name == "net" else {**networks, **described}
    return networks, unknown


def find_judge(spec: NetworkSpec) -> Network | None:
    """Find the sizes of a network that judges pictures; None if nothing is known of it."""
    if spec.repo:
        return RELEASED.get(f"{spec.repo}:{spec.file}", {}).get("")
    return read_networks(Path(spec.file), "").get("")


def list_local_files(spec: ModelSpec) -> dict[str, Path]:
    """List the files of weights of an embedded model, or of a continuous pair in a folder, by component."""
    kind = weights.find_kind(spec.family)
    if kind == "continuous":
        folder = weights.find_pair_folder(spec)
        names = {"target": spec.family, "draft": f"{spec.family}-draft", "kl": "kl"}
        return {
            component: file for component, name in names.items() if (file := folder / f"{name}.safetensors").exists()
        }
    if kind == "anysubset":
        return {name: weights.ROOT / kind / f"{name}.safetensors" for name in ("xlnet", "judge")}
    files = {name: weights.EMBEDDED / file for name, file in weights.list_embedded_files(spec).items()}
    companions = {name: weights.EMBEDDED / f"{name}.safetensors" for name in weights.COMPANIONS}
    return files | (companions if spec.grid == 16 else {})


def list_converted(spec: ModelSpec) -> Networks:
    """List the networks of a model that fetching it writes anew, in another layout: those of a continuous pair, a
    drafter under its authors' names, and a pickle in torch's older format."""
    if spec.source == "embedded" or spec.folder:
        return {}
    networks, _ = list_networks(spec)
    if weights.find_kind(spec.family) == "continuous":
        return networks
    files = {name: Path(file) for name, file in spec.files.items()}
    old = [name for name, file in files.items() if file.is_file() and file.suffix in PICKLED and not is_zipfile(file)]
    converted = {"drafter", *({"transformer": "net"}.get(name, name) for name in old)}
    return {name: network for name, network in networks.items() if name in converted}
