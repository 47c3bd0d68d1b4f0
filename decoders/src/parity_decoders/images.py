"""Image models of transformers, each as a causal model that any decoder can draw images with.

    images = image_model(model, rows=90, columns=90)  # such as an Emu3ForConditionalGeneration
    request = images.make_request(inputs, unconditional)  # of its processor
    ids = images.model.generate(**request, do_sample=True, custom_generate=sjd_coupled, window=16)
    pixels = images.decode(ids[:, -images.length :])

`parity_decoders.families` has a module for each family.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from parity_decoders.errors import DecodingError
from parity_decoders.families import FAMILIES, find_family
from parity_decoders.families.inputs import list_keywords
from parity_decoders.grammar import ImageGrammar


@dataclass(frozen=True)
class ImageModel:
    """An image model and the tokens of one of its images.

    model     causal model, whose `generate` takes a decoder
    forced    [L] the token at each position, -1 where the model chooses
    chosen    [K] the tokens between which it chooses, by code of the image tokenizer; None: all tokens
    width     tokens in a row, line separators included
    decode    turns new tokens [B, L] into pixels [B, 3, H, W] between 0 and 1, or what the family's function says
    settings  keywords of `generate` that the authors use
    """

    model: Any
    forced: Tensor
    chosen: Tensor | None
    width: int
    decode: Callable[[Tensor], Tensor]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """How many tokens an image has."""
        return len(self.forced)

    def make_request(self, inputs: Mapping[str, Any], unconditional: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make the keywords of `generate` for one image a prompt: prompts, grammar, number of tokens, and `settings`.

        inputs, unconditional: `input_ids` [B, P] and `attention_mask` of the prompts and of those without caption, as
        the processor returns them, and of `inputs` what else the model reads. Without unconditional prompts there is no
        guidance. Raises DecodingError if they have another number of rows, or inputs do not belong together.
        """
        if check := getattr(find_family(self.model), "check_inputs", None):
            check(self, inputs)
        ids = inputs["input_ids"]
        read = ("input_ids", "attention_mask", *list_keywords(self.model))
        request = {key: inputs[key] for key in read if key in inputs}
        request |= {"max_new_tokens": self.length} | self.settings
        if self.chosen is not None:
            forced, chosen = self.forced.to(ids.device), self.chosen.to(ids.device)
            grammar = ImageGrammar(forced, chosen, self.width, ids.shape[1])
            request["logits_processor"] = LogitsProcessorList([grammar])
        if unconditional is None:
            request.pop("guidance_scale", None)
            return request
        if len(unconditional["input_ids"]) != len(ids):
            raise DecodingError(
                f"unconditional: input_ids of {len(unconditional['input_ids'])} rows; allowed: {len(ids)}"
            )
        request["negative_prompt_ids"] = unconditional["input_ids"]
        if "attention_mask" in unconditional:
            request["negative_prompt_attention_mask"] = unconditional["attention_mask"]
        return request


def image_model(model: Any, **options: Any) -> ImageModel:
    """Make the image model of a model of transformers, whose weights are shared.

    options: such as `rows` and `columns`, tokens of an image each way; see `make_image_model` in the model's module of
    `parity_decoders.families`. Raises DecodingError for other models, other options, or sizes that do not fit.
    """
    family = find_family(model)
    if family is None:
        kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
        raise DecodingError(f"model_type {kind!r}; allowed: {', '.join(sorted(FAMILIES))}")
    parameters = inspect.signature(family.make_image_model).parameters
    known = [name for name in parameters if name != "model"]
    if unknown := sorted(options.keys() - set(known)):
        raise DecodingError(f"image_model: {', '.join(unknown)}; allowed: {', '.join(known) or 'no option'}")
    made: ImageModel = family.make_image_model(model, **options)
    return made


def lay_out_rows(rows: int, columns: int, separator: int | None = None) -> Tensor:
    """Return the forced tokens [L] of an image of `rows` rows, -1 where the model chooses, with a separator after each
    row if there is one. Raises DecodingError for a size that is no number of 1 or more."""
    for name, value in (("rows", rows), ("columns", columns)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DecodingError(f"image_model: {name}: {value!r}; allowed: int, ge 1")
    row = [-1] * columns + ([] if separator is None else [separator])
    return torch.tensor(row * rows)


def share_signature(original: Any) -> Callable[[Any], Any]:
    """Decorate a forward with the signature of another, where `generate` reads which keywords the model takes."""
    return wraps(original, assigned=())


def share_modules(model: Any, kind: Any) -> Any:
    """Make a model of class `kind` that has the modules and settings of `model`, and another forward."""
    other = kind.__new__(kind)
    other.__dict__ = model.__dict__.copy()
    for name in ("forward", "_old_forward", "_hf_hook"):  # accelerate's, which would call the class of `model`
        other.__dict__.pop(name, None)
    return other
