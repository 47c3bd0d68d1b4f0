"""The tasks of any-subset models: which words of which texts are missing. From the held-out part of the embedded
grammar, or from public data in files.

infilling   packed texts of `length` words, a share hidden: scattered, or all but a prefix (Tables 1, 4 to 9, 11)
stories     five sentences, the third or the three in the middle hidden (Table 3): ROCStories
code        a function, one line of its body hidden (Table 2): HumanEval-infilling, single line
last_word   a passage, its last word hidden (Table 10): LAMBADA
choice      a beginning and four ends (Table 10): HellaSwag

Training never saw the pairs of embedded texts and stories, nor those of every second function, last word and end; the
others are new examples of known pairs, and accuracies are taken of both.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import ConfigError, ParityError
from parity.base.files import dump_canonical, read_arrays, write_arrays
from parity.embedded import stories
from parity.inputs import readers
from parity.models.anysubset.load import load
from parity.models.anysubset.vocabulary import Words

FIRST = 20_000_000  # the tasks' texts have seeds from here on, training and validation smaller ones
MaskedText = tuple[list[int], list[bool]]  # its tokens, and which of them are known
Settings = dict[str, Any]  # a task's settings are its entry in the configuration


@dataclass
class Task:
    """Rows of a task, padded to one length."""

    ids: list[str]
    tokens: np.ndarray  # [n, N] int64, also those that are hidden from the model
    known: np.ndarray  # [n, N] bool, False where a token is hidden
    end: np.ndarray  # [n] how many positions each row has; the others are padding
    extra: list[Any]  # the task's metric needs this JSON value of each row


def write(path: Path, task: Task) -> None:
    """Write a task to an .npz file."""
    write_arrays(path, **vars(task) | {"ids": np.array(task.ids), "extra": np.array(dump_canonical(task.extra))})


def read(path: Path) -> Task:
    """Read a task from the .npz file that `write` wrote. Raises ParityError if it is damaged."""
    arrays = read_arrays(path)
    return Task(**arrays | {"ids": arrays["ids"].tolist(), "extra": json.loads(str(arrays["extra"]))})


def load_vocabulary(manifest: Mapping[str, Any]) -> Any:
    """Load the vocabulary (`Words` or `Pieces`) of a model, which encodes texts as its tokens and decodes them."""
    return load(manifest).words


def pack(ids: list[str], rows: list[MaskedText], fill: int, extra: list[Any]) -> Task:
    """Make a task of rows, by id, padded on the right with the token `fill`. extra: for each row what its metric needs.
    Raises ParityError for a row with nothing hidden, or nothing known."""
    for name, (_, is_known) in zip(ids, rows, strict=True):
        if all(is_known):
            raise ParityError(f"{name}: no masked position; there is nothing to fill in")
        if not any(is_known):
            raise ParityError(f"{name}: every position is masked; allowed: at least one known word")
    end = np.array([len(row) for row, _ in rows])
    tokens = np.full((len(rows), end.max()), fill, dtype=np.int64)
    known_words = np.zeros((len(rows), end.max()), dtype=bool)
    for i, row in enumerate(rows):
        tokens[i, : end[i]], known_words[i, : end[i]] = row
    return Task(ids, tokens, known_words, end, extra)


def hide(*pieces: tuple[list[int], bool]) -> MaskedText:
    """Join pieces, each its tokens and whether they are hidden, to a row: all tokens, and which of them are known."""
    return [t for tokens, _ in pieces for t in tokens], [not hidden for tokens, hidden in pieces for _ in tokens]


def pack_texts(settings: Settings, words: Any) -> list[list[int]]:
    """Make `rows` texts of `length` tokens each: embedded documents, or pieces of a data file's texts, each with what
    the vocabulary ends one with. Raises ConfigError if the file has too few tokens."""
    n = settings["rows"]
    N = settings["length"]
    data = settings["data"]
    if not data:
        return [pack_document(FIRST + i, N, words) for i in range(n)]
    stream = [t for text in readers.read_texts(data, words.keeps_blank) for t in [*words.encode(text), *words.end]]
    texts = [stream[i : i + N] for i in range(0, len(stream) - N + 1, N)][:n]
    if len(texts) < n:
        problem = f"{data!r} holds {len(texts)} texts of {N} tokens"
        raise ConfigError(f"text.tasks.infilling.rows = {n}: {problem}; allowed: that")
    return texts


def pack_document(seed: int, length: int, words: Any) -> list[int]:
    """Draw held-out documents of the embedded grammar, and return their first `length` tokens, with separators."""
    stream: list[int] = []
    for k in range(length):  # `length` documents are always enough, because each has at least one token
        document = stories.draw_document(seed * 1_000 + k, True)
        code = stories.LINE in document and not isinstance(words, Words)
        text = stories.join_source(document) if code else " ".join(document)
        stream += [*words.encode(text), words.separator]
        if len(stream) >= length:
            break
    return stream[:length]


def make_infilling_task(settings: Settings, words: Any) -> Task:
    """Make the task of texts of which a share, `masked`, of the tokens is hidden: the last ones, or random ones."""
    N = settings["length"]
    rows = []
    m = N - round(settings["masked"] * N)
    for i, tokens in enumerate(pack_texts(settings, words)):
        rng = np.random.default_rng([FIRST, i, 4])
        is_known = np.zeros(N, bool)
        is_known[np.arange(m) if settings["prompt"] == "prefix" else rng.permutation(N)[:m]] = True
        rows.append((tokens, is_known.tolist()))
    return pack([f"text-{i}" for i in range(len(rows))], rows, words.separator, [None] * len(rows))


def read_stories(settings: Settings) -> list[list[str]]:
    """Read or draw (held-out) stories of five sentences. Of a cloze test's two endings, the right one is the fifth."""
    data, n = settings["data"], settings["rows"]
    if not data:
        return [[" ".join(s) for s in stories.draw_story(FIRST + i, True).sentences] for i in range(n)]
    rows = readers.read_rows(data, readers.COLUMNS["stories"], n)
    if all(str(r["sentence5"]) in ("1", "2") for r in rows):  # a cloze test says here which of two endings is right
        endings = readers.read_rows(data, ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"], n)
        for r, e in zip(rows, endings, strict=True):
            r["sentence5"] = e[f"RandomFifthSentenceQuiz{r['sentence5']}"]
    return [[r[f"sentence{k}"] for k in range(1, 6)] for r in rows]


def make_story_task(settings: Settings, words: Any) -> Task:
    """Make the task of stories whose third sentence, or middle three, are hidden; `extra`: the hidden text."""
    missing = {1: (2,), 3: (1, 2, 3)}[settings["missing"]]
    encoded = [
        [words.encode_next(s) if i else words.encode(s) for i, s in enumerate(sentences)]
        for sentences in read_stories(settings)
    ]
    rows = [hide(*((s, i in missing) for i, s in enumerate(sentences))) for sentences in encoded]
    extra = [words.decode([t for i in missing for t in sentences[i]]) for sentences in encoded]
    return pack([f"story-{i}" for i in range(len(rows))], rows, words.separator, extra)


def make_code_row(
    source_before: str, line: str, source_after: str, tests: str, words: Any
) -> tuple[MaskedText, dict[str, str]]:
    """Make a row of a function in which `line` is hidden, and what its metric needs: the code around it, and tests."""
    row = hide(
        *((words.encode_code(piece), number == 1) for number, piece in enumerate((source_before, line, source_after)))
    )
    return row, {"before": source_before, "after": source_after, "tests": tests}


def make_snippet_row(i: int, words: Any) -> tuple[MaskedText, dict[str, str]]:
    """Make a row of the i-th embedded function, with one of the two lines of its body hidden, and what its metric
    needs: the tests, and for a published tokenizer the source around the line. Functions of odd i are held-out ones."""
    snippet = stories.draw_snippet(FIRST + i, i % 2 == 1)
    missing = 2 + int(np.random.default_rng([FIRST, i, 5]).integers(2))
    lines = [[*line, stories.LINE] for line in snippet.lines]
    tests = "\n".join(snippet.tests) + "\n"
    if isinstance(words, Words):
        lines_before = lines[:missing]
        (indent, *line, end) = lines[missing]
        lines_after = lines[missing + 1 :]
        pieces = (
            [w for piece in lines_before for w in piece] + [indent],
            line,
            [end] + [w for piece in lines_after for w in piece],
        )
        return hide(*(([words.number[w] for w in piece], piece is line) for piece in pieces)), {"tests": tests}
    source = stories.join_source([w for line in lines for w in line]).splitlines(keepends=True)
    # A tokenizer with marks fills in the whole line with indent and end, as in HumanEval-infilling; another, its code.
    code = source[missing] if words.marked else source[missing].strip()
    indent, _, end = source[missing].partition(code)
    return make_code_row("".join(source[:missing]) + indent, code, end + "".join(source[missing + 1 :]), tests, words)


def make_code_task(settings: Settings, words: Any) -> Task:
    """Make the task of functions of which a line is hidden; `extra`: what runs the tests (`make_code_row`)."""
    if settings["data"]:
        read = readers.read_rows(settings["data"], readers.COLUMNS["code"], settings["rows"])
        tests = [f"{r['test']}\ncheck({r['entry_point']})\n" for r in read]
        texts = [(r["prompt"], r["canonical_solution"], r["suffix"]) for r in read]
        rows_and_extra = [make_code_row(*text, test, words) for text, test in zip(texts, tests, strict=True)]
    else:
        rows_and_extra = [make_snippet_row(i, words) for i in range(settings["rows"])]
    rows, extra = (list(column) for column in zip(*rows_and_extra, strict=True))
    return pack([f"code-{i}" for i in range(len(rows))], rows, words.separator, extra)


def make_last_word_task(settings: Settings, words: Any) -> Task:
    """Make the task of passages whose last word is hidden, not the full stop after it. `extra`: whether an embedded
    story's pair was held out; None for a data file."""
    passages: list[tuple[str, str, str, bool | None]] = []
    if settings["data"]:
        for r in readers.read_rows(settings["data"], readers.COLUMNS["last_word"], settings["rows"]):
            beginning, final_word = ["", "", *r["text"].rsplit(maxsplit=1)][-2:]
            passages.append((beginning, final_word, "", None))
    else:
        for i in range(settings["rows"]):
            story = [w for s in stories.draw_story(FIRST + i, i % 2 == 1).sentences for w in s]
            passages.append((" ".join(story[:-2]), story[-2], story[-1], i % 2 == 1))
    rows = [
        hide(
            (words.encode(beginning), False),
            (words.encode_next(final_word) if beginning else words.encode(final_word), True),
            (words.encode_next(stop) if stop else [], False),
        )
        for beginning, final_word, stop, _ in passages
    ]
    return pack(
        [f"passage-{i}" for i in range(len(rows))], rows, words.separator, [held_out for *_, held_out in passages]
    )


def read_questions(settings: Settings) -> list[tuple[str, list[str], int, bool | None]]:
    """Read questions from a file, or draw them from the embedded stories: beginning, ends, the index of the right end,
    and whether the story is of a held-out pair (None for a file)."""
    if settings["data"]:
        rows = readers.read_rows(settings["data"], readers.COLUMNS["choice"], settings["rows"])
        return [(r["ctx"], list(r["endings"]), int(r["label"]), None) for r in rows]
    embedded: list[tuple[str, list[str], int, bool | None]] = []
    for i in range(settings["rows"]):
        story = [" ".join(s) for s in stories.draw_story(FIRST + i, i % 2 == 1).sentences]
        wrong_ends = [
            " ".join(stories.draw_story(FIRST + 1_000_000 + 3 * i + k, i % 2 == 1).sentences[4]) for k in range(3)
        ]
        right = int(np.random.default_rng([FIRST, i, 6]).integers(4))
        embedded.append((" ".join(story[:4]), [*wrong_ends[:right], story[4], *wrong_ends[right:]], right, i % 2 == 1))
    return embedded


def make_choice_task(settings: Settings, words: Any) -> Task:
    """Make the task of questions, with a row for each end, hidden; `extra`: [question, is right end, was held out]."""
    ids = []
    rows = []
    extra = []
    for q, (context, endings, right, held_out) in enumerate(read_questions(settings)):
        beginning = words.encode(context)
        for k, ending in enumerate(endings):
            ids.append(f"question-{q}/{k}")
            rows.append(hide((beginning, False), (words.encode_next(ending), True)))
            extra.append([q, k == right, held_out])
    return pack(ids, rows, words.separator, extra)


def drop_right_context(task: Task) -> Task:
    """Drop the known tokens after the hidden ones of each row. Raises ParityError for a row in which hidden and known
    tokens alternate, or that begins with a hidden one."""
    positions = np.arange(task.tokens.shape[1])
    hidden = ~task.known & (positions < task.end[:, None])
    first, end = hidden.argmax(1), hidden.shape[1] - hidden[:, ::-1].argmax(1)
    for name, i, j, n in zip(task.ids, first, end, hidden.sum(1), strict=True):
        if n != j - i or i == 0:
            raise ParityError(f"{name}: hidden tokens in several places; allowed for a model that reads from left to"
                              " right: one, with known tokens before it")  # fmt: skip
    longest = end.max()
    known = task.known & (positions < end[:, None])
    return Task(task.ids, task.tokens[:, :longest], known[:, :longest], end, task.extra)


BUILT_BY = {
    "infilling": make_infilling_task,
    "stories": make_story_task,
    "code": make_code_task,
    "last_word": make_last_word_task,
    "choice": make_choice_task,
}


def build(task_kind: str, settings: Settings, words: Any) -> Task:
    """Build the task of a kind (BUILT_BY) in the tokens of `words`, with each row `attempts` times in a row, their ids
    ending in "/0", "/1", ... if that is more than once: an id keys a row's noise. Rows of a model that reads from left
    to right alone end with the last hidden token."""
    task = BUILT_BY[task_kind](settings, words)
    task = drop_right_context(task) if words.prompt == "prefix" else task
    attempts = settings.get("attempts", 1)
    if attempts == 1:
        return task
    ids = [f"{name}/{k}" for name in task.ids for k in range(attempts)]
    tokens, is_known, end = (np.repeat(x, attempts, 0) for x in (task.tokens, task.known, task.end))
    return Task(ids, tokens, is_known, end, [e for e in task.extra for _ in range(attempts)])
