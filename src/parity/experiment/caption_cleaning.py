"""Captions as published T5 encoders read them: cleaned as DeepFloyd does, which LlamaGen applies twice.

The rules are facts of the training data, in this order: a caption that is cleaned otherwise has other embeddings.
Source: DeepFloyd IF's and LlamaGen's language/t5.py. A caption of which nothing is left, or no token is known, is
refused: the model would draw the empty caption. The workflow checks prompts before any job, so this imports no torch.
"""

import html
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote_plus

from parity.base.errors import ParityError
from parity.experiment import weights
from parity.experiment.prompt_files import refuse_prompts
from parity.experiment.schema import ModelSpec

SPACE = "\u2581"  # T5's token of a space alone
UNKNOWN = "has no token that the encoder knows, within the length that it reads; allowed: words of its vocabulary"
EMPTY = (
    "is empty after the cleaning of published T5 encoders, which removes Chinese, @names, addresses, markup and more"
)
ADDRESS = (
    r"\b((?:{scheme}:(?:\/{{1,3}}|[a-zA-Z0-9%])"
    r"|[a-zA-Z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b\/?(?!@)))"
)
DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015"
    "\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0\ufe31\ufe32\ufe58\ufe63\uff0d"
)
FILES = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"
STARTS = (*FILES.split("|"), "shipping", "download", "click", "page")  # the rules of words remove words beside these
Rules = list[tuple[str, str]]

ADDRESSES: Rules = [
    ("<person>", "person"),
    (ADDRESS.format(scheme="https?"), ""),
    (ADDRESS.format(scheme="www"), ""),
]
SIGNS: Rules = [
    (r"@[\w\d]+\b", ""),  # nicknames are removed
    ("[\u31c0-\u31ef]+", ""),  # CJK strokes are removed
    ("[\u31f0-\u31ff]+", ""),  # katakana extensions are removed
    ("[\u3200-\u32ff]+", ""),
    ("[\u3300-\u33ff]+", ""),
    ("[\u3400-\u4dbf]+", ""),
    ("[\u4dc0-\u4dff]+", ""),
    ("[\u4e00-\u9fff]+", ""),  # CJK ideographs are removed
    (f"[{DASHES}]+", "-"),
    ("[`´«»“”¨]", '"'),
    ("[‘’]", "'"),
    (r"&quot;?", ""),
    (r"&amp", ""),
    (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", " "),  # IP addresses become a space
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),  # this is a backslash and the letter n, not a new line
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"[\S]+\.(?:{FILES})", ""),
    (r"[\"\']{2,}", '"'),
    (r"[\.]{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~)(\]\[}{|\\/*]{1,}", " "),
    (r"\s+\.\s+", " "),
]
WORDS: Rules = [
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # this and the next two rules remove article numbers
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    (r"(worldwide\s+)?(free\s+)?shipping", ""),
    (r"(free\s)?download(\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{FILES})(\simage[s]?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    (r"\b\d+\.?\d*[xх×]\d+\.?\d*\b", ""),  # sizes such as 20x30 are removed; the second x here is Cyrillic
    (r"\b\s+\:\s+", ": "),
    (r"(\D[,\./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"\']([\w\W]+)[\"\']$", r"\1"),
    (r"^[\'\_,\-\:;]", ""),
    (r"[\'\_,\-\:\-\+]$", ""),
    (r"^\.\S+$", ""),
]
JOINS = re.compile(r"[-_]")  # in a caption with more than three of these, all are replaced by spaces


def apply_rules(caption: str, rules: Rules) -> str:
    """Replace all matches of each rule's pattern in a caption, rule by rule."""
    for pattern, replacement in rules:
        caption = re.sub(pattern, replacement, caption)
    return caption


def clean_once(caption: str) -> str:
    """Clean a caption one time as DeepFloyd does: lower case, no markup, addresses, special signs, article numbers."""
    import ftfy
    from bs4 import BeautifulSoup

    caption = apply_rules(unquote_plus(caption).strip().lower(), ADDRESSES)
    caption = apply_rules(BeautifulSoup(caption, features="html.parser").text, SIGNS)
    if len(JOINS.findall(caption)) > 3:
        caption = JOINS.sub(" ", caption)
    caption = html.unescape(html.unescape(ftfy.fix_text(caption))).strip()
    return apply_rules(caption, WORDS).strip()


def clean(caption: str) -> str:
    """Clean a caption twice, as in the training of the published encoder. Raises ParityError if nothing is left."""
    cleaned = clean_once(clean_once(caption))
    if not cleaned:
        raise ParityError(f"caption {caption[:60]!r} {EMPTY}; allowed: words")
    return cleaned


def is_plain(caption: str) -> bool:
    """Return whether cleaning surely leaves a word of a caption, which saves cleaning most: it has letters and signs of
    sentences alone, a word between spaces, and nothing in it begins a rule that removes words."""
    lower = caption.lower()
    is_harmless = re.fullmatch(r"[a-z ,.']+", lower) and not any(word in lower for word in STARTS)
    return bool(is_harmless and re.search(r"(?<!\S)[a-z]{2,}(?!\S)", lower))


def make_finder(folder: Path, length: int) -> Callable[[str], str]:
    """Make the function that says why a published encoder reads nothing of a caption; "" if it does. folder: of the
    encoder, whose tokens are not looked at if it is not here; length: how many tokens it reads."""
    file = folder / "tokenizer.json"
    tokenizer, unread = None, set()
    if file.is_file():
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        unread = {tokenizer.token_to_id(name) for name in (SPACE, "<unk>", "<pad>", "</s>")}

    def find(caption: str) -> str:
        """Say why nothing of a caption is read; "" if something is."""
        try:
            cleaned = caption.lower() if is_plain(caption) else clean(caption)
        except ParityError:
            return f"{EMPTY}; allowed: words"
        if tokenizer is None:
            return ""
        ids = tokenizer.encode(cleaned, add_special_tokens=False).ids[: length - 1]  # the last is the end token
        return "" if set(ids) - unread else UNKNOWN

    return find


def check_prompts(prompts: Sequence[str], spec: ModelSpec, label: str = "") -> None:
    """Raise ConfigError, which begins with `label`, for prompts of which a model with a published encoder reads
    nothing; see `make_finder`. Other models pass."""
    text, sizes = spec.files.get("text", ""), {**weights.read_family(spec.family).get("sizes", {}), **spec.network}
    if text and not text.endswith(".safetensors") and not sizes.get("classes"):
        refuse_prompts(prompts, make_finder(Path(text), sizes["prefix"]), label)
