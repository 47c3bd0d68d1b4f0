"""The tasks: which words of which texts are missing. From the held-out part of the embedded grammar, or from public data in files.

build(kind, settings, words) -> Task

infilling   packed texts of `length` words, a share `masked` of them hidden: scattered, or all but a prefix (Tables 1, 4 to 9, 11)
stories     five sentences, the third or the three in the middle hidden (Table 3): ROCStories
code        a function, one line of its body hidden (Table 2): HumanEval-infilling, single line
last_word   a passage, its last word hidden (Table 10): LAMBADA
choice      a beginning and four ends (Table 10): HellaSwag

Embedded texts and stories are all of pairs that training never saw; of functions, last words and ends every second one is, the others are
new examples of known pairs, and `laws` tells the two apart.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.base.errors import ConfigError
from parity.embedded import stories
from parity.inputs import readers

FIRST = 20_000_000  # seeds of the tasks' texts; training and validation use smaller ones


@dataclass
class Task:
    """Rows of a task, padded to one length; `extra` holds what its metric needs, a JSON value a row."""

    ids: list[str]
    tokens: np.ndarray  # [n, N] int64, complete
    known: np.ndarray  # [n, N] bool
    end: np.ndarray  # [n] positions of each row
    extra: list[Any] = field(default_factory=list)


def pack(ids: list[str], rows: list[tuple[list[int], list[bool]]], fill: int, extra: list[Any] | None = None) -> Task:
    """Rows of (tokens, known) as one rectangle. ValueError for a row with nothing hidden, or nothing known."""
    for name, (_, known) in zip(ids, rows, strict=True):
        if all(known):
            raise ValueError(f"{name}: no masked position; there is nothing to fill in")
        if not any(known):
            raise ValueError(f"{name}: every position is masked; allowed: at least one known word")
    N = max(len(t) for t, _ in rows)
    tokens, given = np.full((len(rows), N), fill, dtype=np.int64), np.zeros((len(rows), N), dtype=bool)
    for i, (t, k) in enumerate(rows):
        tokens[i, : len(t)], given[i, : len(t)] = t, k
    return Task(ids, tokens, given, np.array([len(t) for t, _ in rows]), extra or [None] * len(rows))


def hidden(sentences: list[list[int]], which: set[int]) -> tuple[list[int], list[bool]]:
    """The words of sentences, those numbered `which` hidden."""
    return [t for s in sentences for t in s], [i not in which for i, s in enumerate(sentences) for _ in s]


def infilling(settings: dict[str, Any], words: Any) -> Task:
    n, N = settings["rows"], settings["length"]
    if settings["data"]:
        stream = [
            t
            for r in readers.rows(settings["data"], readers.COLUMNS["last_word"], 10**7)
            for t in [*words.encode(r["text"]), words.separator]
        ]
        texts = [stream[i : i + N] for i in range(0, len(stream) - N + 1, N)][:n]
        if len(texts) < n:
            raise ConfigError(
                f"text.tasks.infilling.rows = {n}: {settings['data']!r} holds {len(texts)} texts of {N} tokens; allowed: that"
            )
    else:
        texts = [[words.number[w] for w in stories.text(FIRST + i, True, N)] for i in range(n)]
    rows = []
    for i, tokens in enumerate(texts):
        rng = np.random.default_rng([FIRST, i, 4])
        m = N - round(settings["masked"] * N)
        known = np.zeros(N, bool)
        known[np.arange(m) if settings["prompt"] == "prefix" else rng.permutation(N)[:m]] = True
        rows.append((tokens, known.tolist()))
    return pack([f"text-{i}" for i in range(n)], rows, words.separator)


def five_sentences(settings: dict[str, Any]) -> list[list[str]]:
    """Stories as five sentences each."""
    if not settings["data"]:
        return [[" ".join(s) for s in stories.story(FIRST + i, True).sentences] for i in range(settings["rows"])]
    found = readers.rows(settings["data"], readers.COLUMNS["stories"], settings["rows"])
    if all(str(r["sentence5"]) in ("1", "2") for r in found):  # the cloze test: two endings, and which is right
        endings = readers.rows(
            settings["data"], ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"], settings["rows"]
        )
        found = [
            r | {"sentence5": e[f"RandomFifthSentenceQuiz{r['sentence5']}"]}
            for r, e in zip(found, endings, strict=True)
        ]
    return [[r[f"sentence{k}"] for k in range(1, 6)] for r in found]


def story_task(settings: dict[str, Any], words: Any) -> Task:
    which = {1: {2}, 3: {1, 2, 3}}[settings["missing"]]
    told = [[words.encode(s) for s in sentences] for sentences in five_sentences(settings)]
    rows = [hidden(s, which) for s in told]
    extra = [words.decode([t for i in sorted(which) for t in s[i]]) for s in told]
    return pack([f"story-{i}" for i in range(len(rows))], rows, words.separator, extra)


def code_task(settings: dict[str, Any], words: Any) -> Task:
    """`extra`: the source with a hole for what is filled in, and the tests."""
    ids, rows, extra = [], [], []
    if settings["data"]:
        for i, r in enumerate(readers.rows(settings["data"], readers.COLUMNS["code"], settings["rows"])):
            before, line, after = (words.encode(r[k]) for k in ("prompt", "canonical_solution", "suffix"))
            rows.append((before + line + after, [True] * len(before) + [False] * len(line) + [True] * len(after)))
            extra.append(
                {"before": r["prompt"], "after": r["suffix"], "tests": f"{r['test']}\ncheck({r['entry_point']})\n"}
            )
            ids.append(f"code-{i}")
    else:
        for i in range(settings["rows"]):
            s = stories.snippet(FIRST + i, i % 2 == 1)
            lines = [[*line, stories.LINE] for line in s.lines]
            missing = 2 + int(np.random.default_rng([FIRST, i, 5]).integers(2))
            tokens = [words.number[w] for line in lines for w in line]
            # the indent and the line end stay, as a line of an editor has them
            rows.append(
                (
                    tokens,
                    [
                        not (j == missing and 0 < k < len(line) - 1)
                        for j, line in enumerate(lines)
                        for k in range(len(line))
                    ],
                )
            )
            extra.append({"tests": "\n".join(s.tests) + "\n"})
            ids.append(f"code-{i}")
    return pack(ids, rows, words.separator, extra)


def last_word(settings: dict[str, Any], words: Any) -> Task:
    """The last word, not the full stop behind it, is hidden. `extra`: whether the story's pair was held out, None for public data."""
    rows: list[tuple[list[int], list[bool]]] = []
    held: list[bool | None] = []
    if settings["data"]:
        for r in readers.rows(settings["data"], readers.COLUMNS["last_word"], settings["rows"]):
            before, _, last = r["text"].strip().rpartition(" ")
            first, rest = words.encode(before), words.encode(last)
            rows.append((first + rest, [True] * len(first) + [False] * len(rest)))
            held.append(None)
    else:
        for i in range(settings["rows"]):
            told = [words.number[w] for s in stories.story(FIRST + i, i % 2 == 1).sentences for w in s]
            rows.append((told, [j != len(told) - 2 for j in range(len(told))]))
            held.append(i % 2 == 1)
    return pack([f"passage-{i}" for i in range(len(rows))], rows, words.separator, held)


