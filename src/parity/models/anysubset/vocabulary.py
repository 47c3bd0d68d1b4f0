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

# White space is replaced by marks in this order: three spaces become <unk> and a space, so <pad> is only read.
MARKS = {"\n": "<cls>", "\t": "<sep>", "  ": "<unk>", "   ": "<pad>"}


class Words:
    """Texts as numbers of whole words; a published model has its tokenizer instead (`Pieces`). `prompt` is "prefix" for
    a model that reads from left to right alone."""

    def __init__(self, words: list[str]):
        self.words = words
        self.number = {w: i for i, w in enumerate(words)}
        self.mask = self.number[stories.MASK]
        self.separator = self.number[stories.SEPARATOR]
        self.vocab = len(words)
        self.prompt = ""
        self.end = [self.separator]  # a packed text ends with these
        self.keeps_blank = False  # whether blank lines are texts that are packed

    def encode(self, text: str) -> list[int]:
        """Encode the words of a text, split at white space. Raises ParityError that names the first unknown word."""
        try:
            return [self.number[word] for word in text.split()]
        except KeyError as error:
            raise ParityError(
                f"word {error} is not in the vocabulary of {self.vocab} words;"
                " give a model that knows it, or another text"
            ) from None

    def decode(self, tokens: list[int]) -> str:
        return " ".join(self.words[t] for t in tokens)

    # source code is encoded like other texts, because line ends and indents are words too; so is what follows a text
    encode_code = encode
    encode_next = encode
    decode_code = decode
    decode_line = decode


class Pieces:
    """A published tokenizer; its marks are MARKS' values if it is XLNet's."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase"):
        """Find the tokenizer's mask, its separator (or else its end token), and whether it has the marks of XLNet."""
        self.tokenizer = tokenizer
        self.mask = tokenizer.mask_token_id
        self.separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
        self.vocab = len(tokenizer)
        self.prompt = ""
        # XLNet's ends a text with <sep><cls>, before the end of text, also where it is blank (appendix K of the paper)
        around = tokenizer.encode("") if tokenizer.sep_token_id is not None else []
        self.end = [*around, tokenizer.eos_token_id] if around else [self.separator]
        self.keeps_blank = bool(around)
        specials = (tokenizer.cls_token, tokenizer.sep_token, tokenizer.unk_token, tokenizer.pad_token)
        puts_spaces = " " in self.decode([*self.encode("a"), *self.encode("b")])  # as XLNet's does
        self.gap = "" if puts_spaces else " "
        self.marked = specials == tuple(MARKS.values())  # if so, source is read and written with marks

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode_next(self, text: str) -> list[int]:
        """Encode words that follow others, with the space between them."""
        return self.encode(self.gap + text)

    def decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens))

    def encode_code(self, source: str) -> list[int]:
        """Encode source code; its white space is replaced by MARKS if the tokenizer has them."""
        for space, mark in MARKS.items() if self.marked else ():
            source = source.replace(space, mark)
        return self.encode(source)

    def decode_code(self, tokens: list[int]) -> str:
        """Decode source code; MARKS become white space. One space too many is where a word follows a mark, because the
        tokenizer puts one before every word."""
        source = self.decode(tokens)
        for space, mark in MARKS.items() if self.marked else ():
            source = source.replace(mark, space)
        return source

    def decode_line(self, tokens: list[int]) -> str:
        """Decode a line that was filled in after an indent. Like the authors, drop the first character of a marked one:
        the space before the first word."""
        return self.decode_code(tokens)[1:] if self.marked else self.decode(tokens)


def read_pieces(folder: Path) -> Pieces:
    """Read the tokenizer of a folder in transformers' format. Raises ParityError if none can be read."""
    from transformers import AutoTokenizer

    try:
        return Pieces(AutoTokenizer.from_pretrained(str(folder), local_files_only=True))
    except Exception as error:  # each kind of tokenizer raises errors of its own, OSError, ValueError, ImportError ...
        cause = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ParityError(
            f"text model: {folder}: no tokenizer that can be read ({cause[:120]});"
            " allowed: a folder with tokenizer.json, or files.tokenizer"
        ) from None


def check_words(files: Mapping[str, str], network: str = "xlnet") -> None:
    """Raise ParityError if a network has fewer entries than its tokenizer has pieces, or XLNet's tokenizer no mask.
    `files` are the folders of the part `network`, "judge", and "tokenizer" if the network's is a folder of its own."""
    for component in (network, "judge"):
        folder = Path(files["tokenizer"] if component == network and "tokenizer" in files else files[component])
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
