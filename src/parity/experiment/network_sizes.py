"""The networks of a model and their sizes: from the headers of files on this machine, from a table of released
networks, or assumed. No size depends on the name that a family gives a matrix. Imports no torch."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zipfile import is_zipfile

from parity.base.digests import parts
from parity.base.errors import ParityError
from parity.base.headers import PICKLED, Shape, read_tensor_shapes
from parity.experiment import weights
from parity.experiment.schema import HUB, PINNED, ModelSpec, NetworkSpec


class Network(NamedTuple):
    """A network that jobs load. What it does not have is 0."""

    parameters: int
    stored: int  # bytes of its file
    layers: int = 0
    width: int = 0  # numbers of a token between two layers
    keys: int = 0  # numbers of a position's keys in a layer
    vocab: int = 0  # words of a text model
    channels: int = 0  # of the pictures that it makes from tokens, before its last layer
    stride: int = 0  # pixels of a token a side


Networks = dict[str, Network]


def describe_released(parameters: int, bytes_each: int, layers: int = 0, width: int = 0, **sizes: int) -> Network:
    """Describe a released network whose file has `bytes_each` bytes a number."""
    return Network(parameters, parameters * bytes_each, layers, width, width, **sizes)


CHAMELEON = describe_released(7_043_090_432, 2, 32, 4096)
DRAFTER = describe_released(44_567_040, 2, 1, 1280)
EMU3 = describe_released(8_762_751_807, 2, 32, 4096)._replace(keys=1024)  # with its vision tokenizer
XL = describe_released(777_923_840, 4, 36, 1280)
XLNET = describe_released(116_750_336, 4, 12, 768, vocab=32000)
# The file holds the encoder, too, of 29,423,616 numbers, which no job loads.
VQGAN = Network(41_457_795, 4 * (41_457_795 + 29_423_616), channels=128, stride=16)
KL16 = describe_released(66_456_019, 4, channels=128, stride=16)
# The networks of papers' tables by repository and path, or by the file's name where they are at an address.
# tests/experiment/test_network_sizes.py counts their parameters anew; bytes of files follow from the dtype that their
# authors name, and the hub tells the true ones.
RELEASED = {
    "Alpha-VLLM/Lumina-mGPT-7B-512:.": CHAMELEON,
    "Alpha-VLLM/Lumina-mGPT-7B-768:.": CHAMELEON,
    "Alpha-VLLM/Lumina-mGPT-7B-1024:.": CHAMELEON,
    "leloy/Anole-7b-v0.1-hf:.": CHAMELEON,
    "GAIR/Anole-7b-v0.1:tokenizer/vqgan.ckpt": VQGAN,
    "peizesun/llamagen_t2i:t2i_XL_stage1_256.pt": XL,
    "peizesun/llamagen_t2i:t2i_XL_stage2_512.pt": XL,
    "peizesun/llamagen_t2i:vq_ds16_t2i.pt": describe_released(71_883_403, 4, channels=128, stride=16),
    "google/flan-t5-xl:.": Network(1_223_527_424, 4 * 2_783_959_040, 24, 2048, 2048),  # decoder is not read
    "jadohu/llamagen_drafter:.": DRAFTER,
    "jadohu/llamagen2_drafter:.": DRAFTER,
    "jadohu/anole_drafter:.": describe_released(504_393_728, 2, 1, 4096),
    "Emu3-community/Emu3-Gen-hf:.": EMU3,
    "jadechoghari/mar:mar-base.safetensors": describe_released(207_924_768, 4, 12, 768),
    "jadechoghari/mar:mar-large.safetensors": describe_released(478_326_304, 4, 16, 1024),
    "jadechoghari/mar:mar-huge.safetensors": describe_released(942_403_104, 4, 20, 1280),
    "jadechoghari/mar:kl16.safetensors": KL16,
    "OliverRen/xAR:xAR-B.pth": describe_released(172_638_224, 4, 8, 768),
    "OliverRen/xAR:xAR-H.pth": describe_released(1_186_024_096, 4, 20, 1280),
    "wusize/harmon:harmon_0.5b.pth": describe_released(706_712_352, 4, 24, 896),
    "wusize/harmon:harmon_1.5b.pth": describe_released(2_497_723_168, 4, 28, 1536),
    "wusize/harmon:kl16.ckpt": KL16,
    "therealgabeguo/ASARM:.": XLNET,
    "xlnet/xlnet-base-cased:.": XLNET,
    "xlnet/xlnet-large-cased:.": describe_released(360_300_800, 4, 24, 1024, vocab=32000),
    "kuleshov-group/mdlm-owt:.": describe_released(169_627_218, 4, 12, 768, vocab=50258),
    "openai-community/gpt2:.": describe_released(124_439_808, 4, 12, 768, vocab=50257),
    "openai-community/gpt2-large:.": describe_released(774_030_080, 4, 36, 1280, vocab=50257),
    "timm/vit_base_patch16_clip_224.openai:open_clip_model.safetensors": describe_released(149_620_737, 4),
    "timm/vit_base_patch32_clip_224.openai:open_clip_model.safetensors": describe_released(151_277_313, 4),
    "xswu/HPSv2:HPS_v2.1_compressed.pt": describe_released(986_109_441, 4),
    "pt_inception-2015-12-05-6726825d.pth": describe_released(23_885_486, 4),
    "vgg16-397923af.pth": describe_released(138_357_544, 4),
}
ASSUMED = CHAMELEON._replace(vocab=65536)  # for a network of which nothing is known: 7 billion parameters
ASSUMED_PAINTER = KL16  # for an image tokenizer or autoencoder of which nothing is known


def name_released(spec: ModelSpec, component: str) -> str:
    """Name a component of a model in a repository as the table does: "owner/name:path", without commit and branch."""
    file = spec.files[component]
    if pinned := PINNED.fullmatch(file):
        return f"{pinned['repo']}:{pinned['path'] or '.'}"
    if file.startswith(HUB):
        repo, _, path = file.removeprefix(HUB).partition(":")
        return f"{repo.partition('@')[0]}:{path or '.'}"
    return f"{spec.repo}:{file}"


def describe(shapes: Mapping[str, Shape], stored: int) -> Network:
    """Describe the network of tensors with these shapes, whose file has so many bytes.

    Its width is the axis that its vectors and matrices have most often, its words the longest one. Layers are the
    numbers in names. A key has that width, too, unless a projection of keys is smaller, because heads share keys.
    """
    flat = [shape for shape in shapes.values() if len(shape) <= 2]
    [(width, _)] = Counter(axis for shape in flat for axis in shape).most_common(1) or [(0, 0)]
    layers = {match[1] for name in shapes if (match := re.search(r"(?:^|\.)(\d+)\.", name))}
    keys = [shape[0] for name, shape in shapes.items() if name.endswith("k_proj.weight")]
    output_layer = next((s for n, s in shapes.items() if n.endswith("decoder.conv_out.weight")), None)
    levels = {m[1] for n in shapes if (m := re.search(r"decoder\.(?:conv_blocks|up|up_block\.up)\.(\d+)\.", n))}
    return Network(
        sum(map(math.prod, shapes.values())),
        stored,
        len(layers),
        width,
        min([width, *keys]),
        max((axis for shape in flat for axis in shape), default=0),
        output_layer[1] if output_layer else 0,
        2 ** (len(levels) - 1) if output_layer and levels else 0,
    )


@cache
def read_network(path: Path, component: str, modified: int) -> Network | None:
    """Read the sizes of a component's network from the headers of a file or folder; None if they do not say them.
    modified: when it was, in nanoseconds."""
    shapes: dict[str, Shape] = {}
    try:
        files = parts(path)
        for file in files:
            shapes |= read_tensor_shapes(file)
        stored = sum(file.stat().st_size for file in files)
    except (OSError, ParityError):
        return None
    if component == "text":  # of T5, the encoder alone is read
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith("decoder.")}
    return describe(shapes, stored) if shapes else None


def list_networks(spec: ModelSpec) -> tuple[Networks, list[str]]:
    """List the networks of a model by what jobs call them ("net", "vq", "text", "drafter", "draft", "heads"; "target",
    "draft", "kl"; "xlnet", "judge"), and the components whose sizes are assumed because nothing says them. An image
    tokenizer or autoencoder that lies in the file of another network is a part of that one."""
    files = {component: Path(file) for component, file in spec.files.items()}
    if spec.source == "embedded" or spec.folder:
        files = list_local_files(spec)
    networks: Networks = {}
    unknown = []
    for component, file in files.items():
        if component in ("tokenizer", "clip"):
            continue
        name = "net" if component in ("transformer", "model") else component
        network = read_network(file, component, file.stat().st_mtime_ns) if file.exists() else None
        if network is None and component in spec.files and spec.source == "hub":
            network = RELEASED.get(name_released(spec, component))
        if network is None:
            unknown.append(component)
            network = ASSUMED_PAINTER if name in ("vq", "kl") else ASSUMED
        networks[name] = network
    return networks, unknown


def find_judge(spec: NetworkSpec) -> Network | None:
    """Find the sizes of a network that judges pictures; None if nothing is known of it."""
    if spec.repo:
        return RELEASED.get(f"{spec.repo}:{spec.file}")
    if "://" in spec.file:
        return RELEASED.get(spec.file.rpartition("/")[2])
    file = Path(spec.file)
    return read_network(file, "", file.stat().st_mtime_ns) if file.exists() else None


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


def list_converted(spec: ModelSpec) -> list[Network]:
    """List the networks of a model that fetching it writes anew, in another layout: those of a continuous pair, a
    drafter under its authors' names, and a pickle in torch's older format."""
    if spec.source == "embedded" or spec.folder:
        return []
    networks, _ = list_networks(spec)
    if weights.find_kind(spec.family) == "continuous":
        return list(networks.values())
    files = {name: Path(file) for name, file in spec.files.items()}
    old = [name for name, file in files.items() if file.is_file() and file.suffix in PICKLED and not is_zipfile(file)]
    converted = {"drafter", *({"transformer": "net"}.get(name, name) for name in old)}
    return [network for name, network in networks.items() if name in converted]