def choice(settings: dict[str, Any], words: Any) -> Task:
    """Four rows a question, the end hidden; `extra`: [question, whether it is the right end, whether its pair was held out or None]."""
    ids, rows, extra = [], [], []
    if settings["data"]:
        found = readers.rows(settings["data"], readers.COLUMNS["choice"], settings["rows"])
        asked = [(r["ctx"], list(r["endings"]), int(r["label"])) for r in found]
    else:
        asked = []
        for i in range(settings["rows"]):
            told = [" ".join(s) for s in stories.story(FIRST + i, i % 2 == 1).sentences]
            others = [" ".join(stories.story(FIRST + 1_000_000 + 3 * i + k, i % 2 == 1).sentences[4]) for k in range(3)]
            at = int(np.random.default_rng([FIRST, i, 6]).integers(4))
            asked.append((" ".join(told[:4]), [*others[:at], told[4], *others[at:]], at))
    for q, (context, endings, right) in enumerate(asked):
        before = words.encode(context)
        for k, ending in enumerate(endings):
            after = words.encode(ending)
            ids.append(f"question-{q}/{k}")
            rows.append((before + after, [True] * len(before) + [False] * len(after)))
            extra.append([q, k == right, None if settings["data"] else q % 2 == 1])
    return pack(ids, rows, words.separator, extra)


KINDS = {"infilling": infilling, "stories": story_task, "code": code_task, "last_word": last_word, "choice": choice}


def build(kind: str, settings: dict[str, Any], words: Any) -> Task:
    """The task, each of its rows as often as it is to be attempted: an attempt's id keys its noise."""
    one, attempts = KINDS[kind](settings, words), settings.get("attempts", 1)
    if attempts == 1:
        return one
    ids = [f"{name}/{k}" for name in one.ids for k in range(attempts)]
    tokens, known, end = (np.repeat(x, attempts, 0) for x in (one.tokens, one.known, one.end))
    return Task(ids, tokens, known, end, [e for e in one.extra for _ in range(attempts)])
