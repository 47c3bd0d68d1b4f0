"""Chameleon's descendants that draw pictures, the family: Lumina-mGPT (Liu et al. 2024) and Anole (Chern et al. 2024).

Words and codes are one vocabulary. Lumina-mGPT begins a picture with its size and ends every row with a line token;
Anole does neither, and all its pictures have 32 x 32 codes. Source: the released code of both, and Meta's Chameleon;
their files in transformers' layout, with Meta's image tokenizer.
"""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import configured
from parity.base.weights import check_fit, loaded, tensors, unfilled
from parity.experiment.schema import ModelSpec
from parity.experiment.weights import WORDS, released
from parity.models.discrete import codes, folders, prompts, vqgan
from parity.models.discrete.cached import Cached
from parity.models.discrete.eagle import EagleDrafter, Seen
from parity.models.discrete.llama import Block, Codes, Llama, LlamaConfig
from parity.models.discrete.t5 import Encoder
from parity.models.discrete.transformer import Remember
from parity.models.discrete.vq import truncated

FAMILY: dict[str, Any] = {  # see models.discrete.protocol
    "files": ("model",),
    "also": ("vq", "drafter"),  # else the model's own folder holds its image tokenizer
    "embedded": {},
    "model_types": ("chameleon",),
    # Lumina-mGPT at 768 pixels; `line` and `end`, tokens behind a row and a picture: line 0 is Anole
    "network": {"vocab": 8192, "rows": 48, "columns": 48, "line": 1, "end": 1},
    "multiples": {"rows": 2, "columns": 2},  # a size token counts 32 pixels
    "at_most": {"line": 1, "end": 1},
    "sampling": {"guidance": 3.0, "top_k": 2000},
    "sampling_without_lines": {"guidance": 3.0, "temperature": 0.7, "top_p": 0.9},  # Anole's
    "papers": {"Lumina-mGPT 7B, 768 pixels": {}},
    "sizes": {"vocab": 8192, "rows": 48, "columns": 48, "line": 1, "end": 1},
}
BEGIN, SIZE, LINE, END, TURN = "<racm3:break>", "<reserved{:05d}>", "<reserved08799>", "<eoss>", "<reserved08706>"
NAME = "IMGIMG"  # then a code's number in the letters A to J, and one letter more
LUMINA = "Generate an image of {width}x{height} according to the following prompt:\n{{}}"
ANOLE = "{}"  # the instruction as it is given
STRIDE = 16  # pixels a code
KIND = ("chameleon", "ChameleonConfig")
to_pixels = truncated
sizes = partial(codes.sizes, FAMILY)


