"""Published networks of pictures and captions: open_clip's (CLIP, HPSv2), and transformers' CLIP (PickScore).

Both are given files of this machine alone, and never random weights. What OpenAI trained has the activation x
sigmoid(1.702 x), QuickGELU: with the usual one its weights give other features, and nothing complains. A folder of
open_clip's says which it is; of a single file the architecture's name does.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import foreign_json
from parity.metrics.networks import batches

CONFIG = "open_clip_config.json"
WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors")  # what open_clip looks for first


@dataclass
class Contrastive:
    """A network of pictures and captions in evaluation mode, and what it makes of both beforehand."""

    net: nn.Module
    of_pictures: Callable[[Tensor], Tensor]  # pixels [n, 3, H, W] to features [n, d]
    of_captions: Callable[[Tensor], Tensor]  # ids [n, context] to features [n, d]
    prepare: Any  # a PIL picture to pixels [3, H, W]
    tokens: Any  # captions to ids [n, context], cut where they are too long
    device: str = "cpu"

    @torch.inference_mode()
    def pictures(self, pictures: Iterable[np.ndarray], batch: int = 64) -> Tensor:
        """Features [n, d] of unit length of pictures uint8 [H, W, 3], on the CPU."""
        parts = []
        for some in batches(pictures, batch):
            pixels = torch.stack([self.prepare(Image.fromarray(picture)) for picture in some])
            parts.append(self.of_pictures(pixels.to(self.device)).float().cpu())
        return F.normalize(torch.cat(parts), dim=-1)

    @torch.inference_mode()
    def captions(self, captions: Sequence[str], batch: int = 256) -> Tensor:
        """Features [n, d] of unit length, on the CPU; one caption that occurs often is encoded once."""
        distinct, back = np.unique(np.asarray(captions), return_inverse=True)
        ids = self.tokens(distinct.tolist()).split(batch)
        parts = [self.of_captions(part.to(self.device)).float().cpu() for part in ids]
        return F.normalize(torch.cat(parts), dim=-1)[torch.from_numpy(back)]

    def cosine(self, pictures: Iterable[np.ndarray], captions: Sequence[str]) -> np.ndarray:
        """float32 [n], of every picture with its caption."""
        return (self.pictures(pictures) * self.captions(captions)).sum(-1).numpy()

    def cut(self, captions: Sequence[str]) -> int:
        """How many captions are longer than the network reads, and are cut."""
        room = self.tokens.context_length - 2  # its first and last are no words
        return sum(len(self.tokens.encode(caption)) > room for caption in captions)


def quick_gelu(net: nn.Module) -> bool:
    """Whether a network's activation is OpenAI's."""
    return any(type(module).__name__ == "QuickGELU" for module in net.modules())


def open_clip_of(path: Path, architecture: str, what: str, device: str = "cpu", whole: bool = False) -> Contrastive:
    """open_clip's network: a folder with open_clip_config.json, or a file of weights of a known architecture.

    what    what messages call it: networks.clip
    whole   pictures that are no squares keep their edges, on black, and are not cropped (HPSv2)
    """
    import open_clip
    from open_clip.transform import PreprocessCfg, image_transform_v2

    if path.is_dir():
        text = text_settings(path, what)
        name, more = f"local-dir:{path}", {}
    else:
        if open_clip.get_model_config(architecture) is None:
            where = f"{what}.architecture = {architecture!r}"
            raise ParityError(
                f"{where}: open_clip has no such; allowed: as ViT-L-14-quickgelu, or a folder with {CONFIG}"
            )
        name, more = architecture, {"pretrained": str(path)}
        text = open_clip.get_model_config(architecture)["text_cfg"]
    try:
        net = open_clip.create_model(name, require_pretrained=True, weights_only=True, device=device, **more)
    except (RuntimeError, ValueError, OSError, KeyError, AssertionError) as error:
        cause = " ".join(str(error).split())[:200]
        raise ParityError(f"{what} = {str(path)!r}: does not fit {architecture or CONFIG}: {cause}") from None
    settings = {**net.visual.preprocess_cfg, **({"resize_mode": "longest", "fill_color": 0} if whole else {})}
    prepare = image_transform_v2(PreprocessCfg(**settings), is_train=False)
    words = open_clip.SimpleTokenizer(context_length=text.get("context_length", 77))
    return Contrastive(net.eval(), net.encode_image, net.encode_text, prepare, words, device)


def text_settings(folder: Path, what: str) -> dict[str, Any]:
    """Of the text side of a folder; ParityError for one that would need another library's files."""
    try:
        text = foreign_json(folder / CONFIG)["model_cfg"]["text_cfg"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ParityError(f"{what} = {str(folder)!r}: allowed: a folder with {CONFIG} and weights, or a file") from None
    if not any((folder / name).is_file() for name in WEIGHTS):
        raise ParityError(f"{what} = {str(folder)!r}: no weights; allowed: {' or '.join(WEIGHTS)} in it")
    if {"hf_model_name", "hf_tokenizer_name"} & set(text):
        raise ParityError(f"{what} = {str(folder)!r}: its text side is another library's; allowed: open_clip's own")
    return text


def pickscore_of(folder: Path, what: str, device: str = "cpu") -> Contrastive:
    """A folder of a transformers CLIPModel (Kirstain et al. 2023: CLIP-H, fine-tuned). Its words are CLIP's, which
    open_clip brings along."""
    import open_clip
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from transformers import CLIPModel

    try:
        loaded: Any = CLIPModel.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except (OSError, ValueError, RuntimeError) as error:
        cause = " ".join(str(error).split())[:200]
        raise ParityError(f"{what} = {str(folder)!r}: not a folder of transformers' CLIPModel: {cause}") from None
    net, said = loaded
    if lacks := sorted(map(str, said["missing_keys"])):
        raise ParityError(f"{what} = {str(folder)!r}: not whole: lacks {lacks[0]} and {len(lacks) - 1} more")
    side = net.config.vision_config.image_size
    prepare = image_transform_v2(PreprocessCfg(size=side), is_train=False)
    words = open_clip.SimpleTokenizer(context_length=net.config.text_config.max_position_embeddings)
    pictures, captions = net.get_image_features, net.get_text_features
    return Contrastive(
        net.eval().to(device),
        lambda pixels: pictures(pixel_values=pixels).pooler_output,
        lambda ids: captions(input_ids=ids).pooler_output,
        prepare,
        words,
        device,
    )
