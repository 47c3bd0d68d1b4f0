"""Published networks, from files of this machine: Inception-V3, VGG16, open_clip's (CLIP, HPSv2) and transformers' CLIP
(PickScore). None is ever given random weights."""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from parity.base.command import note
from parity.base.errors import ParityError
from parity.base.files import foreign_json
from parity.base.weights import load_weights, parts, read_shapes, unpickle

Pixels = Iterable[np.ndarray]  # the images are uint8 [H, W, 3], and their sizes may differ
INCEPTION_SIDE, VGG_SIDE = 299, 224
VGG_UNREAD = ("classifier.6.weight", "classifier.6.bias")  # VGG16's last layer (ImageNet's classes) is not read
CONFIG = "open_clip_config.json"
WEIGHTS = "open_clip_model.safetensors"  # the file of weights in a folder of open_clip


def batches(images: Pixels, size: int) -> Iterator[list[np.ndarray]]:
    """Yield lists of `size` images, the last one shorter, and note how many were yielded. The images are read as
    they are asked for."""
    remaining = iter(images)
    n_done = 0
    while batch := list(islice(remaining, size)):
        note(f"images that a network has judged: {n_done}")
        yield batch
        n_done += len(batch)


def shorten_message(error: Exception) -> str:
    """Shorten a library's error message to one line of at most 200 characters."""
    return " ".join(str(error).split())[:200]


# --- Inception-V3


def load_inception(file: Path, device: str = "cpu") -> nn.Module:
    """Load Inception-V3 as the FID papers have it (TensorFlow's of 2015-12-05): torch-fidelity's network, of its
    published file. Raises ParityError for a file that is not this network's, or that is more than tensors."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    unpickle(file)  # refuses a pickle that runs code, because torch-fidelity's reader would run it
    outputs = ["2048", "logits_unbiased"]
    try:
        net = FeatureExtractorInceptionV3("inception", outputs, feature_extractor_weights_path=str(file))
    except RuntimeError as error:
        raise ParityError(
            f"networks.inception = {str(file)!r}: not the file of this network: {shorten_message(error)}"
        ) from None
    return net.to(device)


@cache
def make_resizer(mode: str) -> Callable[[np.ndarray], np.ndarray]:
    """Make the function that resizes uint8 [H, W, 3] to float32 [299, 299, 3], 0 to 255; mode: a recipe's `resize`."""
    if mode != "tensorflow":
        from cleanfid.resize import build_resizer

        return build_resizer(mode)
    from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

    def resize(image: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(image.transpose(2, 0, 1).astype(np.float32))[None]
        size = (INCEPTION_SIDE, INCEPTION_SIDE)
        resized = interpolate_bilinear_2d_like_tensorflow1x(x, size=size, align_corners=False)[0]
        return resized.permute(1, 2, 0).numpy()

    return resize


def crop(image: np.ndarray, side: int) -> np.ndarray:
    """Crop the largest square at the centre of uint8 [H, W, 3] and resize it to [side, side, 3] by Lanczos's filter;
    side 0 leaves the image as it is."""
    if not side:
        return image
    height, width = image.shape[:2]
    size = min(height, width)
    top = (height - size) // 2
    start = (width - size) // 2
    square = Image.fromarray(image[top : top + size, start : start + size])
    return np.asarray(square.resize((side, side), Image.Resampling.LANCZOS))


@torch.inference_mode()
def read_inception(net: nn.Module, images: Pixels, recipe: dict[str, Any], batch: int = 32) -> dict[str, Any]:
    """Compute Inception's features float32 [n, 2048] and logits [n, 1008] without their bias, as the Inception Score
    takes them. recipe: how images are cropped, resized and scaled (`metrics.protocols`).

    torch-fidelity's own forward takes whole bytes and resizes them itself; a recipe may resize to pixels that are not
    rounded. So its layers are called here, in its order, after the recipe's resizing.
    """
    features, logits = [], []
    children: list[Any] = list(net.children())
    *layers, output = children
    with warnings.catch_warnings():  # importing clean-fid turns off all warnings; this restores them
        resize = make_resizer(recipe["resize"])
        for group in batches(images, batch):
            resized = np.stack([resize(crop(image, recipe["crop"])) for image in group]).transpose(0, 3, 1, 2)
            x = torch.from_numpy(np.ascontiguousarray(resized, dtype=np.float32))
            x = ((x - recipe["centre"]) / recipe["centre"]).to(output.weight.device)
            for layer in layers:
                x = layer(x)
            x = x.flatten(1)
            features.append(x.cpu().numpy())
            logits.append((x @ output.weight.T).cpu().numpy())
    return {"features": np.concatenate(features), "logits": np.concatenate(logits)}


# --- VGG16


def load_vgg16(file: Path, device: str = "cpu") -> nn.Module:
    """Load VGG16 as torchvision publishes it (vgg16-397923af.pth), up to its second fully connected layer, before that
    layer's ReLU: what LANTERN takes precision and recall of. Widths are the file's, so that a stand-in may be small.
    Raises ParityError for a file that is not this network's."""
    from torchvision.models.vgg import cfgs, make_layers

    with torch.device("meta"):
        published = make_layers(cfgs["D"])
    names = [f"features.{i}.weight" for i, layer in enumerate(published) if isinstance(layer, nn.Conv2d)]
    tensors = read_shapes(file)
    try:
        *widths, hidden = (len(tensors[name]) for name in (*names, "classifier.0.weight"))
    except (KeyError, TypeError) as error:
        problem = f"not the file of this network: it lacks {error}"
        raise ParityError(f"networks.vgg16 = {str(file)!r}: {problem}") from None
    each, inputs = iter(widths), 7 * 7 * widths[-1]
    features = make_layers(["M" if layer == "M" else next(each) for layer in cfgs["D"]])
    full = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, hidden))
    net = nn.Sequential(OrderedDict(features=features, flat=nn.Flatten(), classifier=full))
    load_weights(net, file, VGG_UNREAD)
    return net.eval().to(device)


