"""Chameleon's descendants that draw images, the family: Lumina-mGPT (Liu et al. 2024) and Anole (Chern et al. 2024).

Words and codes are one vocabulary. Lumina-mGPT begins an image with its size and ends every row with a line token;
Anole does neither, and all its images have 32 x 32 codes. Source: the released code of both, and Meta's Chameleon;
their files in transformers' layout, with Meta's image tokenizer (Chameleon 2024, sec. 2.1, after Make-A-Scene, Gafni et
al. 2022).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from parity_decoders.engine import Network
from parity_decoders.protocols.discrete import Encoder
from parity_decoders.speculators import DrafterContext, DrafterNet
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import header
from parity.base.weights import check_fit, load_built, read_shapes, skip_filling, tensors
from parity.experiment.schema import ModelSpec
from parity.models.discrete import llama
from parity.models.discrete.llama import condition, embed_prompts, groups, images, make_speculator  # noqa: F401
from parity.models.discrete.vq import Codebook, Decoder, VQConfig, count_blocks, diffusion_name, put_channels_first
from parity.models.discrete.vq import read_sizes as read_sizes_of_vq
from parity.models.discrete.vq import truncate_to_pixels as to_pixels  # noqa: F401

FAMILY: dict[str, Any] = {  # see models.discrete
    "files": ("model",),
    "also": ("vq", "drafter", "draft", "heads"),  # without "vq", the model's folder must hold its image tokenizer
    "trained": ("heads", "drafter"),
    "stand_in_drafter": "anole_drafter",
    "embedded": {},
    "model_types": ("chameleon",),
    # These are Lumina-mGPT's at 768 pixels. `line` and `end` count tokens after a row and an image; Anole has line 0.
    "network": {"vocab": 8192, "rows": 48, "columns": 48, "line": 1, "end": 1},
    "multiples": {"rows": 2, "columns": 2},  # size tokens count in units of 32 pixels, two codes
    "at_most": {"line": 1, "end": 1},
    "sampling": {"guidance": 3.0, "top_k": 2000},
    "sampling_without_lines": {"guidance": 3.0, "temperature": 0.7, "top_p": 0.9},  # Anole's authors sample it so
    "papers": {"Lumina-mGPT 7B, 768 pixels": {}},
    "sizes": {"vocab": 8192, "rows": 48, "columns": 48, "line": 1, "end": 1},
}
BEGIN = "<racm3:break>"
SIZE = "<reserved{:05d}>"
LINE = "<reserved08799>"
END = "<eoss>"
TURN = "<reserved08706>"
NAME = "IMGIMG"  # a code's name goes on with its number in the letters A to J, and one more letter
LUMINA = "Generate an image of {width}x{height} according to the following prompt:\n{{}}"
ANOLE = "{}"  # Anole reads a caption without an instruction around it
STRIDE = 16  # a code stands for this many pixels each way
KIND = ("chameleon", "ChameleonConfig")
NETWORK = {
    "model.layers.": "backbone.layers.", "model.norm.": "backbone.norm.",
    "model.embed_tokens.": "backbone.embed_tokens.",
    "lm_head.": "output.chosen.",
}  # fmt: skip
VQ_PREFIXES = ("model.vqmodel.", "vqmodel.", "")  # its tensors begin so in a model's folder, or a file
VQ_PARTS = ("decoder.", "post_quant_conv.", "quantize.embedding.")  # the encoder is not loaded, only these parts
sizes = partial(llama.merge_sizes, FAMILY)
shape = partial(llama.compute_shape, FAMILY, STRIDE)


def read_sizes(folder: Path, pixels: int | None) -> dict[str, int]:
    """Read from a folder the sizes of a network that differ from its family's. pixels: of an image's side, None for
    768; only for Lumina-mGPT, whose rows end with a token. Others have as many codes as their config.json says."""
    config = llama.read_object(folder / "config.json")
    lines = any("XLLMX" in name for name in config.get("architectures") or ())
    side = (pixels or 768) // STRIDE if lines else round((count_image_tokens(config) or 1024) ** 0.5)
    codes = len(list_codes(llama.read_tokenizer(folder).get_vocab(), folder))
    return llama.select_changed(FAMILY, {"vocab": codes, "rows": side, "columns": side, "line": int(lines), "end": 1})


def count_image_tokens(config: Mapping[str, Any]) -> int:
    """Count the codes of an image at the tokenizer's resolution, 0 if the configuration does not say."""
    vq = config.get("vq_config") or {}
    stride = 2 ** (len(vq.get("channel_multiplier", (1, 1, 2, 2, 4))) - 1)
    return (vq["resolution"] // stride) ** 2 if "resolution" in vq else 0


def list_codes(words: Mapping[str, int], folder: Path) -> list[int]:
    """List the ids of the image codes by code. Raises ParityError unless the numbers in their names count from 0."""
    letters = {chr(ord("A") + i): str(i) for i in range(10)}
    ids = {}
    for name, id_ in words.items():
        if name.startswith(NAME):
            digits = "".join(letters.get(c, c) for c in name[len(NAME) : -1])
            ids[int(digits) if digits.isdecimal() else -1] = id_
    if not ids or sorted(ids) != list(range(len(ids))):
        raise ParityError(f"{folder}: the tokenizer's codes are not {NAME}A to ...; allowed: that of Chameleon")
    return [ids[i] for i in range(len(ids))]


def read_vocabulary(manifest: Mapping[str, Any]) -> tuple[Any, list[int], dict[str, int]]:
    """Return the tokenizer; the ids of the codes, then of the forced tokens; and ids by name of the tokens that frame a
    prompt. Raises ParityError if the number of codes is not the manifest's."""
    folder = Path(manifest["files"]["model"])
    s = sizes(manifest)
    tokenizer = llama.read_tokenizer(folder)
    words = tokenizer.get_vocab()
    ids = list_codes(words, folder)
    if len(ids) != s["vocab"]:
        raise ParityError(f"{folder}: the tokenizer has {len(ids)} codes; network says vocab {s['vocab']}")
    size = [SIZE.format(8800 + n // 2) for n in (s["rows"], s["columns"])] if s["line"] else []
    forced = [LINE, END] if s["line"] else [END]
    named = llama.look_up_ids(["<s>", BEGIN, TURN, *forced, *size], words, folder)
    return tokenizer, ids + [named[name] for name in forced], named


def repeat_norms(c: Any, name: str, tensor: Tensor) -> Tensor:
    """Repeat a norm of queries or keys to a row for each head, and return any other tensor as it is. Their authors
    store one for each of the devices of training, which hold neighbouring heads."""
    heads = {"q_norm": c.num_attention_heads, "k_norm": c.num_key_value_heads}.get(name.split(".")[-2], 0)
    rows = tensor.shape[0] if tensor.dim() == 2 else 0
    return tensor.repeat_interleave(heads // rows, 0) if heads and rows and heads % rows == 0 else tensor


def load(manifest: Mapping[str, Any], component: str, device: str, dtype: torch.dtype) -> nn.Module:
    """Load the network "net", "vq" or "drafter" of a manifest. Raises ParityError if files do not fit together."""
    files = {name: Path(file) for name, file in manifest["files"].items()}
    s = sizes(manifest)
    folder = files["draft" if component == "draft" else "model"]
    if component == "vq":
        return llama.ImageTokenizer(load_vqgan(files.get("vq", folder), device, dtype), s)
    if component in ("drafter", "heads") and "target" in header(files[component]):
        return llama.load_speculator(component, files[component], llama.read_config(folder, *KIND), device, dtype)
    if component == "drafter":
        from transformers import ChameleonConfig

        c = ChameleonConfig.from_dict(header(files["drafter"]))
        return load_built(partial(Drafter, c), files["drafter"], (), device, dtype)
    c = llama.read_config(folder, *KIND)
    adapt = partial(repeat_norms, c)
    return llama.load_network(c, folder, read_vocabulary(manifest)[1], s["vocab"], NETWORK, device, dtype, adapt)


class VQGAN(nn.Module):
    """Meta's image tokenizer without its encoder: codes [n, h, w] to images [n, 3, H, W] in [-1, 1]."""

    def __init__(self, c: VQConfig):
        super().__init__()
        self.config = c
        self.quantize = Codebook(c)
        self.decoder = Decoder(c)
        self.post_quant_conv = nn.Conv2d(c.code_dim, c.z_channels, 1)

    def decode(self, codes: Tensor) -> Tensor:
        return self.decoder(self.post_quant_conv(put_channels_first(self.quantize.embedding.weight[codes])))


META = "image decoder of Chameleon; allowed: Meta's vqgan.ckpt, or a safetensors of it, as vq"


def load_vqgan(path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32, expected: str = META) -> VQGAN:
    """Load the image tokenizer from Meta's file, from safetensors of it, or a model's folder, or one whose tensors have
    the same names. Raises ParityError, which says what was `expected`, for none."""
    inner = llama.rename_prefixes({prefix + component: component for prefix in VQ_PREFIXES for component in VQ_PARTS})
    stored = {
        inner_name: tuple(entry.shape) for name, entry in read_shapes(path).items() if (inner_name := inner(name))
    }
    levels = count_blocks(stored, "decoder.up.")
    try:
        config = read_sizes_of_vq({diffusion_name(name, levels): shape for name, shape in stored.items()})
    except ParityError:
        raise ParityError(f"{path}: no {expected}") from None
    rename = lambda name: (inner_name := inner(name)) and diffusion_name(inner_name, levels)  # noqa: E731
    return llama.fill(partial(VQGAN, config), path, rename, device, dtype)


class Drafter(DrafterNet):
    """What LANTERN (Jang et al. 2024) released for Anole: `fc` with a bias, then one layer of the target's own kind
    with all its norms, and none at the end; its own embeddings of words.

    It reads the prompt first, a slot for each token but the first, at the place of the feature beside it. Source:
    jadohu/LANTERN, models/drafters/cnets_anole.py.
    """

    def __init__(self, c: Any):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.fc = nn.Linear(2 * c.hidden_size, c.hidden_size)
        self.layer = llama.make_layer(c)
        self.rotary = llama.Rotary(c)
        self.norm = nn.Identity()

    def make_context(self, target: Network, ids: Tensor | None = None) -> DrafterContext:
        """Make the context of prompts ids [R, P]: their tokens but the first, the target's features and mask."""
        assert ids is not None
        table = self.embed_tokens.weight
        n_before = ids.shape[1] - 1
        words = F.embedding(ids[:, 1:], table)
        embeddings = target.model.output.embeddings(table)
        assert target.states is not None
        return DrafterContext(embeddings, words, target.states, target.cache.on[:, :n_before], target.padding)


def read_published(component: str, path: Path, spec: ModelSpec) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read tensors and configuration of a drafter from its folder, or a file in it; None for any other component."""
    if component != "drafter" or "target" in header(path):
        return None
    folder = path if path.is_dir() else path.parent
    c = llama.read_config(folder, *KIND)
    state = {
        name.replace("layers.0.", "layer."): repeat_norms(c, name, tensor)
        for name, tensor in tensors(path, dtype=None)
        if "rotary_emb" not in name
    }
    with skip_filling():
        check_fit(Drafter(c), state, path)
    return state, llama.read_object(folder / "config.json")


def encoder(manifest: Mapping[str, Any], device: str) -> Encoder:
    """Make the function that encodes captions for `condition`. The unconditional row has no words: Lumina-mGPT's is the
    beginning of an image with its size, Anole's the beginning of the text and of an image."""
    s = sizes(manifest)
    folder = Path(manifest["files"]["model"])
    words, ids, named = read_vocabulary(manifest)
    size = [named[SIZE.format(8800 + n // 2)] for n in (s["rows"], s["columns"])] if s["line"] else []
    image_start = [named[BEGIN], *size]
    pixels = {"width": STRIDE * s["columns"], "height": STRIDE * s["rows"]}
    template = LUMINA.format(**pixels) if s["line"] else ANOLE
    reserved = frozenset([*ids, *named.values()]) - {named["<s>"]}
    around = ([named["<s>"]], [named[TURN], *image_start])
    unconditional = image_start if s["line"] else [named["<s>"], *image_start]
    return llama.make_prompt_encoder(words, reserved, folder, template, around, lambda prompt: unconditional)
