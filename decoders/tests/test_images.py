"""`image_model` of each image model of transformers, on random weights: grammar, pixels, and what is refused."""

import random

import pytest
import torch
from decoders.tests.image_models import BEGIN, BOS, LINE, PAD, Chameleon, Emu3, GlmImage, ImageGPT, Janus, Liquid
from transformers import LlamaConfig, LlamaForCausalLM

from parity_decoders.errors import DecodingError
from parity_decoders.images import image_model
from parity_decoders.transformers import ar, mtj, sjd_coupled

SIDE = 4
PROMPTS = {
    "input_ids": torch.tensor([[PAD, BOS, 5, 7, BEGIN], [BOS, 5, 6, 8, BEGIN]]),
    "attention_mask": torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]),
}
EMPTY = {"input_ids": torch.tensor([[BOS, 9, BEGIN]] * 2), "attention_mask": torch.ones(2, 3, dtype=torch.long)}


@pytest.fixture(scope="module")
def emu3():
    return Emu3().owner


def allow_tokens(_, ids):
    """List the tokens that may come next in an Emu3 image, as a function of the prefix."""
    offset = len(ids) - PROMPTS["input_ids"].shape[1] + 1
    return [LINE] if offset % (SIDE + 1) == 0 else list(Emu3.tokens)


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_grammar_allows_what_a_function_of_the_prefix_allows(emu3, do_sample):
    images = image_model(emu3, rows=SIDE, columns=SIDE)
    request = images.make_request(PROMPTS, EMPTY) | {"do_sample": do_sample, "pad_token_id": PAD}
    by_function = {key: value for key, value in request.items() if key != "logits_processor"}
    by_function["prefix_allowed_tokens_fn"] = allow_tokens
    torch.manual_seed(0)
    plain = emu3.generate(**request)
    torch.manual_seed(0)
    assert torch.equal(emu3.generate(**by_function), plain)
    options = {"custom_generate": sjd_coupled, "window": 8, "seed": 3}
    fast = emu3.generate(**request, **options)
    assert torch.equal(emu3.generate(**by_function, **options, width=SIDE + 1), fast)
    assert do_sample or torch.equal(fast, plain)
    wrong = image_model(emu3, rows=SIDE, columns=SIDE + 1).make_request(PROMPTS, EMPTY)
    assert not torch.equal(emu3.generate(**request | wrong, **options)[:, : plain.shape[1]], fast)


@pytest.mark.parametrize("decoder", [mtj, sjd_coupled])
def test_emu3_draws_plain_images_in_fewer_passes(emu3, decoder):
    images = image_model(emu3, rows=SIDE, columns=SIDE)
    request = images.make_request(PROMPTS, EMPTY) | {"do_sample": True, "return_dict_in_generate": True, "seed": 3}
    plain = emu3.generate(**request, pad_token_id=PAD, custom_generate=ar)
    fast = emu3.generate(**request, pad_token_id=PAD, custom_generate=decoder, window=8)
    assert torch.equal(fast.sequences, plain.sequences)
    assert (fast.passes < plain.passes).all()
    tokens = fast.sequences[:, -images.length :]
    pixels = images.decode(tokens)
    ends = torch.full((2, 3), 12)  # its own function wants three tokens after the rows
    own = emu3.decode_image_tokens(image_tokens=torch.cat([tokens, ends], 1), height=SIDE, width=SIDE)
    assert torch.equal(pixels, own.clamp(-1, 1) / 2 + 0.5)
    assert pixels.shape == (2, 3, 2 * SIDE, 2 * SIDE)


@pytest.fixture(scope="module")
def janus():
    return Janus().owner