@torch.inference_mode()
def read_vgg16(net: nn.Module, images: Pixels, batch: int = 32) -> np.ndarray:
    """Compute VGG16's features float32 [n, hidden] of images, which are squeezed to a square and not cropped."""
    from torchvision import transforms

    imagenet = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    prepare = transforms.Compose([transforms.Resize([VGG_SIDE, VGG_SIDE]), transforms.ToTensor(), imagenet])
    device = next(net.parameters()).device
    groups = batches(images, batch)
    pixels = (torch.stack([prepare(Image.fromarray(image)) for image in group]) for group in groups)
    return torch.cat([net(x.to(device)).cpu() for x in pixels]).numpy()


# --- networks of images and captions


@dataclass
class Contrastive:
    """A network of images and captions in evaluation mode, with its preparation of both."""

    net: Any
    encode_images: Callable[[Tensor], Tensor]  # maps pixels [n, 3, H, W] to features [n, d]
    encode_captions: Callable[[Tensor], Tensor]  # maps ids [n, context] to features [n, d]
    prepare: Any  # maps a PIL image to pixels [3, H, W]
    tokenizer: Any  # maps captions to ids [n, context], and cuts those that are too long
    device: str = "cpu"

    @torch.inference_mode()
    def images(self, images: Pixels, batch: int = 64) -> Tensor:
        """Encode images as features [n, d] of unit length, on the CPU, `batch` at once."""
        features = []
        for group in batches(images, batch):
            pixels = torch.stack([self.prepare(Image.fromarray(image)) for image in group])
            features.append(self.encode_images(pixels.to(self.device)).float().cpu())
        return F.normalize(torch.cat(features), dim=-1)

    @torch.inference_mode()
    def captions(self, captions: Sequence[str], batch: int = 256) -> Tensor:
        """Encode captions as features [n, d] of unit length, on the CPU; one that occurs often is encoded once."""
        distinct, back = np.unique(np.asarray(captions), return_inverse=True)
        ids = self.tokenizer(distinct.tolist()).split(batch)
        features = [self.encode_captions(x.to(self.device)).float().cpu() for x in ids]
        return F.normalize(torch.cat(features), dim=-1)[torch.from_numpy(back)]

    def cosine(self, images: Pixels, captions: Sequence[str]) -> np.ndarray:
        """Compute the cosine [n], float32, of every image with its caption."""
        return (self.images(images) * self.captions(captions)).sum(-1).numpy()

    def count_cut(self, captions: Sequence[str]) -> int:
        """Count the captions that are longer than the network reads."""
        longest = self.tokenizer.context_length - 2  # it reads two tokens less, as it adds a first and a last one
        return sum(len(self.tokenizer.encode(caption)) > longest for caption in captions)


