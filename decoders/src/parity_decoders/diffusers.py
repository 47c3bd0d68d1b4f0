"""The decoders inside a pipeline of diffusers whose image tokens a language model draws: GLM-Image.

    from parity_decoders.diffusers import use_decoder
    from parity_decoders.transformers import sjd_coupled

    use_decoder(pipe, sjd_coupled, window=16)
    pipe("a photo of a red fox", height=1024, width=1024, generator=torch.Generator().manual_seed(1))
    use_decoder(pipe, None)

The pipeline calls `generate` of its language model once for all prompts; only that call is another. The pipeline seeds
torch from its `generator` before, so that one seed gives one image; and a second progress bar counts tokens.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import GlmImageForConditionalGeneration, StoppingCriteria

from parity_decoders.errors import DecodingError
from parity_decoders.transformers import OF_GENERATE

OF_PIPELINE = ("seed", "width")  # keywords of decoders that the pipeline and the model decide


class Progress(StoppingCriteria):  # type: ignore[misc]
    """Moves a progress bar by one for each column of tokens that is final, and stops no row."""

    def __init__(self, bar: Any):
        self.bar = bar

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Count a column of input_ids [B, S]; return [B] false."""
        self.bar.update()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def use_decoder(pipe: Any, decoder: Callable[..., Any] | None, **options: Any) -> None:
    """Draw the image tokens of a pipeline with a decoder of `parity_decoders.transformers`, in place of the one before,
    if any; with None, as the pipeline does by itself.

    options: keywords of `generate` that the decoder has, except those in OF_PIPELINE. Raises DecodingError for another
    pipeline, for what is not a decoder, and for options that it does not have.
    """
    model: Any = getattr(pipe, "vision_language_encoder", None)
    if not isinstance(model, GlmImageForConditionalGeneration):
        raise DecodingError(
            f"pipe: {type(pipe).__name__} with vision_language_encoder {type(model).__name__}; "
            "allowed: a pipeline with GlmImageForConditionalGeneration, as GlmImagePipeline has"
        )
    allowed = list_options(decoder)
    if unknown := [name for name in options if name not in allowed]:
        name = getattr(decoder, "__name__", decoder)
        raise DecodingError(f"{name}: {', '.join(unknown)}; allowed: {', '.join(allowed) or 'none'}")
    vars(model).pop("generate", None)
    if decoder is None:
        return
    model_class: Any = type(model)

    def generate(*inputs: Any, **keywords: Any) -> Any:
        """Generate with the decoder, whatever else the pipeline asks for, and show a progress bar."""
        if (hook := getattr(model, "_hf_hook", None)) is not None:
            hook.pre_forward(model)  # of accelerate, which moves an offloaded model to its device only before a forward
        with pipe.progress_bar(total=keywords.get("max_new_tokens", 0)) as bar:
            bar.set_description("image tokens")
            criteria = [*keywords.pop("stopping_criteria", ()), Progress(bar)]
            added = {"stopping_criteria": criteria, "custom_generate": decoder, **options}
            return model_class.generate(model, *inputs, **keywords, **added)

    vars(model)["generate"] = generate


def list_options(decoder: Any) -> list[str]:
    """List the keywords that a decoder has in a pipeline; none without a decoder. Raises DecodingError for what is not
    a decoder."""
    if decoder is None:
        return []
    parameters = inspect.signature(decoder).parameters if callable(decoder) else {}
    if list(parameters)[:2] != ["model", "input_ids"]:
        raise DecodingError(f"decoder: {decoder!r}; allowed: one of parity_decoders.transformers, or None")
    fixed = (*OF_GENERATE, *OF_PIPELINE)
    return [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY and name not in fixed]
