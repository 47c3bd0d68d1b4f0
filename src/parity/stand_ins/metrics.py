"""Networks of metrics as they are published, random."""

import json
from pathlib import Path

import torch

WRITES = ("clip", "clip_vision", "hps", "inception", "pickscore", "vgg16")
CLIP = {
    "embed_dim": 32,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}
CLIP_PREPROCESSING = {  # as the published folder says it
    "mean": [0.48145466, 0.4578275, 0.40821073],
    "std": [0.26862954, 0.26130258, 0.27577711],
}
VGG_WIDTH, VGG_CLASSES = 8, 1000


def clip(folder: Path) -> dict[str, str]:
    """As open_clip's repositories hold it (timm/vit_base_patch16_clip_224.openai), with OpenAI's activation and CLIP's
    words, whose embeddings are half of its three megabytes."""
    import open_clip
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = open_clip.CLIP(**CLIP)
    own = folder / "clip"
    own.mkdir(parents=True, exist_ok=True)
    (own / "open_clip_config.json").write_text(json.dumps({"model_cfg": CLIP, "preprocess_cfg": CLIP_PREPROCESSING}))
    tensors = {k: v.contiguous() for k, v in net.state_dict().items()}
    save_file(tensors, own / "open_clip_model.safetensors")
    return {"clip": "clip"}


def clip_vision(folder: Path) -> dict[str, str]:
    """The network of CMMD: a CLIP."""
    return {"clip_vision": f"clip_vision/{clip(folder / 'clip_vision')['clip']}"}


def hps(folder: Path) -> dict[str, str]:
    """In the place of HPSv2's, published as one pickle of ViT-H-14, which has no small form: a folder of open_clip's,
    which is read by the same code."""
    return {"hps": f"hps/{clip(folder / 'hps')['clip']}"}


def inception(folder: Path) -> dict[str, str]:
    """As torch-fidelity publishes it, a pickle of tensors. Its layout has one size, so this one is as large as the real
    file, 95 MB."""
    from torch_fidelity import feature_extractor_inceptionv3 as published

    folder.mkdir(parents=True, exist_ok=True)
    blocks = published.FeatureExtractorInceptionV3.__new__(published.FeatureExtractorInceptionV3)
    torch.nn.Module.__init__(blocks)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, made in inception_layers(published).items():
            setattr(blocks, name, made)
        for module in blocks.modules():
            if isinstance(module, torch.nn.Conv2d):  # so that features differ in the last layer too
                torch.nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    torch.save(blocks.state_dict(), folder / (file := "pt_inception-2015-12-05-6726825d.pth"))
    return {"inception": file}


def inception_layers(published) -> dict[str, torch.nn.Module]:
    """Those that have parameters, by the names and with the sizes of the published file."""
    conv = published.BasicConv2d
    return {
        "Conv2d_1a_3x3": conv(3, 32, kernel_size=3, stride=2),
        "Conv2d_2a_3x3": conv(32, 32, kernel_size=3),
        "Conv2d_2b_3x3": conv(32, 64, kernel_size=3, padding=1),
        "Conv2d_3b_1x1": conv(64, 80, kernel_size=1),
        "Conv2d_4a_3x3": conv(80, 192, kernel_size=3),
        "Mixed_5b": published.InceptionA(192, pool_features=32),
        "Mixed_5c": published.InceptionA(256, pool_features=64),
        "Mixed_5d": published.InceptionA(288, pool_features=64),
        "Mixed_6a": published.InceptionB(288),
        "Mixed_6b": published.InceptionC(768, channels_7x7=128),
        "Mixed_6c": published.InceptionC(768, channels_7x7=160),
        "Mixed_6d": published.InceptionC(768, channels_7x7=160),
        "Mixed_6e": published.InceptionC(768, channels_7x7=192),
        "Mixed_7a": published.InceptionD(768),
        "Mixed_7b": published.InceptionE_1(1280),
        "Mixed_7c": published.InceptionE_2(2048),
        "fc": torch.nn.Linear(2048, 1008),
    }


def pickscore(folder: Path) -> dict[str, str]:
    """As its repository holds it, transformers' CLIPModel of two layers with CLIP's words."""
    from transformers import CLIPConfig, CLIPModel

    text = {
        "vocab_size": 49408, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "projection_dim": 24, "eos_token_id": 49407, "bos_token_id": 49406,
    }  # fmt: skip
    vision = {
        "image_size": 32, "patch_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "projection_dim": 24,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))
    net.save_pretrained(folder / "pickscore")
    return {"pickscore": "pickscore"}


def vgg16(folder: Path) -> dict[str, str]:
    """As torchvision publishes it: bare tensors by its names, all sixteen layers, of 8 channels where the real ones
    have 64 to 512 and 4096."""
    from torchvision.models.vgg import VGG, cfgs, make_layers

    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = VGG.__new__(VGG)
        torch.nn.Module.__init__(net)
        net.features = make_layers(["M" if layer == "M" else VGG_WIDTH for layer in cfgs["D"]])
        linear = {"0": (VGG_WIDTH * 7 * 7, VGG_WIDTH), "3": (VGG_WIDTH, VGG_WIDTH), "6": (VGG_WIDTH, VGG_CLASSES)}
        net.classifier = torch.nn.ModuleDict({name: torch.nn.Linear(*sizes) for name, sizes in linear.items()})
        for module in net.modules():
            if isinstance(module, torch.nn.Conv2d):  # so that features differ in the last layer too
                torch.nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    torch.save(net.state_dict(), folder / (file := "vgg16-397923af.pth"))
    return {"vgg16": file}