def weights_of(folder: Path, key: str) -> list[str]:
    """List the names of a folder's files of weights. Raises ParityError, which begins with `key`, if there are none."""
    try:
        return [file.name for file in parts(folder)]
    except ParityError as error:
        raise ParityError(f"{key} = {error}") from None


def load_open_clip(path: Path, architecture: str, key: str, device: str = "cpu", whole: bool = False) -> Contrastive:
    """Load open_clip's network from a folder with open_clip_config.json, or from a file of weights of a known
    `architecture`. Raises ParityError if they do not fit, or would make open_clip fetch files.

    What OpenAI trained has the activation x sigmoid(1.702 x), QuickGELU; with another its weights give other features,
    and nothing complains. A folder says which it is; of a single file the architecture's name does.

    key     what messages call it: networks.clip
    whole   images that are no squares keep their edges, on black, and are not cropped (HPSv2)
    """
    import open_clip
    from open_clip.transform import PreprocessCfg, image_transform_v2

    name, source = architecture, {"pretrained": str(path)}
    if path.is_dir():
        name, source = f"local-dir:{path}", {}
        try:
            text = foreign_json(path / CONFIG)["model_cfg"]["text_cfg"]
        except (OSError, ValueError, KeyError, TypeError):
            allowed = f"a folder with {CONFIG} and weights, or a file"
            raise ParityError(f"{key} = {str(path)!r}: allowed: {allowed}") from None
        if weights_of(path, key) != [WEIGHTS]:  # open_clip must read the file that was verified
            raise ParityError(f"{key} = {str(path)!r}: its weights are in another file; allowed: {WEIGHTS}")
        if {"hf_model_name", "hf_tokenizer_name"} & set(text):  # open_clip would download these
            raise ParityError(f"{key} = {str(path)!r}: its text side is another library's; allowed: open_clip's own")
    elif open_clip.get_model_config(architecture) is None:
        problem = f"open_clip has no such; allowed: as ViT-L-14-quickgelu, or a folder with {CONFIG}"
        raise ParityError(f"{key}.architecture = {architecture!r}: {problem}")
    try:
        net = open_clip.create_model(name, require_pretrained=True, weights_only=True, device=device, **source)
    except (RuntimeError, ValueError, OSError, KeyError, AssertionError) as error:
        problem = f"does not fit {architecture or CONFIG}: {shorten_message(error)}"
        raise ParityError(f"{key} = {str(path)!r}: {problem}") from None
    settings = {**net.visual.preprocess_cfg, **({"resize_mode": "longest", "fill_color": 0} if whole else {})}
    prepare = image_transform_v2(PreprocessCfg(**settings), is_train=False)
    tokenizer = open_clip.SimpleTokenizer(context_length=net.context_length)
    return Contrastive(net.eval(), net.encode_image, net.encode_text, prepare, tokenizer, device)


def load_pickscore(folder: Path, key: str, device: str = "cpu") -> Contrastive:
    """Load a transformers CLIPModel from a folder (Kirstain et al. 2023: CLIP-H, fine-tuned), with open_clip's copy of
    CLIP's vocabulary. Raises ParityError, in a message that begins with `key`, for another or an incomplete folder."""
    import open_clip
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from transformers import CLIPModel

    if weights_of(folder, key) == [WEIGHTS]:
        raise ParityError(f"{key} = {str(folder)!r}: holds {WEIGHTS}; allowed: a folder of transformers' CLIPModel")
    try:
        loaded: Any = CLIPModel.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except (OSError, ValueError, RuntimeError) as error:
        problem = f"not a folder of transformers' CLIPModel: {shorten_message(error)}"
        raise ParityError(f"{key} = {str(folder)!r}: {problem}") from None
    net, report = loaded
    if lacks := sorted(map(str, report["missing_keys"])):
        raise ParityError(f"{key} = {str(folder)!r}: not whole: lacks {lacks[0]} and {len(lacks) - 1} more")
    return Contrastive(
        net.eval().to(device),
        lambda pixels: net.get_image_features(pixel_values=pixels).pooler_output,
        lambda ids: net.get_text_features(input_ids=ids).pooler_output,
        image_transform_v2(PreprocessCfg(size=net.config.vision_config.image_size), is_train=False),
        open_clip.SimpleTokenizer(context_length=net.config.text_config.max_position_embeddings),
        device,
    )
