"""Prompts of models that read words and image codes alike: captions to ids, and a batch of ids to a token model.

An encoder gives each caption's ids `words` [P] and those of its unconditional row `negative` [Q], left padded, and what
of them is attended, `valid` and `negative_valid`. Rows have positions of their own: a row's first word stands at 0.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.base.errors import ParityError
from parity.models.compiling import compiled
from parity.models.discrete.cached import Cached, a_pass
from parity.models.discrete.folders import beyond
from parity.models.discrete.llama import Llama

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST = 1024  # ids of a caption; the longest of PartiPrompts, COCO and GenEval have 200
STEP = 16  # prompts of a batch are padded to a multiple of it: so few shapes are compiled


def left_padded(rows: list[list[int]], length: int, padding: int = 0) -> tuple[Tensor, Tensor]:
    """Ids [B, length] int64 and which of them are a row's own, [B, length] int64."""
    ids = torch.full((len(rows), length), padding)
    valid = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, length - len(row) :], valid[i, length - len(row) :] = torch.tensor(row), 1
    return ids, valid


def caption_ids(words: "Tokenizer", captions: list[str], reserved: frozenset[int], where: Path) -> list[list[int]]:
    """Ids of texts, cut at MOST, and how many were cut printed. ParityError for one that holds a token of the
    grammar, or characters that the tokenizer has no token for."""
    result = []
    for caption in captions:
        try:
            coded = words.encode(caption, add_special_tokens=False)
        except Exception as error:  # surrogates, which no UTF-8 has
            cause = str(error).splitlines()[0][:80]
            raise ParityError(f"caption {caption[:60]!a}: {where} cannot hold it: {cause}") from None
        if any(i in reserved for i in coded.ids):
            token = next(t for i, t in zip(coded.ids, coded.tokens, strict=True) if i in reserved)
            raise ParityError(f"caption {caption[:60]!r}: holds {token!r}, a token of pictures; allowed: words")
        if caption.strip() and not coded.ids:
            raise ParityError(f"caption {caption[:60]!r}: {where} has no token for any of it; allowed: words it knows")
        result.append(coded.ids)
    if cut := sum(len(ids) > MOST for ids in result):
        print(f"captions: {cut} of {len(captions)} are longer than {MOST} tokens and are cut there", file=sys.stderr)
    return [ids[:MOST] for ids in result]


def encoder(
    words: "Tokenizer",
    reserved: frozenset[int],
    where: Path,
    template: str,
    around: tuple[list[int], list[int]],
    negative: Callable[[list[int]], list[int]],
) -> Callable[[list[str]], dict[str, Tensor]]:
    """Captions to what `conditioned` reads. template: a text with {}, where the caption stands; around: ids before and
    behind it; negative(prompt's ids) -> those of its unconditional row."""
    before, behind = around

    def encoded(captions: list[str]) -> dict[str, Tensor]:
        texts = [template.replace("{}", caption) for caption in captions]
        rows = [before + ids + behind for ids in caption_ids(words, texts, reserved, where)]
        length = len(before) + MOST + len(behind)
        ids, valid = left_padded(rows, length)
        others, other_valid = left_padded([negative(row) for row in rows], length)
        return {"words": ids, "valid": valid, "negative": others, "negative_valid": other_valid}

    return encoded


def closed_up(inputs: Mapping[str, Tensor], guided: bool) -> tuple[Tensor, Tensor]:
    """The rows' ids and what is attended of them [R, P]: B conditional, then B unconditional if guided; the padding
    that all of them have left off."""
    which = ("words", "negative") if guided else ("words",)
    rows = [(inputs[w], inputs["valid" if w == "words" else f"{w}_valid"]) for w in which]
    widest = max(int(valid.sum(1).max()) for _, valid in rows)
    length = min(-(-widest // STEP) * STEP, max(ids.shape[1] for ids, _ in rows))
    ends = [tuple(F.pad(x, (length - x.shape[1], 0)) for x in row) for row in rows]
    return torch.cat([ids for ids, _ in ends]), torch.cat([valid for _, valid in ends])


def conditioned(
    net: Llama, inputs: Mapping[str, Tensor], guided: bool, forced: Tensor, width: int, fast: bool = False
) -> Cached:
    """The token model of a batch of encoded captions; forced [L], width: see TokenModel. fast: passes are compiled."""
    ids, valid = closed_up(inputs, guided)
    beyond(ids.shape[1] + len(forced), net.config, "prompt and picture")
    output: Any = net.output
    read = compiled(a_pass, ids.device.type) if fast else None
    words = net.embed_tokens.weight
    shift = ids.shape[1] - valid.sum(1)
    return Cached(
        net, F.embedding(ids, words), valid, output.embeddings(words), forced.to(ids.device), width, shift, read=read
    )
