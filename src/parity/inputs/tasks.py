"""The tasks of any-subset models: which words of which texts are missing. From the held-out part of the embedded
grammar, or from public data in files.

infilling   packed texts of `length` words, a share hidden: scattered, or all but a prefix (Tables 1, 4 to 9, 11)
stories     five sentences, the third or the three in the middle hidden (Table 3): ROCStories
code        a function, one line of its body hidden (Table 2): HumanEval-infilling, single line
last_word   a passage, its last word hidden (Table 10): LAMBADA
choice      a beginning and four ends (Table 10): HellaSwag

Embedded texts and stories are all of pairs that training never saw; of functions, last words and ends every second one
is, the others are new examples of known pairs, and the accuracies tell the two apart.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import ConfigError, ParityError
from parity.base.files import canonical, read_arrays, write_arrays
from parity.embedded import stories
from parity.inputs import readers
from parity.models.anysubset.load import load
from parity.models.anysubset.vocabulary import Words

FIRST = 20_000_000  # seeds of the tasks' texts; training and validation use smaller ones


@dataclass
class Task:
    """Rows of a task, padded to one length; `extra` holds what its metric needs, a JSON value a row."""

    ids: list[str]
    tokens: np.ndarray  # [n, N] int64, complete
    known: np.ndarray  # [n, N] bool
    end: np.ndarray  # [n] positions of each row
    extra: list[Any] = field(default_factory=list)


def write(path: Path, task: Task) -> None:
    write_arrays(path, **vars(task) | {"ids": np.array(task.ids), "extra": np.array(canonical(task.extra))})


def read(path: Path) -> Task:
    """ParityError if the file is not whole."""
    arrays = read_arrays(path)
    return Task(**arrays | {"ids": arrays["ids"].tolist(), "extra": json.loads(str(arrays["extra"]))})


def words_of(manifest: Mapping[str, Any]) -> Any:
    """What turns texts into the tokens of a model, and back."""
    return load(manifest).words


def pack(ids: list[str], rows: list[tuple[list[int], list[bool]]], fill: int, extra: list[Any] | None = None) -> Task:
    """Rows of (tokens, known) as one rectangle. ParityError for a row with nothing hidden, or nothing known."""
    for name, (_, known) in zip(ids, rows, strict=True):
        if all(known):
            raise ParityError(f"{name}: no masked position; there is nothing to fill in")
        if not any(known):
            raise ParityError(f"{name}: every position is masked; allowed: at least one known word")
    N = max(len(t) for t, _ in rows)
    tokens, given = np.full((len(rows), N), fill, dtype=np.int64), np.zeros((len(rows), N), dtype=bool)
    for i, (t, k) in enumerate(rows):
        tokens[i, : len(t)], given[i, : len(t)] = t, k
    return Task(ids, tokens, given, np.array([len(t) for t, _ in rows]), extra or [None] * len(rows))


def hide(*parts: tuple[list[int], bool]) -> tuple[list[int], list[bool]]:
    """A row of (tokens, hidden) parts: its tokens, and which of them are known."""
    return [t for tokens, _ in parts for t in tokens], [not hidden for tokens, hidden in parts for _ in tokens]


def packed_texts(settings: dict[str, Any], words: Any) -> list[list[int]]:
    """Texts of `length` tokens each."""
    n, N, data = settings["rows"], settings["length"], settings["data"]
    if not data and isinstance(words, Words):
        return [words.encode(" ".join(stories.text(FIRST + i, True, N))) for i in range(n)]
    if not data:
        return [packed_document(FIRST + i, N, words) for i in range(n)]
    rows = readers.rows(data, readers.COLUMNS["last_word"], 10**7)
    stream = [t for r in rows for t in [*words.encode(r["text"]), words.separator]]
    texts = [stream[i : i + N] for i in range(0, len(stream) - N + 1, N)][:n]
    if len(texts) < n:
        held = f"{data!r} holds {len(texts)} texts of {N} tokens"
        raise ConfigError(f"text.tasks.infilling.rows = {n}: {held}; allowed: that")
    return texts


def packed_document(seed: int, length: int, words: Any) -> list[int]:
    """`length` pieces of a published tokenizer: held-out documents of the embedded grammar with separators between."""
    stream: list[int] = []
    for k in range(length):  # a document has a piece at least
        story = stories.document(seed * 1_000 + k, True)
        stream += [*words.encode(stories.source(story) if stories.LINE in story else " ".join(story)), words.separator]
        if len(stream) >= length:
            break
    return stream[:length]


def infilling(settings: dict[str, Any], words: Any) -> Task:
    N, rows = settings["length"], []
    m = N - round(settings["masked"] * N)
    for i, tokens in enumerate(packed_texts(settings, words)):
        rng = np.random.default_rng([FIRST, i, 4])
        known = np.zeros(N, bool)
        known[np.arange(m) if settings["prompt"] == "prefix" else rng.permutation(N)[:m]] = True
        rows.append((tokens, known.tolist()))
    return pack([f"text-{i}" for i in range(len(rows))], rows, words.separator)


def five_sentences(settings: dict[str, Any]) -> list[list[str]]:
    """Stories as five sentences each."""
    data, n = settings["data"], settings["rows"]
    if not data:
        return [[" ".join(s) for s in stories.story(FIRST + i, True).sentences] for i in range(n)]
    story = readers.rows(data, readers.COLUMNS["stories"], n)
    if all(str(r["sentence5"]) in ("1", "2") for r in story):  # the cloze test: two endings, and which is right
        endings = readers.rows(data, ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"], n)
        for r, e in zip(story, endings, strict=True):
            r["sentence5"] = e[f"RandomFifthSentenceQuiz{r['sentence5']}"]
    return [[r[f"sentence{k}"] for k in range(1, 6)] for r in story]


def story_task(settings: dict[str, Any], words: Any) -> Task:
    """`extra`: the sentences that are missing."""
    missing = {1: (2,), 3: (1, 2, 3)}[settings["missing"]]
    story = [[words.encode(s) for s in sentences] for sentences in five_sentences(settings)]
    rows = [hide(*((s, i in missing) for i, s in enumerate(sentences))) for sentences in story]
    extra = [words.decode([t for i in missing for t in sentences[i]]) for sentences in story]
    return pack([f"story-{i}" for i in range(len(rows))], rows, words.separator, extra)


def snippet_row(i: int, words: Any) -> tuple[tuple[list[int], list[bool]], dict[str, str]]:
    """An embedded function, one line of its body hidden, and what its metric needs."""
    snippet = stories.snippet(FIRST + i, i % 2 == 1)
    tests = "\n".join(snippet.tests) + "\n"
    if not isinstance(words, Words):
        source = snippet_source(i, words.marked)
        row = hide(*zip(map(words.encode_code, source), (False, True, False), strict=True))
        return row, {"before": source[0], "after": source[2], "tests": tests}
    lines = [[words.number[w] for w in (*line, stories.LINE)] for line in snippet.lines]
    missing = 2 + int(np.random.default_rng([FIRST, i, 5]).integers(2))
    parts = [(line, False) for line in lines]
    indent, line, end = lines[missing][:1], lines[missing][1:-1], lines[missing][-1:]  # the first and the last stay
    parts[missing : missing + 1] = [(indent, False), (line, True), (end, False)]
    return hide(*parts), {"tests": tests}


def snippet_source(i: int, whole: bool) -> tuple[str, str, str]:
    """An embedded function as source: what is before the hidden line, the line, and what is behind it. Hidden is the
    `whole` line with its indent and end, as in HumanEval-infilling, or only the code in it."""
    snippet = stories.snippet(FIRST + i, i % 2 == 1)
    lines = stories.source([w for line in snippet.lines for w in (*line, stories.LINE)]).splitlines(keepends=True)
    missing = 2 + int(np.random.default_rng([FIRST, i, 5]).integers(2))
    code = lines[missing] if whole else lines[missing].strip()
    indent, _, end = lines[missing].partition(code)
    return "".join(lines[:missing]) + indent, code, end + "".join(lines[missing + 1 :])


def code_task(settings: dict[str, Any], words: Any) -> Task:
    """`extra`: the source with a hole for what is filled in, and the tests."""
    rows, extra = [], []
    if settings["data"]:
        for r in readers.rows(settings["data"], readers.COLUMNS["code"], settings["rows"]):
            before, line, after = (words.encode_code(r[k]) for k in ("prompt", "canonical_solution", "suffix"))
            rows.append(hide((before, False), (line, True), (after, False)))
            tests = f"{r['test']}\ncheck({r['entry_point']})\n"
            extra.append({"before": r["prompt"], "after": r["suffix"], "tests": tests})
    else:
        for i in range(settings["rows"]):
            row, needed = snippet_row(i, words)
            rows.append(row)
            extra.append(needed)
    return pack([f"code-{i}" for i in range(len(rows))], rows, words.separator, extra)


def last_word(settings: dict[str, Any], words: Any) -> Task:
    """The last word, not the full stop behind it, is hidden. `extra`: whether the story's pair was held out; None for
    public data."""
    rows: list[tuple[list[int], list[bool]]] = []
    held: list[bool | None] = []
    if settings["data"]:
        for r in readers.rows(settings["data"], readers.COLUMNS["last_word"], settings["rows"]):
            before, _, last = r["text"].strip().rpartition(" ")
            rows.append(hide((words.encode(before), False), (words.encode(last), True)))
            held.append(None)
    else:
        for i in range(settings["rows"]):
            story = [w for s in stories.story(FIRST + i, i % 2 == 1).sentences for w in s]
            before, last, stop = (words.encode(" ".join(part)) for part in (story[:-2], story[-2:-1], story[-1:]))
            rows.append(hide((before, False), (last, True), (stop, False)))
            held.append(i % 2 == 1)
    return pack([f"passage-{i}" for i in range(len(rows))], rows, words.separator, held)


def questions(settings: dict[str, Any]) -> list[tuple[str, list[str], int, bool | None]]:
    """Beginning, four ends, which is right, and whether its pair was held out (None for public data)."""
    if settings["data"]:
        rows = readers.rows(settings["data"], readers.COLUMNS["choice"], settings["rows"])
        return [(r["ctx"], list(r["endings"]), int(r["label"]), None) for r in rows]
    asked: list[tuple[str, list[str], int, bool | None]] = []
    for i in range(settings["rows"]):
        story = [" ".join(s) for s in stories.story(FIRST + i, i % 2 == 1).sentences]
        others = [" ".join(stories.story(FIRST + 1_000_000 + 3 * i + k, i % 2 == 1).sentences[4]) for k in range(3)]
        at = int(np.random.default_rng([FIRST, i, 6]).integers(4))
        asked.append((" ".join(story[:4]), [*others[:at], story[4], *others[at:]], at, i % 2 == 1))
    return asked


def choice(settings: dict[str, Any], words: Any) -> Task:
    """A row for each end, hidden; `extra`: [question, whether it is the right end, whether its pair was held out]."""
    ids, rows, extra = [], [], []
    for q, (context, endings, right, held) in enumerate(questions(settings)):
        before = words.encode(context)
        for k, ending in enumerate(endings):
            ids.append(f"question-{q}/{k}")
            rows.append(hide((before, False), (words.encode(ending), True)))
            extra.append([q, k == right, held])
    return pack(ids, rows, words.separator, extra)


BUILT_BY = {"infilling": infilling, "stories": story_task, "code": code_task, "last_word": last_word, "choice": choice}


def build(task_kind: str, settings: dict[str, Any], words: Any) -> Task:
    """The task, each of its rows as often as it is to be attempted: an attempt's id keys its noise."""
    one, attempts = BUILT_BY[task_kind](settings, words), settings.get("attempts", 1)
    if attempts == 1:
        return one
    ids = [f"{name}/{k}" for name in one.ids for k in range(attempts)]
    tokens, known, end = (np.repeat(x, attempts, 0) for x in (one.tokens, one.known, one.end))
    return Task(ids, tokens, known, end, [e for e in one.extra for _ in range(attempts)])
