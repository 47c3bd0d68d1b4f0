"""Image models of transformers make pictures through `generate`, on random weights."""

import pytest
import torch
from transformers import Emu3Config, Emu3ForConditionalGeneration, JanusConfig, JanusForConditionalGeneration

from parity_decoders.janus import make_picture_model
from parity_decoders.transformers import ar, mtj, sjd_coupled

SIDE = 4  # visual tokens in a row of a picture
PAD, BOS, EOS, LINE_END, FILE_END, WRAPPER, IMAGE_END = 0, 1, 2, 11, 12, 13, 14
VISUAL = range(20, 52)
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def spread_weights(model):
    """Draw larger weights in place, so that laws are far from uniform; return the model."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.25)
    return model.eval()


@pytest.fixture(scope="module")
def emu3():
    """A small random Emu3 that makes pictures of tokens VISUAL."""
    names = {"<image>": 10, "<|extra_200|>": LINE_END} | {f"<|visual token {i:06}|>": t for i, t in enumerate(VISUAL)}
    vq = {"codebook_size": len(VISUAL), "embed_dim": 4, "latent_channels": 4, "base_channels": 32, "num_res_blocks": 1}
    vq |= {"channel_multiplier": [1, 1], "hidden_size": 32, "attn_resolutions": []}
    text = TEXT | {"vocab_size": 60, "num_key_value_heads": 2, "pad_token_id": PAD, "bos_token_id": BOS}
    config = Emu3Config(text_config=text | {"eos_token_id": EOS}, vq_config=vq, vocabulary_map=names)
    return spread_weights(Emu3ForConditionalGeneration(config))


def allow_picture_tokens(_, ids):
    """List the tokens that may come next: rows of visual tokens, each with its end, then the ends of the picture."""
    offset = len(ids) - int((ids == WRAPPER).nonzero()[0])
    if offset > SIDE * (SIDE + 1):
        return ([FILE_END], [IMAGE_END], [EOS], [PAD])[min(offset - SIDE * (SIDE + 1) - 1, 3)]
    return [LINE_END] if offset % (SIDE + 1) == 0 else list(VISUAL)


@pytest.mark.parametrize("decoder", [mtj, sjd_coupled])
def test_emu3_draws_plain_pictures_in_fewer_passes(emu3, decoder):
    ids = torch.tensor([[PAD, BOS, 5, 7, WRAPPER], [BOS, 5, 6, 8, WRAPPER]])
    keywords = {
        "attention_mask": (ids != PAD).long(),
        "max_new_tokens": SIDE * (SIDE + 1) + 3,
        "prefix_allowed_tokens_fn": allow_picture_tokens,
        "guidance_scale": 2.0,
        "negative_prompt_ids": torch.tensor([[BOS, 9, WRAPPER]] * 2),
        "negative_prompt_attention_mask": torch.ones(2, 3, dtype=torch.long),
        "do_sample": True,
        "return_dict_in_generate": True,
        "seed": 3,
    }
    plain = emu3.generate(ids, **keywords, custom_generate=ar)
    fast = emu3.generate(ids, **keywords, custom_generate=decoder, window=8, width=SIDE + 1)
    assert torch.equal(fast.sequences, plain.sequences)
    assert (fast.passes < plain.passes).all()
    tokens = fast.sequences[:, ids.shape[1] :]
    pixels = emu3.decode_image_tokens(image_tokens=tokens, height=SIDE, width=SIDE)
    assert torch.isfinite(pixels).all()


@pytest.fixture(scope="module")
def janus():
    """A small random Janus that makes pictures of SIDE x SIDE tokens."""
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 16}
    vision |= {"projection_dim": TEXT["hidden_size"], "num_image_tokens": SIDE * SIDE}
    vq = {"embed_dim": 8, "num_embeddings": 24, "latent_channels": 8, "base_channels": 32, "num_res_blocks": 1}
    vq |= {"channel_multiplier": (1, 1), "num_patches": SIDE, "projection_dim": TEXT["hidden_size"]}
    vq |= {"image_token_embed_dim": TEXT["hidden_size"]}
    text = TEXT | {"model_type": "llama", "vocab_size": 40, "pad_token_id": PAD, "bos_token_id": BOS}
    model = JanusForConditionalGeneration(JanusConfig(text_config=text, vision_config=vision, vq_config=vq))
    model.generation_config.generation_kwargs = {"boi_token_id": WRAPPER}
    return spread_weights(model)


def test_janus_draws_what_its_own_generate_draws(janus):
    """With greedy sampling, where no random number enters, guided as by its own loop."""
    ids = torch.tensor([[PAD, BOS, 5, 7, WRAPPER], [BOS, 5, 6, 8, WRAPPER]])
    mask = torch.ones_like(ids)  # all ones, as Janus' own loop reads the padding
    keywords = {"pad_token_id": PAD, "bos_token_id": BOS, "do_sample": False}
    expected = janus.generate(ids, attention_mask=mask, generation_mode="image", guidance_scale=3.0, **keywords)
    pictures = make_picture_model(janus)
    empty = torch.where((ids == BOS) | (ids == WRAPPER), ids, PAD)
    guidance = {"guidance_scale": 3.0, "negative_prompt_ids": empty, "negative_prompt_attention_mask": mask}
    keywords |= {"max_new_tokens": SIDE * SIDE, "attention_mask": mask}
    for decoder, options in ((ar, {}), (sjd_coupled, {"window": 8, "width": SIDE})):
        tokens = pictures.generate(ids, **keywords, **guidance, custom_generate=decoder, **options)
        assert torch.equal(tokens[:, ids.shape[1] :] - pictures.first_token, expected), decoder.__name__


def test_janus_with_a_picture_model_still_reads_text(janus):
    ids = torch.tensor([[BOS, 5, 6]])
    logits = janus(input_ids=ids).logits
    make_picture_model(janus)
    assert torch.equal(janus(input_ids=ids).logits, logits)
    assert janus.get_input_embeddings().weight.shape[0] == 40
