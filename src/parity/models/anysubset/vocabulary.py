"""Texts as numbers: whole words for the embedded models, a published tokenizer's pieces for others."""

from pathlib import Path
from typing import TYPE_CHECKING

from parity.base.errors import ParityError
from parity.embedded import stories

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Words:
    """Texts as numbers of whole words; a published model has its tokenizer instead (`Pieces`)."""

    def __init__(self, words: list[str]):
        self.words, self.number = words, {w: i for i, w in enumerate(words)}
        self.mask, self.separator, self.vocab = self.number[stories.MASK], self.number[stories.SEPARATOR], len(words)

    def encode(self, text: str) -> list[int]:
        """ParityError that names the first word the model does not know."""
        for word in text.split():
            if word not in self.number:
                raise ParityError(
                    f"word {word!r} is not in the vocabulary of {self.vocab} words;"
                    " give a model that knows it, or another text"
                )
        return [self.number[word] for word in text.split()]

    def decode(self, tokens: list[int]) -> str:
        return " ".join(self.words[t] for t in tokens)


class Pieces:
    """A published tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase"):
        self.tokenizer = tokenizer
        self.mask = tokenizer.mask_token_id
        self.separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
        self.vocab = len(tokenizer)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens))


def read_pieces(folder: Path) -> Pieces:
    """The tokenizer of a folder of transformers' format."""
    from transformers import AutoTokenizer

    return Pieces(AutoTokenizer.from_pretrained(str(folder), local_files_only=True))
