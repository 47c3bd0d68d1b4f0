"""Which tokens each new position of an image allows: tokens of the image tokenizer, or one that is forced."""

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from parity_decoders.distribution import Grammar
from parity_decoders.errors import DecodingError


class ImageGrammar(LogitsProcessor):
    """The grammar of an image, for `logits_processor` of `generate`, with a decoder or without.

    Unlike `prefix_allowed_tokens_fn` it is a function of the position, so all slots of a window are done at once, and
    decoders know which tokens are forced.

    forced  [L] the token at each new position, -1 where the model chooses; on the device of the prompts
    """

    def __init__(self, forced: Tensor, chosen: Tensor, width: int, prompt_length: int):
        """Set the rules of one image. chosen [K]: the tokens between which the model chooses; width: tokens in a row,
        line separators included; prompt_length: columns of the prompts, padding included."""
        self.forced = forced
        self.chosen = chosen
        self.stage = Grammar(forced, chosen)
        self.width = width
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return scores [B, V] with -inf for tokens that may not follow input_ids [B, n]."""
        position = torch.tensor([[input_ids.shape[1] - self.prompt_length - 1]], device=scores.device)
        return self.stage(scores[:, None], position)[:, 0]

    def check_request(self, name: str, prompt_length: int, length: int) -> None:
        """Raise DecodingError that names decoder `name` if the request has prompts of other columns, or more new tokens
        than the image."""
        if prompt_length != self.prompt_length:
            raise DecodingError(
                f"{name}: input_ids of {prompt_length} columns with a grammar after {self.prompt_length}; "
                f"allowed: {self.prompt_length}"
            )
        if length > len(self.forced):
            raise DecodingError(
                f"{name}: max_new_tokens {length} for an image of {len(self.forced)} tokens; "
                f"allowed: at most {len(self.forced)}"
            )


def find_grammar(processors: Any) -> ImageGrammar | None:
    """Find the grammar among logits processors. Raises DecodingError if there are several."""
    found = [processor for processor in processors or () if type(processor) is ImageGrammar]
    if len(found) > 1:
        raise DecodingError(f"logits_processor: {len(found)} grammars of images; allowed: one")
    return found[0] if found else None