def test_janus_draws_what_its_own_generate_draws(janus):
    """With greedy sampling, where no random number enters, guided as its own loop guides."""
    ids = PROMPTS["input_ids"]
    mask = torch.ones_like(ids)  # all ones, as Janus' own loop reads the padding
    keywords = {"pad_token_id": PAD, "bos_token_id": BOS, "do_sample": False}
    expected = janus.generate(ids, attention_mask=mask, generation_mode="image", guidance_scale=3.0, **keywords)
    images = image_model(janus)
    empty = torch.where((ids == BOS) | (ids == BEGIN), ids, PAD)
    request = images.make_request(
        {"input_ids": ids, "attention_mask": mask}, {"input_ids": empty, "attention_mask": mask}
    )
    for decoder, options in ((ar, {}), (sjd_coupled, {"window": 8})):
        given = request | {"guidance_scale": 3.0, "do_sample": False} | options
        tokens = images.model.generate(**given, custom_generate=decoder)[:, -images.length :]
        assert torch.equal(tokens - 40, expected), decoder.__name__
    assert torch.equal(images.decode(tokens), janus.decode_image_tokens(expected).movedim(3, 1).clamp(-1, 1) / 2 + 0.5)


def test_models_with_an_image_model_still_read_text(janus):
    for owner, make in ((janus, lambda: image_model(janus)), ((c := Chameleon()).owner, c.make_images)):
        ids = torch.tensor([[BOS, 5, 6]])
        logits = owner(input_ids=ids).logits
        make() if owner is janus else make(random.Random(0))
        assert torch.equal(owner(input_ids=ids).logits, logits)
    assert janus.get_input_embeddings().weight.shape[0] == 40


def test_chameleon_draws_codes_of_its_image_tokenizer():
    owner = Chameleon().owner
    images = image_model(owner, rows=2, columns=3, separator=LINE)
    tokens = torch.tensor([[20, 21, 22, LINE, 43, 42, 41, LINE]])
    assert images.decode(tokens).tolist() == [[[0, 1, 2], [23, 22, 21]]]
    assert images.forced.tolist() == [-1, -1, -1, LINE] * 2
    drawn = images.model.generate(**images.make_request(PROMPTS), do_sample=True, custom_generate=sjd_coupled, seed=1)
    rows = drawn[:, -images.length :].view(2, 2, 4)
    assert bool((rows[..., 3] == LINE).all())
    assert bool(((rows[..., :3] >= 20) & (rows[..., :3] < 44)).all())
    pixels = image_model(owner, rows=2, columns=3, separator=LINE, decode_codes=lambda codes: codes / 23)
    assert float(pixels.decode(tokens).max()) == 1


def test_imagegpt_draws_colours():
    case = ImageGPT()
    clusters = torch.tensor([[-1.0, 0.0, 1.0]] * 40)
    images = image_model(case.owner, clusters=clusters, rows=4, columns=4)
    request = images.make_request(case.make_prompts([[], []]))
    plain = case.owner.generate(**request, do_sample=False, pad_token_id=0)
    for decoder in (ar, mtj):
        drawn = images.model.generate(**request, do_sample=False, pad_token_id=0, custom_generate=decoder)
        assert torch.equal(drawn, plain)
    pixels = images.decode(drawn[:, -16:])
    assert pixels.shape == (2, 3, 4, 4)
    assert pixels[0, :, 0, 0].tolist() == [0.0, 0.5, 1.0]
    with pytest.raises(DecodingError, match="differ from its own forward"):  # its own mask is a row's alone
        case.owner.generate(**request, do_sample=True, custom_generate=sjd_coupled)


def test_liquid_draws_what_its_authors_loop_draws():
    """They guide the logits as they are, leave out the words, and draw; here the likeliest code each time."""
    case = Liquid()
    images = image_model(case.owner, rows=2, columns=3, n_words=20)
    rows = {"cond": PROMPTS["input_ids"][1:], "uncond": torch.tensor([[9, BEGIN]])}
    expected = []
    for _ in range(6):
        c, u = (case.owner(input_ids=ids).logits[:, -1] for ids in rows.values())
        guided = u + 7.0 * (c - u)
        guided[:, :20] = -torch.inf
        expected.append(guided.argmax(1))
        rows = {name: torch.cat([ids, expected[-1][:, None]], 1) for name, ids in rows.items()}
    inputs = {key: value[1:] for key, value in PROMPTS.items()}
    request = images.make_request(inputs, {"input_ids": torch.tensor([[9, BEGIN]])})
    for decoder in (ar, sjd_coupled):
        drawn = case.owner.generate(**request, do_sample=False, custom_generate=decoder)[:, -6:]
        assert torch.equal(drawn[0], torch.cat(expected))
    assert torch.equal(images.decode(drawn), torch.cat(expected).view(1, 2, 3) - 20)
    with pytest.raises(DecodingError, match="n_words: 256000 of a vocabulary of 52"):  # a Gemma of texts
        image_model(case.owner)


