"""Texts as numbers: whole words for the embedded models, a published tokenizer's pieces for others.

XLNet's pieces hold no white space except single spaces between words. The published code model is trained and judged on
source in which the tokenizer's marks stand for other white space (the authors' packed_dataset.py and eval_coding.py);
what it draws is read back the same way.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from parity.base.errors import ParityError
from parity.base.files import foreign_json
from parity.embedded import stories

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# White space by its mark, replaced in this order: three spaces become <unk> and a space, and <pad> is only drawn.
MARKS = {"\n": "<cls>", "\t": "<sep>", "  ": "<unk>", "   ": "<pad>"}


class Words:
    """Texts as numbers of whole words; a published model has its tokenizer instead (`Pieces`)."""

    def __init__(self, words: list[str]):
        self.words = words
        self.number = {w: i for i, w in enumerate(words)}
        self.mask = self.number[stories.MASK]
        self.separator = self.number[stories.SEPARATOR]
        self.vocab = len(words)

    def encode(self, text: str) -> list[int]:
        """Encode a text. Raises ParityError that names the first unknown word."""
        try:
            return [self.number[word] for word in text.split()]
        except KeyError as error:
            raise ParityError(
                f"word {error} is not in the vocabulary of {self.vocab} words;"
                " give a model that knows it, or another text"
            ) from None

    def decode(self, tokens: list[int]) -> str:
        return " ".join(self.words[t] for t in tokens)

    # line ends and indents are words of their own
    encode_code = encode
    decode_code = decode
    decode_line = decode


class Pieces:
    """A published tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase"):
        self.tokenizer = tokenizer
        self.mask = tokenizer.mask_token_id
        self.separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
        self.vocab = len(tokenizer)
        specials = (tokenizer.cls_token, tokenizer.sep_token, tokenizer.unk_token, tokenizer.pad_token)
        self.marked = specials == tuple(MARKS.values())  # whether source is read and written with marks

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens))

    def encode_code(self, source: str) -> list[int]:
        """Encode source code, its white space replaced by the tokenizer's marks if it has them."""
        for space, mark in MARKS.items() if self.marked else ():
            source = source.replace(space, mark)
        return self.encode(source)

    def decode_code(self, tokens: list[int]) -> str:
        """Decode source code, with one space more where a word follows a mark: the tokenizer puts one before every
        word."""
        source = self.decode(tokens)
        for space, mark in MARKS.items() if self.marked else ():
            source = source.replace(mark, space)
        return source

    def decode_line(self, tokens: list[int]) -> str:
        """Decode what was filled in after an indent, without the space before the first word: like the authors, drop
        the first character."""
        return self.decode_code(tokens)[1:] if self.marked else self.decode(tokens)


def read_pieces(folder: Path) -> Pieces:
    """Read the tokenizer of a folder in transformers' format. Raises ParityError if none can be read."""
    from transformers import AutoTokenizer

    try:
        return Pieces(AutoTokenizer.from_pretrained(str(folder), local_files_only=True))
    except Exception as error:  # whatever its kind of tokenizer raises: OSError, ValueError, ImportError, TypeError ...
        cause = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ParityError(
            f"text model: {folder}: no tokenizer that can be read ({cause[:120]});"
            " allowed: a folder with tokenizer.json, or files.tokenizer"
        ) from None


def check_words(files: Mapping[str, str]) -> None:
    """Raise ParityError if a tokenizer does not fit its network: it has more pieces, or no mask. `files` are the
    folders "xlnet", "judge", and "tokenizer" if xlnet's is a folder of its own."""
    for component in ("xlnet", "judge"):
        folder = Path(files["tokenizer"] if component == "xlnet" and "tokenizer" in files else files[component])
        pieces = read_pieces(folder)
        try:
            n_pieces = int(foreign_json(Path(files[component], "config.json"))["vocab_size"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ParityError(
                f"{component} = {files[component]!r}: config.json says no vocab_size ({error!r:.80})"
            ) from None
        if pieces.vocab > n_pieces:
            raise ParityError(
                f"{component}: its tokenizer {folder} has {pieces.vocab} pieces, the network {n_pieces};"
                " allowed: the tokenizer it was trained with"
            )
        if component == "xlnet" and pieces.mask is None:
            raise ParityError(f"xlnet: its tokenizer {folder} has no mask; allowed: XLNet's")
