"""Networks of metrics as they are published, and images to compare with, random."""

import json
from functools import partial
from pathlib import Path

import torch
from torch import nn

from parity.base.files import write_arrays

WRITES = ("clip", "clip_vision", "hps", "inception", "pickscore", "reference_images", "vgg16")
CLIP = {
    "embed_dim": 32,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}
CLIP_PREPROCESSING = {  # the published folder has these means and deviations of pixels too
    "mean": [0.48145466, 0.4578275, 0.40821073],
    "std": [0.26862954, 0.26130258, 0.27577711],
}
VGG_WIDTH, VGG_CLASSES = 8, 1000
REFERENCE_IMAGES, REFERENCE_SIDE = 16, 64


def clip(folder: Path, part: str = "clip") -> dict[str, str]:
    """Write a random CLIP to the folder `part` as open_clip's repositories hold it, with OpenAI's activation and CLIP's
    vocabulary, whose embeddings are half of its three megabytes. Return {part: name of the folder}."""
    import open_clip
    from safetensors.torch import save_file

    (folder / part).mkdir(parents=True, exist_ok=True)
    config = {"model_cfg": CLIP, "preprocess_cfg": CLIP_PREPROCESSING}
    (folder / part / "open_clip_config.json").write_text(json.dumps(config))
    tensors = {k: v.contiguous() for k, v in open_clip.CLIP(**CLIP).state_dict().items()}
    save_file(tensors, folder / part / "open_clip_model.safetensors")
    return {part: part}


clip_vision = partial(clip, part="clip_vision")  # this writes a stand-in for the network that the metric CMMD uses
hps = partial(clip, part="hps")  # stands for HPSv2's pickle of a ViT-H-14, which has no small form; one code reads both


def inception(folder: Path) -> dict[str, str]:
    """Write a random Inception as torch-fidelity publishes it, a pickle of tensors; return {"inception": its name}. Its
    layout has one size, so the file is as large as the real one, 95 MB."""
    from torch_fidelity import feature_extractor_inceptionv3 as published

    conv = published.BasicConv2d
    a = published.InceptionA
    c = published.InceptionC
    layers = {  # Inception's other layers have no parameters
        "Conv2d_1a_3x3": conv(3, 32, kernel_size=3, stride=2),
        "Conv2d_2a_3x3": conv(32, 32, kernel_size=3),
        "Conv2d_2b_3x3": conv(32, 64, kernel_size=3, padding=1),
        "Conv2d_3b_1x1": conv(64, 80, kernel_size=1),
        "Conv2d_4a_3x3": conv(80, 192, kernel_size=3),
        **{f"Mixed_5{x}": a(n, pool_features=p) for x, n, p in (("b", 192, 32), ("c", 256, 64), ("d", 288, 64))},
        "Mixed_6a": published.InceptionB(288),
        **{f"Mixed_6{x}": c(768, channels_7x7=n) for x, n in (("b", 128), ("c", 160), ("d", 160), ("e", 192))},
        "Mixed_7a": published.InceptionD(768),
        "Mixed_7b": published.InceptionE_1(1280),
        "Mixed_7c": published.InceptionE_2(2048),
        "fc": nn.Linear(2048, 1008),
    }
    return save(nn.ModuleDict(layers), folder, "inception", "pt_inception-2015-12-05-6726825d.pth")


def save(net: nn.Module, folder: Path, component: str, file: str) -> dict[str, str]:
    """Draw a network's convolutions anew, so that images differ in its last layer too; pickle its tensors to
    `file`."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), folder / file)
    return {component: file}


def pickscore(folder: Path) -> dict[str, str]:
    """Write a random PickScore, a CLIPModel of transformers with CLIP's words; return {"pickscore": its folder}."""
    from transformers import CLIPConfig, CLIPModel

    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "projection_dim": 24}
    text = {"vocab_size": 49408, "hidden_size": 16, "eos_token_id": 49407, "bos_token_id": 49406, **layers}
    vision = {"image_size": 32, "patch_size": 16, "hidden_size": 32, **layers}
    net = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))
    net.save_pretrained(folder / "pickscore")
    return {"pickscore": "pickscore"}


def reference_images(folder: Path) -> dict[str, str]:
    """Write random smooth images to compare with, in ADM's layout without its statistics; return
    {"reference_images": name of the .npz}."""
    coarse = torch.rand(REFERENCE_IMAGES, 3, 4, 4)
    smooth = nn.functional.interpolate(coarse, size=REFERENCE_SIDE, mode="bicubic", align_corners=False).clamp(0, 1)
    write_arrays(folder / "random-images.npz", arr_0=(255 * smooth).round().byte().permute(0, 2, 3, 1).numpy())
    return {"reference_images": "random-images.npz"}


def vgg16(folder: Path) -> dict[str, str]:
    """Write a random VGG-16 as torchvision publishes it: bare tensors of all sixteen layers, of 8 channels where the
    real ones have 64 to 512 and 4096. Return {"vgg16": name of the file}."""
    from torchvision.models.vgg import cfgs, make_layers

    linear = {"0": (VGG_WIDTH * 7 * 7, VGG_WIDTH), "3": (VGG_WIDTH, VGG_WIDTH), "6": (VGG_WIDTH, VGG_CLASSES)}
    layers = {
        "features": make_layers(["M" if layer == "M" else VGG_WIDTH for layer in cfgs["D"]]),
        "classifier": nn.ModuleDict({name: nn.Linear(*sizes) for name, sizes in linear.items()}),
    }
    return save(nn.ModuleDict(layers), folder, "vgg16", "vgg16-397923af.pth")