def test_glm_image_draws_what_the_pipeline_upsamples():
    case = GlmImage()
    images = image_model(case.model, rows=2, columns=3, preview=(1, 2))
    tokens = torch.arange(9)[None]  # preview, image, end
    expected = [2, 2, 3, 3, 4, 4] * 2 + [5, 5, 6, 6, 7, 7] * 2
    assert images.length == 9
    assert images.decode(tokens).tolist() == [expected]
    grids = torch.tensor([[1, 2, 3], [1, 1, 2]])
    inputs = {"input_ids": torch.tensor([[60, 40]]), "image_grid_thw": grids, "images_per_sample": torch.tensor([2])}
    request = images.make_request(inputs)
    with pytest.raises(DecodingError, match="pixel_values without image_grid_thw"):
        images.make_request({"input_ids": inputs["input_ids"], "pixel_values": torch.zeros(1, case.patch)})
    for sizes in ([[1, 3, 2], [1, 1, 2]], [[1, 2, 3], [1, 2, 2]], [[1, 2, 3]]):
        with pytest.raises(DecodingError, match=r"image_grid_thw: .* for an image model of 9 tokens, 3 in a row"):
            images.make_request(inputs | {"image_grid_thw": torch.tensor(sizes), "images_per_sample": None})
    from_source = image_model(case.model, rows=2, columns=3, preview=None)
    source = {"pixel_values": torch.zeros(1, case.patch), "images_per_sample": torch.tensor([2])}
    from_source.make_request(inputs | source | {"image_grid_thw": torch.tensor([[1, 1, 1], [1, 2, 3]])})
    drawn = case.model.generate(**request, do_sample=False, custom_generate=sjd_coupled)
    assert torch.equal(drawn, case.model.generate(**request, do_sample=False))


def test_what_is_no_image_model_is_one_line(emu3):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes))
    with pytest.raises(DecodingError, match="model_type 'llama'; allowed: Emu3, chameleon, emu3, gemma, glm_image"):
        image_model(text)
    with pytest.raises(DecodingError, match="image_model: height; allowed: rows, columns"):
        image_model(emu3, height=720)
    for owner in (emu3, Chameleon().owner):
        with pytest.raises(DecodingError, match="image_model: rows: 0; allowed: int, ge 1"):
            image_model(owner, rows=0)
    with pytest.raises(DecodingError, match=r"clusters of shape \[3, 3\]; allowed: \[40, 3\]"):
        image_model(ImageGPT().owner, clusters=torch.zeros(3, 3))


def test_requests_that_do_not_fit_the_grammar_are_one_line(emu3):
    images = image_model(emu3, rows=2, columns=2)
    with pytest.raises(DecodingError, match="unconditional: input_ids of 1 rows; allowed: 2"):
        images.make_request(PROMPTS, {"input_ids": EMPTY["input_ids"][:1]})
    images.make_request(PROMPTS | {"image_sizes": [[2, 2], [2, 2]]})
    with pytest.raises(DecodingError, match=r"image_sizes: \[2, 3\]; allowed: \[2, 2\]"):
        images.make_request(PROMPTS | {"image_sizes": [[2, 2], [2, 3]]})
    request = images.make_request(PROMPTS) | {"do_sample": True, "custom_generate": sjd_coupled}
    for change, message in (
        ({"max_new_tokens": 7}, "max_new_tokens 7 for an image of 6 tokens"),
        ({"input_ids": PROMPTS["input_ids"][:, 1:], "attention_mask": None}, "input_ids of 4 columns with a grammar"),
        ({"width": 3}, "width: 3; allowed: none"),
    ):
        with pytest.raises(DecodingError, match=message):
            emu3.generate(**request | change)
