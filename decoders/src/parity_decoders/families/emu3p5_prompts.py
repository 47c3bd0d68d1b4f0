"""The tokenizer and the prompts of Emu3.5, of the authors' `emu3.tiktoken` (baaivision/Emu3.5)."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from parity_decoders.errors import DecodingError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Tokens after the words, in the order of their ids; after them come the codes of the image tokenizer.
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)),
    "<|image token|>", "<|image start|>", "<|image end|>",
)  # fmt: skip
LINE, START, TURN = "<|extra_200|>", "<|extra_203|>", "<|extra_100|>"
BEGIN, IMAGE, END = "<|image start|>", "<|image token|>", "<|image end|>"
# how a text is cut before byte pairs are merged
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
INSTRUCTION = "You are a helpful assistant for t2i task. USER: {} ASSISTANT: "
UNCONDITIONAL = "You are a helpful assistant. USER:  ASSISTANT: "


def read_tokenizer(folder: str | Path) -> "Tokenizer":
    """Read the authors' `emu3.tiktoken` of a folder, a line for each byte pair: itself in base 64, and its id. The
    special tokens follow. Raises DecodingError if there is no such file, or it is damaged."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    file = Path(folder, "emu3.tiktoken")
    try:
        lines = [line.split() for line in file.read_bytes().splitlines() if line]
        ids = {base64.b64decode(word, validate=True): int(i) for word, i in lines}
    except OSError:
        raise DecodingError(f"{file}: no such file; allowed: that of the authors' src/tokenizer_emu3_ibq") from None
    except ValueError:
        ids = {}
    if sorted(ids.values()) != list(range(len(ids))) or not ids:
        raise DecodingError(f"{file}: not a table of byte pairs; allowed: that of the authors' src/tokenizer_emu3_ibq")
    letters = bytes_to_unicode()
    write = lambda word: "".join(letters[b] for b in word)  # noqa: E731
    merges = []
    for word in ids:  # of the pairs that make a word, all are merged at its place in the order
        cuts = [(word[:i], word[i:]) for i in range(1, len(word))]
        merges += [(ids[word], ids[a], a, b) for a, b in cuts if a in ids and b in ids]
    pairs = [(write(a), write(b)) for *_, a, b in sorted(merges)]
    vocabulary = {write(word): i for word, i in ids.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=True, special=True) for name in SPECIAL])
    return tokenizer


def encode_prompts(
    words: "Tokenizer", captions: list[str], rows: int, columns: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Encode captions and as many unconditional prompts, `input_ids` and `attention_mask` [B, P] each, padded on the
    left, for images of rows x columns codes.

    They end with the image's beginning and its size, such as "64*64". In the authors' code the model itself begins an
    image, and the size is then forced token by token: the image's tokens have the same distribution.
    """
    size = f"{TURN}{BEGIN}{rows}*{columns}{IMAGE}"
    words.enable_padding(direction="left", pad_id=words.token_to_id(SPECIAL[0]), pad_token=SPECIAL[0])
    made = []
    for texts in ([INSTRUCTION.replace("{}", caption) for caption in captions], [UNCONDITIONAL] * len(captions)):
        coded = words.encode_batch([START + text + size for text in texts])
        ids, mask = (torch.tensor(x) for x in ([c.ids for c in coded], [c.attention_mask for c in coded]))
        made.append({"input_ids": ids, "attention_mask": mask})
    words.no_padding()
    return made[0], made[1]
