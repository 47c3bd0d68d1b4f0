"""What the tasks of any-subset models hide, in texts of the embedded grammar and of data files, and errors of these."""

import gzip
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from parity.base.errors import ConfigError, ParityError
from parity.embedded import stories
from parity.inputs import readers, tasks
from parity.models.anysubset.vocabulary import Words

WORDS = Words(list(stories.list_words()))


def make_settings(**changes):
    return {"rows": 4, "data": "", "length": 32, "masked": 0.95, "prompt": "scattered", "missing": 3} | changes


# --- tasks on texts of the embedded grammar


def test_infilling_hides_the_given_share():
    task = tasks.build("infilling", make_settings(rows=6, length=40), WORDS)
    assert task.tokens.shape == (6, 40)
    assert (task.known.sum(1) == 2).all()
    assert len({tuple(k) for k in task.known.tolist()}) > 1
    prefix = tasks.build("infilling", make_settings(length=40, prompt="prefix"), WORDS)
    assert prefix.known[:, :2].all()
    assert not prefix.known[:, 2:].any()
    assert np.array_equal(tasks.build("infilling", make_settings(rows=6, length=40), WORDS).known, task.known)


@pytest.mark.parametrize("missing", [1, 3])
def test_story_task_hides_middle_sentences(missing):
    task = tasks.build("stories", make_settings(missing=missing), WORDS)
    for i in range(4):
        N = task.end[i]
        hidden = WORDS.decode(task.tokens[i, :N][~task.known[i, :N]].tolist())
        sentences = stories.draw_story(tasks.FIRST + i, True).sentences
        middle = sentences[2:3] if missing == 1 else sentences[1:4]
        assert hidden == " ".join(" ".join(s) for s in middle) == task.extra[i]
        assert not task.known[i, N:].any()


def test_code_task_hides_one_line_and_its_truth_passes():
    task = tasks.build("code", make_settings(rows=8), WORDS)
    for i in range(8):
        N = task.end[i]
        words = WORDS.decode(task.tokens[i, :N].tolist()).split()
        hidden = [w for w, k in zip(words, task.known[i], strict=False) if not k]
        assert hidden
        assert hidden[0] in ("z", "return")
        assert not set(hidden) & {stories.LINE, stories.INDENT}
        scope: dict = {}
        exec(stories.join_source(words) + task.extra[i]["tests"], scope)


def test_every_attempt_is_a_row():
    task = tasks.build("code", make_settings(rows=2, attempts=3), WORDS)
    assert task.ids == ["code-0/0", "code-0/1", "code-0/2", "code-1/0", "code-1/1", "code-1/2"]
    assert len(task.extra) == len(task.end) == 6
    assert np.array_equal(task.tokens[0], task.tokens[2])
    assert not np.array_equal(task.tokens[2], task.tokens[3])


def test_last_word_is_named_earlier_in_the_story():
    task = tasks.build("last_word", make_settings(rows=20), WORDS)
    named = 0
    for i in range(20):
        row = task.tokens[i, : task.end[i]]
        hidden = row[~task.known[i, : task.end[i]]]
        assert len(hidden) == 1
        assert WORDS.words[row[-1]] == "."
        named += hidden[0] in row[: task.end[i] - 8]
    assert named > 10


def test_choice_has_four_ends_and_one_is_right():
    task = tasks.build("choice", make_settings(rows=5), WORDS)
    assert len(task.ids) == 20
    assert [sum(r for q, r, _ in task.extra if q == k) for k in range(5)] == [1] * 5


@pytest.mark.parametrize("kind", ["infilling", "stories", "code", "last_word", "choice"])
def test_a_task_is_read_back_from_its_file(kind, tmp_path):
    """Its extra may hold text, tests, flags or nothing; a damaged file is named."""
    task = tasks.build(kind, make_settings(), WORDS)
    tasks.write(tmp_path / "t.npz", task)
    back = tasks.read(tmp_path / "t.npz")
    assert back.ids == task.ids
    assert back.extra == task.extra
    assert all(np.array_equal(getattr(back, k), getattr(task, k)) for k in ("tokens", "known", "end"))
    (tmp_path / "t.npz").write_bytes((tmp_path / "t.npz").read_bytes()[:-30])
    with pytest.raises(ParityError, match=r"t\.npz: damaged"):
        tasks.read(tmp_path / "t.npz")