def shape(manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens in a row of a picture, pixels of its longer side."""
    return codes.shape(sizes(manifest), STRIDE)


def read_sizes(folder: Path, pixels: int | None) -> dict[str, int]:
    """The configuration's `network` from a folder and the pixels of a side, None for 768; what stands in
    FAMILY["sizes"] is left out. A configuration that says it is Lumina-mGPT's has lines."""
    said = folders.read(folder / "config.json")
    lines = any("XLLMX" in name for name in said.get("architectures") or ())
    side = (pixels or 768) // STRIDE if lines else round((image_tokens(said) or 1024) ** 0.5)
    number = len(numbered(folders.tokenizer(folder).get_vocab(), folder))
    found = {"vocab": number, "rows": side, "columns": side, "line": int(lines), "end": 1}
    return {key: value for key, value in found.items() if value != FAMILY["sizes"][key]}


def image_tokens(said: Mapping[str, Any]) -> int:
    """Codes of a picture of the tokenizer's own resolution, 0 where a configuration does not say."""
    vq = said.get("vq_config") or {}
    stride = 2 ** (len(vq.get("channel_multiplier", (1, 1, 2, 2, 4))) - 1)
    return (vq["resolution"] // stride) ** 2 if "resolution" in vq else 0


def numbered(words: Mapping[str, int], where: Path) -> list[int]:
    """Ids of the codes in the image tokenizer's order; ParityError unless the names count them up from 0."""
    letters = {chr(ord("A") + i): str(i) for i in range(10)}
    found = {}
    for name, own in words.items():
        if name.startswith(NAME):
            digits = "".join(letters.get(c, c) for c in name[len(NAME) : -1])
            found[int(digits) if digits.isdecimal() else -1] = own
    if not found or sorted(found) != list(range(len(found))):
        raise ParityError(f"{where}: the tokenizer's codes are not {NAME}A to ...; allowed: that of Chameleon")
    return [found[i] for i in range(len(found))]


def vocabulary(manifest: Mapping[str, Any]) -> tuple[Any, list[int], dict[str, int]]:
    """The tokenizer, ids of the codes and then of what is forced, and ids by name of what a prompt needs."""
    folder, s = Path(manifest["files"]["model"]), sizes(manifest)
    held = folders.tokenizer(folder)
    words = held.get_vocab()
    ids = numbered(words, folder)
    if len(ids) != s["vocab"]:
        raise ParityError(f"{folder}: the tokenizer has {len(ids)} codes; network says vocab {s['vocab']}")
    size = [SIZE.format(8800 + n // 2) for n in (s["rows"], s["columns"])] if s["line"] else []
    forced = [LINE, END] if s["line"] else [END]
    wanted = ["<s>", BEGIN, TURN, *forced, *size]
    named = dict(zip(wanted, folders.names(words, wanted, folder), strict=True))
    return held, ids + [named[name] for name in forced], named


def repeat_norms(c: LlamaConfig, name: str, tensor: Tensor) -> Tensor:
    """Norms of queries and keys, a row for each head. Their authors store one for each of the devices that training was
    spread over, which hold neighbouring heads."""
    heads = c.heads if ".q_norm." in name else c.kept_heads if ".k_norm." in name else 0
    rows = tensor.shape[0] if tensor.dim() == 2 else 0
    return tensor.repeat_interleave(heads // rows, 0) if heads and rows and heads % rows == 0 else tensor


def network(manifest: Mapping[str, Any], device: str, dtype: torch.dtype) -> Llama:
    """The transformer, its output matrix that of the codes alone."""
    folder, s = Path(manifest["files"]["model"]), sizes(manifest)
    ids = torch.tensor(vocabulary(manifest)[1])
    config = folders.config(folder, *KIND)
    own = folders.sizes(config, folder, normed=True)
    if int(ids.max()) >= own.vocab:
        raise ParityError(f"{folder}: the tokenizer has more tokens than the network's {own.vocab}")

    def rename(name: str) -> str | None:
        inner = folders.stripped(name, ("model.",))
        if inner is None:
            return "output.chosen.weight" if name == "lm_head.weight" else name
        return None if inner.startswith("vqmodel.") else inner

    chosen = {"output.chosen.weight": ids[: s["vocab"]]}
    return folders.fill(
        lambda: Llama(own, Codes(own.dim, ids, s["vocab"])), folder, rename, device, dtype, chosen,
        partial(repeat_norms, own),
    )  # fmt: skip


class Drafter(nn.Module):
    """What LANTERN (Jang et al. 2024) released for Anole: `fc` with a bias, then one layer of the target's own kind
    with all its norms, and none at the end; its own embeddings of words.

    It reads the prompt first, a slot for each token but the first, at the place of the feature beside it. Parameter
    names are those of the released file. Source: jadohu/LANTERN, models/drafters/cnets_anole.py.
    """

    def __init__(self, c: LlamaConfig):
        super().__init__()
        self.config, self.embed_tokens = c, nn.Embedding(c.vocab, c.dim)
        self.fc, self.layers = nn.Linear(2 * c.dim, c.dim), nn.ModuleList([Block(c)])

    def forward(
        self, embeddings: Tensor, features: Tensor, table: Tensor, mask: Tensor, remember: Remember | None = None
    ) -> Tensor:
        return self.layers[0](self.fc(torch.cat([embeddings, features], -1)), table, mask, remember)

    def sees(self, target: Cached, ids: Tensor | None = None) -> Seen:
        """Prompts ids [R, P] whose padding is masked, and the picture."""
        assert ids is not None
        own, before = self.embed_tokens.weight, ids.shape[1] - 1
        words, pictures = F.embedding(ids[:, 1:], own), target.net.output.embeddings(own)
        return Seen(pictures, words, target.told, target.on[:, :before], target.net.table, target.shift)


def drafter(manifest: Mapping[str, Any], device: str, dtype: torch.dtype) -> Drafter:
    """The released drafter, as `published` left it; ParityError for one of another target."""
    folder, file = (Path(manifest["files"][part]) for part in ("model", "drafter"))
    target = folders.sizes(folders.config(folder, *KIND), folder, normed=True)
    own = configured(LlamaConfig, file, ignored=WORDS)
    for what in ("vocab", "dim", "heads", "kept_heads", "rope_base"):
        one, wanted = getattr(own, what), getattr(target, what)
        if one != wanted:
            raise ParityError(f"{file}: a drafter of another target: {what} {one}; allowed: {wanted}, as the target's")
    return loaded(lambda: Drafter(own), file, (), device, dtype)


def published(part: str, path: Path, spec: ModelSpec) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and sizes of a part that is read from a folder of its own: the drafter, config.json beside its
    weights. None for any other."""
    if part != "drafter":
        return None
    folder = path if path.is_dir() else path.parent
    own = folders.sizes(folders.config(folder, *KIND), folder, normed=True)
    if own.layers != 1:
        raise ParityError(f"{folder}: a network of {own.layers} layers; allowed: a drafter of one, as LANTERN's")
    state = {name: repeat_norms(own, name, t) for name, t in tensors(path, dtype=None) if "rotary_emb" not in name}
    with unfilled():
        check_fit(Drafter(own), state, path)
    return state, asdict(own) | released(folder)


def load(manifest: Mapping[str, Any], part: str, device: str, dtype: torch.dtype) -> nn.Module:
    """One network: "net", "vq" or "drafter"; ParityError for files that do not fit together."""
    files, s = manifest["files"], sizes(manifest)
    if part == "net":
        return network(manifest, device, dtype)
    if part == "drafter":
        return drafter(manifest, device, dtype)
    vq = vqgan.load(Path(files.get("vq", files["model"])), device, dtype)
    if vq.config.codebook != s["vocab"]:
        raise ParityError(f"models: the image tokenizer has {vq.config.codebook} codes, the model {s['vocab']}")
    vq.size = s
    return vq


def condition(nets: dict[str, Any], inputs: dict[str, Tensor], guided: bool, fast: bool = False) -> Cached:
    """The token model of a batch of encoded captions; see `prompts`."""
    vq, s = nets["vq"], nets["vq"].size
    line = [s["vocab"]] if s["line"] else []
    forced = codes.grammar(s["rows"], s["columns"], line, [s["vocab"] + len(line)])
    model = prompts.conditioned(nets["net"], inputs, guided, forced, s["columns"] + len(line), fast)
    model.raw_codebook = codes.pad_codes(vq.codes, model.vocab)
    model.codebook = codes.pad_codes(F.normalize(vq.codes, dim=-1), model.vocab)
    if "drafter" in nets:
        model.drafter = EagleDrafter(nets["drafter"], model, prompts.closed_up(inputs, guided)[0])
    return model


def pictures(nets: dict[str, Any], tokens: Tensor) -> Tensor:
    """tokens [n, L] of whole pictures to [n, 3, H, W] in [-1, 1]."""
    s = nets["vq"].size
    return nets["vq"].decode(codes.codes_of(tokens, s["rows"], s["columns"], s["line"]))


def groups(nets: dict[str, Any]) -> np.ndarray:
    """Indicators bool [G, V] of codes that look alike."""
    s = nets["vq"].size
    return codes.groups(nets["vq"].codes, s["vocab"] + s["line"] + s["end"])


def encoder(manifest: Mapping[str, Any], device: str) -> Encoder:
    """Captions to what `condition` takes of a batch. The unconditional row has no words: Lumina-mGPT's is the
    beginning of a picture with its size, Anole's the beginning of the text and of a picture."""
    s, folder = sizes(manifest), Path(manifest["files"]["model"])
    words, ids, named = vocabulary(manifest)
    size = [named[SIZE.format(8800 + n // 2)] for n in (s["rows"], s["columns"])] if s["line"] else []
    begin = [named[BEGIN], *size]
    pixels = {"width": STRIDE * s["columns"], "height": STRIDE * s["rows"]}
    template = LUMINA.format(**pixels) if s["line"] else ANOLE
    reserved = frozenset([*ids, *named.values()]) - {named["<s>"]}
    around = ([named["<s>"]], [named[TURN], *begin])
    unconditional = begin if s["line"] else [named["<s>"], *begin]
    return prompts.encoder(words, reserved, folder, template, around, lambda prompt: unconditional)
