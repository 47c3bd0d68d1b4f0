"""The tasks of any-subset models: what is hidden, of the embedded grammar and of public data in files."""

import gzip
import json

import numpy as np
import pytest

from parity.base.errors import ConfigError, ParityError
from parity.embedded import stories
from parity.inputs import tasks
from parity.models.anysubset.vocabulary import Words

WORDS = Words(list(stories.list_words()))


def settings(**given):
    return {"rows": 4, "data": "", "length": 32, "masked": 0.95, "prompt": "scattered", "missing": 3} | given


# --- tasks of the embedded grammar


def test_infilling_hides_the_share_it_says():
    task = tasks.build("infilling", settings(rows=6, length=40), WORDS)
    assert task.tokens.shape == (6, 40)
    assert (task.known.sum(1) == 2).all()
    assert len({tuple(k) for k in task.known.tolist()}) > 1
    prefix = tasks.build("infilling", settings(length=40, prompt="prefix"), WORDS)
    assert prefix.known[:, :2].all()
    assert not prefix.known[:, 2:].any()
    assert np.array_equal(tasks.build("infilling", settings(rows=6, length=40), WORDS).known, task.known)


@pytest.mark.parametrize("missing", [1, 3])
def test_story_task_hides_middle_sentences(missing):
    task = tasks.build("stories", settings(missing=missing), WORDS)
    for i in range(4):
        N = task.end[i]
        hidden = WORDS.decode(task.tokens[i, :N][~task.known[i, :N]].tolist())
        told = stories.draw_story(tasks.FIRST + i, True).sentences
        assert hidden == " ".join(" ".join(s) for s in (told[2:3] if missing == 1 else told[1:4])) == task.extra[i]
        assert not task.known[i, N:].any()


def test_code_task_hides_one_line_and_its_truth_passes():
    task = tasks.build("code", settings(rows=8), WORDS)
    for i in range(8):
        N = task.end[i]
        words = WORDS.decode(task.tokens[i, :N].tolist()).split()
        hidden = [w for w, k in zip(words, task.known[i], strict=False) if not k]
        assert hidden
        assert hidden[0] in ("z", "return")
        assert not set(hidden) & {stories.LINE, stories.INDENT}
        scope: dict = {}
        exec(stories.join_source(words) + task.extra[i]["tests"], scope)


def test_every_attempt_is_a_row_of_its_own():
    task = tasks.build("code", settings(rows=2, attempts=3), WORDS)
    assert task.ids == ["code-0/0", "code-0/1", "code-0/2", "code-1/0", "code-1/1", "code-1/2"]
    assert len(task.extra) == len(task.end) == 6
    assert np.array_equal(task.tokens[0], task.tokens[2])
    assert not np.array_equal(task.tokens[2], task.tokens[3])


def test_last_word_is_one_that_the_story_named():
    task = tasks.build("last_word", settings(rows=20), WORDS)
    named = 0
    for i in range(20):
        row = task.tokens[i, : task.end[i]]
        hidden = row[~task.known[i, : task.end[i]]]
        assert len(hidden) == 1
        assert WORDS.words[row[-1]] == "."
        named += hidden[0] in row[: task.end[i] - 8]
    assert named > 10


def test_choice_has_four_ends_and_one_is_right():
    task = tasks.build("choice", settings(rows=5), WORDS)
    assert len(task.ids) == 20
    assert [sum(r for q, r, _ in task.extra if q == k) for k in range(5)] == [1] * 5


@pytest.mark.parametrize("kind", ["infilling", "stories", "code", "last_word", "choice"])
def test_a_task_comes_back_from_its_file(kind, tmp_path):
    """Whatever its extra holds: text, tests, flags or nothing; and a damaged file is named."""
    task = tasks.build(kind, settings(), WORDS)
    tasks.write(tmp_path / "t.npz", task)
    back = tasks.read(tmp_path / "t.npz")
    assert back.ids == task.ids
    assert back.extra == task.extra
    assert all(np.array_equal(getattr(back, k), getattr(task, k)) for k in ("tokens", "known", "end"))
    (tmp_path / "t.npz").write_bytes((tmp_path / "t.npz").read_bytes()[:-30])
    with pytest.raises(ParityError, match=r"t\.npz: damaged"):
        tasks.read(tmp_path / "t.npz")


# --- public data from files

STORY = (
    "anna had lost a red ring .|she looked in the hall and under the bed .|ben came to "
    "help with the search .|they found it behind the sofa ."
)


def test_rocstories_both_layouts(tmp_path):
    one, two = STORY.split("|"), "now she never leaves home without the ring ."
    head = "storyid,storytitle," + ",".join(f"sentence{k}" for k in range(1, 6))
    (tmp_path / "roc.csv").write_text(f"{head}\n1,t,{','.join([*one, two])}\n")
    inputs = ",".join(f"InputSentence{k}" for k in range(1, 5))
    cloze = f"InputStoryid,{inputs},RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding"
    (tmp_path / "cloze.csv").write_text(f"{cloze}\n1,{','.join(one)},anna was sad .,{two},2\n")
    for name in ("roc.csv", "cloze.csv"):
        assert tasks.read_stories(settings(data=str(tmp_path / name), rows=1)) == [[*one, two]]
    task = tasks.build("stories", settings(data=str(tmp_path / "roc.csv"), rows=1, missing=1), WORDS)
    assert task.extra == [one[2]]


def test_wikitext_lambada_hellaswag_and_humaneval(tmp_path):
    (tmp_path / "wiki.txt").write_text("anna was glad .\n\nben was sad and she was happy .\n" * 20)
    wiki = settings(data=str(tmp_path / "wiki.txt"), length=16)
    assert tasks.build("infilling", wiki | {"rows": 3}, WORDS).tokens.shape == (3, 16)
    with pytest.raises(ConfigError, match="holds 17 texts of 16 tokens"):
        tasks.build("infilling", wiki | {"rows": 99}, WORDS)
    (tmp_path / "lambada.jsonl").write_text(json.dumps({"text": "anna found the ring"}) + "\n")
    task = tasks.build("last_word", settings(data=str(tmp_path / "lambada.jsonl")), WORDS)
    assert task.known.tolist() == [[True, True, True, False]]
    (tmp_path / "lines.jsonl").write_text(json.dumps({"text": "anna found the\nring\n"}) + "\n")
    lines = tasks.build("last_word", settings(data=str(tmp_path / "lines.jsonl")), WORDS)
    assert lines.known.tolist() == [[True, True, True, False]]
    row = {
        "ctx": "anna was sad .",
        "endings": ["ben came .", "she found it .", "they sang .", "it was late ."],
        "label": "1",
    }
    (tmp_path / "hella.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    task = tasks.build("choice", settings(data=str(tmp_path / "hella.jsonl.gz")), WORDS)
    assert task.extra == [[0, False, None], [0, True, None], [0, False, None], [0, False, None]]
    row = {
        "prompt": "def f ( x ) :",
        "canonical_solution": "return x + 1",
        "suffix": "",
        "test": "def check(c):\n    assert c(1) == 2",
        "entry_point": "f",
    }
    (tmp_path / "human.jsonl").write_text(json.dumps(row))
    task = tasks.build("code", settings(data=str(tmp_path / "human.jsonl")), WORDS)
    assert task.known.sum() == 6
    assert task.extra[0]["tests"].endswith("check(f)\n")