# --- tasks on public data sets in files

STORY = (
    "anna had lost a red ring .|she looked in the hall and under the bed .|ben came to "
    "help with the search .|they found it behind the sofa ."
)


def test_both_layouts_of_rocstories_are_read(tmp_path):
    sentences = STORY.split("|")
    end = "now she never leaves home without the ring ."
    head = "storyid,storytitle," + ",".join(f"sentence{k}" for k in range(1, 6))
    (tmp_path / "roc.csv").write_text(f"{head}\n1,t,{','.join([*sentences, end])}\n")
    inputs = ",".join(f"InputSentence{k}" for k in range(1, 5))
    cloze = f"InputStoryid,{inputs},RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding"
    (tmp_path / "cloze.csv").write_text(f"{cloze}\n1,{','.join(sentences)},anna was sad .,{end},2\n")
    for name in ("roc.csv", "cloze.csv"):
        assert tasks.read_stories(make_settings(data=str(tmp_path / name), rows=1)) == [[*sentences, end]]
    task = tasks.build("stories", make_settings(data=str(tmp_path / "roc.csv"), rows=1, missing=1), WORDS)
    assert task.extra == [sentences[2]]


def test_texts_of_wikitext_are_cut_to_length(tmp_path):
    (tmp_path / "wiki.txt").write_text("anna was glad .\n\nben was sad and she was happy .\n" * 20)
    settings = make_settings(data=str(tmp_path / "wiki.txt"), length=16)
    assert tasks.build("infilling", settings | {"rows": 3}, WORDS).tokens.shape == (3, 16)
    with pytest.raises(ConfigError, match="holds 17 texts of 16 tokens"):
        tasks.build("infilling", settings | {"rows": 99}, WORDS)


@pytest.mark.parametrize("text", ["anna found the ring", "anna found the\nring\n"])
def test_the_last_word_of_lambada_is_hidden(tmp_path, text):
    (tmp_path / "lambada.jsonl").write_text(json.dumps({"text": text}) + "\n")
    task = tasks.build("last_word", make_settings(data=str(tmp_path / "lambada.jsonl")), WORDS)
    assert task.known.tolist() == [[True, True, True, False]]


