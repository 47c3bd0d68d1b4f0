"""A CLIP as open_clip's repositories hold it (timm/vit_base_patch16_clip_224.openai): open_clip_config.json beside
open_clip_model.safetensors, with OpenAI's activation. Random, of two layers; its words are CLIP's."""

import json
from pathlib import Path

import torch

CONFIG = {
    "embed_dim": 32,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}
PREPARED = {  # as the published folder says it
    "mean": [0.48145466, 0.4578275, 0.40821073],
    "std": [0.26862954, 0.26130258, 0.27577711],
}


def write(folder: Path) -> dict[str, str]:
    """{"clip": a folder}, half of its three megabytes the vocabulary's."""
    import open_clip
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = open_clip.CLIP(**CONFIG)
    here = folder / "clip"
    here.mkdir(parents=True, exist_ok=True)
    (here / "open_clip_config.json").write_text(json.dumps({"model_cfg": CONFIG, "preprocess_cfg": PREPARED}))
    tensors = {k: v.contiguous() for k, v in net.state_dict().items()}
    save_file(tensors, here / "open_clip_model.safetensors")
    return {"clip": "clip"}
