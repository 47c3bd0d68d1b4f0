"""Captions as the published T5 encoders were given them: DeepFloyd's cleaning, which LlamaGen applies twice.

The rules are facts of the training data: a caption that is cleaned otherwise has other embeddings. They hold in this
order. Source: DeepFloyd IF's and LlamaGen's language/t5.py.
"""

import html
import re
from urllib.parse import unquote_plus

ADDRESS = (
    r"\b((?:{scheme}:(?:\/{{1,3}}|[a-zA-Z0-9%])"
    r"|[a-zA-Z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b\/?(?!@)))"
)
DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015"
    "\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0\ufe31\ufe32\ufe58\ufe63\uff0d"
)
FILES = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"
Rules = list[tuple[str, str]]

ADDRESSES: Rules = [
    ("<person>", "person"),
    (ADDRESS.format(scheme="https?"), ""),
    (ADDRESS.format(scheme="www"), ""),
]
SIGNS: Rules = [
    (r"@[\w\d]+\b", ""),  # nicknames
    ("[\u31c0-\u31ef]+", ""),  # CJK strokes
    ("[\u31f0-\u31ff]+", ""),  # katakana extensions
    ("[\u3200-\u32ff]+", ""),
    ("[\u3300-\u33ff]+", ""),
    ("[\u3400-\u4dbf]+", ""),
    ("[\u4dc0-\u4dff]+", ""),
    ("[\u4e00-\u9fff]+", ""),  # CJK ideographs
    (f"[{DASHES}]+", "-"),
    ("[`´«»“”¨]", '"'),
    ("[‘’]", "'"),
    (r"&quot;?", ""),
    (r"&amp", ""),
    (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", " "),  # IP addresses
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),  # the two characters, not a new line
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
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # article numbers, three kinds
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    (r"(worldwide\s+)?(free\s+)?shipping", ""),
    (r"(free\s)?download(\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{FILES})(\simage[s]?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    (r"\b\d+\.?\d*[xх×]\d+\.?\d*\b", ""),  # sizes; the second x is Cyrillic
    (r"\b\s+\:\s+", ": "),
    (r"(\D[,\./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"\']([\w\W]+)[\"\']$", r"\1"),
    (r"^[\'\_,\-\:;]", ""),
    (r"[\'\_,\-\:\-\+]$", ""),
    (r"^\.\S+$", ""),
]
JOINS = re.compile(r"[-_]")  # more than three of them join words that stand apart elsewhere


def replaced(caption: str, rules: Rules) -> str:
    for pattern, by in rules:
        caption = re.sub(pattern, by, caption)
    return caption


def once(caption: str) -> str:
    """One round of the cleaning."""
    import ftfy
    from bs4 import BeautifulSoup

    caption = replaced(unquote_plus(caption).strip().lower(), ADDRESSES)
    caption = replaced(BeautifulSoup(caption, features="html.parser").text, SIGNS)
    if len(JOINS.findall(caption)) > 3:
        caption = JOINS.sub(" ", caption)
    caption = html.unescape(html.unescape(ftfy.fix_text(caption))).strip()
    return replaced(caption, WORDS).strip()


def clean(caption: str) -> str:
    """The caption that the published encoder reads: the cleaning applied twice, as in its training."""
    return once(once(caption))