def test_hellaswag_has_four_ends_and_a_label(tmp_path):
    ends = ["ben came .", "she found it .", "they sang .", "it was late ."]
    row = {"ctx": "anna was sad .", "endings": ends, "label": "1"}
    (tmp_path / "hella.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    task = tasks.build("choice", make_settings(data=str(tmp_path / "hella.jsonl.gz")), WORDS)
    assert task.extra == [[0, False, None], [0, True, None], [0, False, None], [0, False, None]]


def test_humaneval_hides_the_solution(tmp_path):
    row = {"prompt": "def f ( x ) :", "canonical_solution": "return x + 1", "suffix": "", "entry_point": "f"}
    row["test"] = "def check(c):\n    assert c(1) == 2"
    (tmp_path / "human.jsonl").write_text(json.dumps(row))
    task = tasks.build("code", make_settings(data=str(tmp_path / "human.jsonl")), WORDS)
    assert task.known.sum() == 6
    assert task.extra[0]["tests"].endswith("check(f)\n")


HEAD = b"sentence1,sentence2,sentence3,sentence4,sentence5\n"
CODE = b'{"prompt": "%s", "canonical_solution": "return", "suffix": "", "test": "t", "entry_point": "f"}\n'


BAD = [
    ("a.csv", b"sentence1\nx\n", "stories", "row 1 has no sentence2 or InputSentence2; its columns: sentence1"),
    ("a.csv", HEAD + b"a,b,,d,e\n", "stories", "row 1: sentence3 is empty; allowed: text"),
    ("a.csv", HEAD + b"a,b,c,d\n", "stories", "row 1 .line 2. has 4 fields, the header 5"),
    ("a.jsonl", b'{"text": 5}\n', "last_word", "row 1: text = 5; allowed: text"),
    ("a.jsonl", b'{"text": " anna "}\n', "last_word", "row 1: text = ' anna ': a single word"),
    ("a.tokens", b"anna was glad .\n", "infilling", "unknown suffix; allowed: .txt, "),
    ("a.txt", "anna was glad .".encode("utf-16-le"), "infilling", "a NUL at byte 1"),
    ("a.txt", b"\n\n", "last_word", "holds no row"),
    ("a.txt.gz", b"not gzip", "last_word", "cannot be read"),
    ("a.jsonl", b'{"ctx": "x", "endings": "y", "label": 0}\n', "choice", "endings = 'y'; allowed: a list of two texts"),
    ("a.jsonl", b'{"ctx": "x", "endings": ["y", "z"], "label": "2"}\n', "choice", "label = '2'; allowed: 0 to 1"),
    ("a.jsonl", CODE % b"", "code", "prompt and suffix are empty"),
    ("a.txt", b"anna was glad .\na zebra .\n", "infilling", "row 2: the embedded model does not know 'zebra'"),
]


@pytest.mark.parametrize(("name", "content", "kind", "message"), BAD)
def test_bad_data_is_one_line(tmp_path, name, content, kind, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        readers.check(kind, {"data": str(tmp_path / name), "rows": 4}, embedded=True)
    assert name in str(caught.value)


def test_the_datasets_library_is_used_if_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="package `datasets` is not installed"):
        readers.read_rows("datasets:EleutherAI/lambada_openai:test", ["text"], 2)
    calls = []
    library = SimpleNamespace(
        load_dataset=lambda *a, **k: calls.append((a, k)) or iter([{"text": "a b"}, {"text": "c d"}, {"text": "e"}])
    )
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert readers.read_rows("datasets:Salesforce/wikitext/wikitext-2-raw-v1:test", ["text"], 2) == [
        {"text": "a b"},
        {"text": "c d"},
    ]
    assert calls == [(("Salesforce/wikitext", "wikitext-2-raw-v1"), {"split": "test"})]


def test_only_the_embedded_model_checks_the_words_of_a_file(tmp_path):
    (tmp_path / "a.txt").write_text("anna was glad .\n")
    (tmp_path / "b.txt").write_text("anna was a zebra .\n")
    for name, embedded in (("a.txt", True), ("b.txt", False)):
        assert readers.check("infilling", {"data": str(tmp_path / name), "rows": 4}, embedded) is None
    assert readers.check("infilling", {"data": "datasets:any", "rows": 4}, True) is None


def test_rows_that_a_task_leaves_out_are_counted(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one two\n" * 9)
    (line,) = readers.describe_unread("last_word", {"data": str(file), "rows": 4})
    assert line.startswith("4 of the 9 rows of ")
    assert "text.tasks.last_word" in line
    assert readers.describe_unread("last_word", {"data": str(file), "rows": 9}) == []


def test_xlnet_ends_each_line_as_its_tokenizer_does(tmp_path):
    """Blank lines are texts of that tokenizer, as in appendix K of the paper; others leave them out."""

    class Marked:
        end, keeps_blank, separator = [4, 3, 2], True, 4

        def encode(self, text):
            return [10] * len(text.split())

    class Plain(Marked):
        end, keeps_blank = [4], False

    (tmp_path / "wiki.txt").write_text("\n = a title = \n\n two words\n")
    settings = make_settings(data=str(tmp_path / "wiki.txt"), rows=1)
    marked = [4, 3, 2, 10, 10, 10, 10, 4, 3, 2, 4, 3, 2, 10, 10, 4, 3, 2]
    assert tasks.pack_texts(settings | {"length": len(marked)}, Marked()) == [marked]
    plain = [10, 10, 10, 10, 4, 10, 10, 4]
    assert tasks.pack_texts(settings | {"length": len(plain)}, Plain()) == [plain]
    with pytest.raises(ConfigError, match="holds 0 texts of 19 tokens"):
        tasks.pack_texts(settings | {"length": len(marked) + 1}, Marked())
