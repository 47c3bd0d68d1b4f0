"""A pipeline of diffusers with a decoder draws the image of plain decoding, and without it is as before."""

import importlib.util
import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from decoders.tests.pipelines import make_pipeline
from PIL import Image
from transformers import GlmImageProcessor

from parity_decoders import transformers as decoders
from parity_decoders.diffusers import use_decoder
from parity_decoders.errors import DecodingError

# not `importorskip`, since every worker that collects this file would import diffusers, for ten seconds
pytestmark = pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="needs diffusers")
HEIGHT, WIDTH = 128, 96  # 4 x 3 tokens, after a preview of 3 x 2
PREVIEW, TOKENS = 3 * 2, 3 * 2 + 4 * 3 + 1


@pytest.fixture
def pipe(monkeypatch):
    """A small pipeline with random weights, and a preview of fewer tokens than the usual 256."""
    size = staticmethod(lambda height, width: (height // 32, width // 32, height // 40, width // 40))
    monkeypatch.setattr(GlmImageProcessor, "_get_target_shape", size)
    return make_pipeline()


def draw(pipe, seed=1, prompt="a photo of a red fox", **options):
    """Draw images [B, H, W, 3] with a generator's seed."""
    generator = torch.Generator().manual_seed(seed)
    options = {"height": HEIGHT, "width": WIDTH, "num_inference_steps": 2, "output_type": "np"} | options
    images = pipe(prompt, generator=generator, **options).images
    assert np.isfinite(images).all()
    assert images.shape[1:] == (HEIGHT, WIDTH, 3)
    return images


def draw_tokens(pipe, seed, prompt="a photo of a red fox"):
    """Draw the image tokens [B, n] that the pipeline hands to its diffusion model."""
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    return pipe.generate_prior_tokens(prompt, HEIGHT, WIDTH, generator=generator)[0]


@pytest.mark.parametrize("prompt", ["a photo of a red fox", ["a fox", "two cats on a mat"]])
def test_a_window_draws_the_pixels_of_plain_decoding(pipe, prompt):
    use_decoder(pipe, decoders.ar)
    expected = draw(pipe, prompt=prompt)
    use_decoder(pipe, decoders.sjd_coupled, window=16)  # in place of the first
    assert np.array_equal(draw(pipe, prompt=prompt), expected)
    assert len(expected) == (1 if isinstance(prompt, str) else 2)
    assert not np.array_equal(draw(pipe, prompt=prompt, seed=2), expected)


def test_the_most_likely_tokens_are_those_of_the_pipeline_itself(pipe):
    pipe.vision_language_encoder.generation_config.top_k = 1
    expected = draw(pipe)
    use_decoder(pipe, decoders.sjd_coupled, window=16)
    assert np.array_equal(draw(pipe), expected)
    pipe.vision_language_encoder.generation_config.top_k = 50
    assert not np.array_equal(draw(pipe), expected)


def test_without_a_decoder_the_pipeline_is_as_before(pipe):
    expected = draw(pipe)
    use_decoder(pipe, decoders.sjd_coupled, window=16)
    assert "generate" in vars(pipe.vision_language_encoder)
    assert not np.array_equal(draw(pipe), expected)  # as random numbers are drawn in another way
    use_decoder(pipe, None)
    assert "generate" not in vars(pipe.vision_language_encoder)
    assert np.array_equal(draw(pipe), expected)
    use_decoder(pipe, None)


@pytest.mark.parametrize("decoder", [None, decoders.sjd_coupled])
def test_the_seed_of_the_generator_decides_the_tokens(pipe, decoder):
    """A generator that is used again gives the same tokens: the pipeline reads the seed that it began with."""
    use_decoder(pipe, decoder)
    generator = torch.Generator().manual_seed(5)
    tokens = draw_tokens(pipe, generator)
    torch.randn(9, generator=generator)
    assert torch.equal(draw_tokens(pipe, generator), tokens)
    assert torch.equal(draw_tokens(pipe, 5), tokens)
    assert not torch.equal(draw_tokens(pipe, 6), tokens)


def test_without_a_generator_calls_differ(pipe):
    use_decoder(pipe, decoders.sjd_coupled)
    one, other = (pipe.generate_prior_tokens("a fox", HEIGHT, WIDTH)[0] for _ in range(2))
    assert not torch.equal(one, other)


def test_several_images_of_a_prompt_share_their_tokens(pipe):
    use_decoder(pipe, decoders.ar)
    expected = draw(pipe, num_images_per_prompt=2)
    use_decoder(pipe, decoders.sjd_coupled, window=16)
    assert np.array_equal(draw(pipe, num_images_per_prompt=2), expected)


def make_source(seed, height=64, width=96):
    """Make a source image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture
def editing(pipe, monkeypatch):
    """A pipeline that takes source images: diffusers 0.42 concatenates what transformers 5.23 wants in a list."""
    model = pipe.vision_language_encoder
    channels = model.config.vision_config.hidden_size
    read = model.get_image_tokens
    monkeypatch.setattr(model, "get_image_tokens", lambda features, grids=None: read(
        features.split(channels) if torch.is_tensor(features) else features))  # fmt: skip
    return pipe


SOURCES = {
    "one": ("a fox", [make_source(1)]),
    "two": ("a fox", [make_source(1), make_source(2)]),
    "batch": (["a fox", "two cats"], [[make_source(1), make_source(2)], [make_source(3), make_source(4)]]),
}


@pytest.mark.parametrize("sources", SOURCES)
def test_source_images_are_read(editing, sources):
    prompt, image = SOURCES[sources]
    use_decoder(editing, decoders.ar)
    expected = draw(editing, prompt=prompt, image=image)
    use_decoder(editing, decoders.sjd_coupled, window=8)
    assert np.array_equal(draw(editing, prompt=prompt, image=image), expected)
    assert not np.array_equal(draw(editing, prompt=prompt, image=image[::-1] if len(image) > 1 else [make_source(9)]),
                              expected)  # fmt: skip


def test_a_bar_counts_tokens(pipe):
    shown = io.StringIO()
    pipe.set_progress_bar_config(file=shown, mininterval=0)
    use_decoder(pipe, decoders.sjd_coupled, window=16)
    draw(pipe, prompt=["a fox", "two cats"])
    assert f"{TOKENS}/{TOKENS} " in shown.getvalue()
    assert "2/2 " in shown.getvalue()  # the pipeline's own, of denoising
    shown.seek(0), shown.truncate()
    use_decoder(pipe, None)
    draw(pipe)
    assert f"/{TOKENS} " not in shown.getvalue()


def test_the_bar_stops_at_an_end_token(pipe):
    shown = io.StringIO()
    pipe.set_progress_bar_config(file=shown, mininterval=0)
    use_decoder(pipe, decoders.sjd_coupled, window=16)
    model = pipe.vision_language_encoder
    inputs = {"input_ids": torch.tensor([[60, 40]]), "image_grid_thw": torch.tensor([[1, 4, 3], [1, 2, 2]])}
    out = model.generate(**inputs, max_new_tokens=17, do_sample=True, eos_token_id=list(range(20)))
    drawn = out.shape[1] - 2
    assert drawn < 17
    assert f"{drawn}/17 " in shown.getvalue()
    assert f"{drawn + 1}/17 " not in shown.getvalue()


def test_options_are_those_of_the_decoder(pipe):
    put = []
    streamer = SimpleNamespace(put=put.append, end=lambda: put.append("end"))
    use_decoder(pipe, decoders.mtj, window=3, stream=streamer)
    tokens = draw_tokens(pipe, 1)
    assert len(put) == 1 + TOKENS + 1
    large = torch.cat(put[1 + PREVIEW : -2]).view(4, 3)
    assert torch.equal(large.repeat_interleave(2, 0).repeat_interleave(2, 1).flatten(), tokens[0])


def test_it_runs_in_bfloat16(pipe):
    pipe.to(torch.bfloat16)
    use_decoder(pipe, decoders.sjd_coupled, window=16)
    draw(pipe)


def test_an_offloaded_model_is_called_to_its_device(pipe):
    """As `enable_model_cpu_offload` hangs in: the model moves when its hook is called, and hooks run with forward."""
    moved = []
    pipe.vision_language_encoder._hf_hook = SimpleNamespace(pre_forward=moved.append)
    use_decoder(pipe, decoders.sjd_coupled)
    draw(pipe)
    assert len(moved) == 1
    assert moved[0] is pipe.vision_language_encoder


def test_a_pipeline_with_a_decoder_is_saved(pipe, tmp_path):
    import diffusers

    use_decoder(pipe, decoders.sjd_coupled, window=16)
    expected = draw(pipe)
    pipe.save_pretrained(tmp_path / "saved")
    loaded = diffusers.GlmImagePipeline.from_pretrained(tmp_path / "saved")
    assert "generate" not in vars(loaded.vision_language_encoder)
    use_decoder(loaded, decoders.sjd_coupled, window=16)
    assert np.allclose(draw(loaded), expected, atol=1e-4)  # other addresses of weights, another rounding


REFUSED = {
    "decoder: 'sjd_coupled'; allowed: one of parity_decoders.transformers": ("sjd_coupled", {}),
    "decoder: <built-in function len>": (len, {}),
    "sjd_coupled: windw; allowed: stream, draft_model, compile, capture, window": (decoders.sjd_coupled, {"windw": 3}),
    "ar: window; allowed: stream": (decoders.ar, {"window": 3}),
    "sjd_coupled: seed, width; allowed": (decoders.sjd_coupled, {"seed": 3, "window": 2, "width": 4}),
    "None: window; allowed: none": (None, {"window": 3}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_decoder_does_not_have_is_refused_before(pipe, message):
    use_decoder(pipe, decoders.ar)
    before = pipe.vision_language_encoder.generate
    decoder, options = REFUSED[message]
    with pytest.raises(DecodingError, match=message):
        use_decoder(pipe, decoder, **options)
    assert pipe.vision_language_encoder.generate is before


def test_values_are_those_that_the_decoder_allows(pipe):
    use_decoder(pipe, decoders.sjd_coupled, window=0)
    with pytest.raises(DecodingError, match="window: 0; allowed: int, ge 1"):
        draw(pipe)


@pytest.mark.parametrize("model", [{}, {"vision_language_encoder": None}, {"vision_language_encoder": torch.nn.ReLU()}])
def test_other_pipelines_are_refused(model):
    kind = type(model.get("vision_language_encoder")).__name__
    with pytest.raises(DecodingError, match=f"pipe: SimpleNamespace with vision_language_encoder {kind}; allowed"):
        use_decoder(SimpleNamespace(**model), decoders.sjd_coupled)
