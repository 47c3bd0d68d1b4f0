"""Texts to learn from: files as packed rows of tokens, and the tokenizer of a model that knows whole words."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parity.base.errors import ParityError
from parity.base.files import replace_whole
from parity.embedded import stories
from parity.models.anysubset.vocabulary import Pieces

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

EMBEDDED = "embedded"  # in place of a file: Stories and Snippets
FIRST_TEST = 10_000_000  # seed of the first held-out text of the embedded grammar
UNKNOWN = "<unk>"
MOST_WORDS = 65_536  # a vocabulary of whole words has at most this many: the most frequent
KEYS = ("text", "content")  # of a line of a .jsonl file, the first that it has is its document


def list_files(places: Sequence[Path], flag: str) -> list[Path]:
    """List the files at some paths, those of folders by name, without hidden ones. Raises ParityError for a path at
    which there is none."""
    files: list[Path] = []
    for place in places:
        inside = [f for f in sorted(place.rglob("*")) if f.is_file() and not f.name.startswith(".")]
        found = [place] if place.is_file() else inside
        if not found:
            raise ParityError(f"{flag} {place}: no file; allowed: files, folders that hold some, or {EMBEDDED}")
        files += found
    return files


def read_documents(files: Iterable[Path]) -> Iterator[str]:
    """Read the documents of files: each line of a .jsonl file has one under "text" or "content", any other file is one.
    Raises ParityError for a file that is not UTF-8, and for a line without a document."""
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ParityError(f"{file}: not UTF-8 at byte {error.start}; allowed: text") from None
        if file.suffix != ".jsonl":
            yield text
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield read_line(line, f"{file}, line {number}")


def read_line(line: str, label: str) -> str:
    """Read the document in a line of a .jsonl file. Raises ParityError, which begins with `label`, if it has none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise ParityError(f"{label}: not JSON: {line[:60]!r}") from None
    found = [row[key] for key in KEYS if key in row] if isinstance(row, dict) else []
    if not found or not isinstance(found[0], str):
        raise ParityError(f'{label}: {line[:60]!r} has no text; allowed: {{"text": "..."}}')
    return found[0]


def pack(documents: Iterable[str], encode: Callable[[str], list[int]], separator: int, length: int) -> np.ndarray:
    """Pack documents one after another, a separator after each, and cut them into rows: int32 [n, length]. What is left
    at the end is left out."""
    parts = [np.array([*encode(document), separator], dtype=np.int32) for document in documents]
    tokens = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
    n = len(tokens) // length
    return tokens[: n * length].reshape(n, length)


def draw_rows(numbers: dict[str, int], count: int, length: int, test: bool = False) -> np.ndarray:
    """Draw texts of the embedded grammar as numbers of words: int32 [count, length]; held-out ones if `test`."""
    texts = (stories.draw_text((FIRST_TEST if test else 0) + i, test, length) for i in range(count))
    return np.array([[numbers[word] for word in text] for text in texts], dtype=np.int32)


def digest_places(files: Sequence[Path], pieces: Pieces, *settings: Any) -> str:
    """Compute a digest of the contents of files, the tokenizer's words and settings: that of the rows they make."""
    total = hashlib.sha256(json.dumps([sorted(pieces.tokenizer.get_vocab().items()), settings]).encode())
    for file in files:
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()[:16]


def keep_rows(file: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Make rows and store them in `file`, unless it holds them; return them mapped into memory."""
    if not file.exists():
        rows = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        with replace_whole(file) as partial, partial.open("wb") as stream:
            np.save(stream, rows)
    return np.load(file, mmap_mode="r", allow_pickle=False)


def count_words(documents: Iterable[str]) -> list[str]:
    """List the words of documents as a vocabulary: mask, separator and unknown word first, then the most frequent."""
    counts = Counter(chain.from_iterable(document.split() for document in documents))
    special = [stories.MASK, stories.SEPARATOR, UNKNOWN]
    words = [word for word, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])) if word not in special]
    return [*special, *words[: MOST_WORDS - len(special)]]


def make_word_tokenizer(words: Sequence[str]) -> "PreTrainedTokenizerFast":
    """Make the tokenizer of a vocabulary of whole words, split at white space, in transformers' format."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # a vocabulary without unknown words takes one for its mask, which is never drawn
    unknown = UNKNOWN if UNKNOWN in words else stories.MASK
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=unknown))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"mask_token": stories.MASK, "sep_token": stories.SEPARATOR, "eos_token": stories.SEPARATOR}
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token=unknown, **marks, clean_up_tokenization_spaces=False
    )
