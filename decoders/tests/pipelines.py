"""A small GLM-Image pipeline of diffusers with random weights, made without files."""

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from decoders.tests.image_models import GlmImage, spread_weights
from tokenizers import Tokenizer, models, pre_tokenizers

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 "
TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<start><place><end>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)


def make_processor(case: GlmImage) -> Any:
    """Make a processor for the small model: a token a letter, and source images of any size."""
    ids = {f"<unused{n}>": n for n in range(case.model.config.text_config.vocab_size)}
    names = {"<start>": case.START, "<end>": case.END, "<place>": case.PLACE, "<pad>": case.PAD}
    names |= {"<sop>": 91, "<eop>": 92, "?": 93} | {letter: 50 + n for n, letter in enumerate(LETTERS)}
    kept = {name: n for name, n in ids.items() if n not in names.values()}
    tokens = Tokenizer(models.WordLevel(kept | names, unk_token="?"))
    tokens.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = {"image_token": "<place>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokens, bos_token="<start>", eos_token="<end>", pad_token="<pad>", unk_token="?",
        extra_special_tokens=special, padding_side="left", chat_template=TEMPLATE,
    )  # fmt: skip
    patch = case.model.config.vision_config.patch_size
    images = hf.GlmImageImageProcessor(
        patch_size=patch, merge_size=1, temporal_patch_size=1, size={"shortest_edge": 32**2, "longest_edge": 512**2}
    )
    return hf.GlmImageProcessor(images, tokenizer, chat_template=TEMPLATE)


def make_pipeline() -> Any:
    """Make a pipeline whose language model never draws a token that is no code, the end token neither."""
    import diffusers

    case = GlmImage(patch_size=16)
    case.model.generation_config.suppress_tokens = list(range(case.CODES, 48))
    torch.manual_seed(1)
    text = hf.T5Config(vocab_size=384, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    transformer = diffusers.GlmImageTransformer2DModel(
        in_channels=4, out_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=1, text_embed_dim=16,
        time_embed_dim=16, condition_dim=8, prior_vq_quantizer_codebook_size=case.CODES,
    )  # fmt: skip
    vae = diffusers.AutoencoderKL(
        block_out_channels=(4, 4, 4, 4), norm_num_groups=2, latent_channels=4, latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4, down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    )  # fmt: skip
    pipe = diffusers.GlmImagePipeline(
        tokenizer=hf.ByT5Tokenizer(),
        processor=make_processor(case),
        text_encoder=hf.T5EncoderModel(text).eval(),
        vision_language_encoder=case.model,
        vae=vae.eval(),
        transformer=spread_weights(transformer),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def write_pipeline(folder: Path) -> None:
    """Write the pipeline to a folder, in the layout in which GLM-Image is published."""
    make_pipeline().save_pretrained(folder)
