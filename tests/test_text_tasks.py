"""Text tasks, their readers and figures, and what the configuration refuses."""

import gzip
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.base.errors import ConfigError
from parity.embedded import stories
from parity.experiment import config
from parity.inputs import readers, tasks
from parity.metrics import score, statistics
from parity.models.anysubset.load import Words

WORDS = Words(list(stories.vocabulary()))
TEXT = {"methods": {"ar": [{}]}, "text": {"methods": {"sequential": [{}]}}}


def settings(**given):
    return {"rows": 4, "data": "", "length": 32, "masked": 0.95, "prompt": "scattered", "missing": 3} | given


# --- tasks of the embedded grammar


def test_infilling_hides_the_share_it_says():
    task = tasks.build("infilling", settings(rows=6, length=40), WORDS)
    assert (
        task.tokens.shape == (6, 40)
        and (task.known.sum(1) == 2).all()
        and len({tuple(k) for k in task.known.tolist()}) > 1
    )
    prefix = tasks.build("infilling", settings(length=40, prompt="prefix"), WORDS)
    assert prefix.known[:, :2].all() and not prefix.known[:, 2:].any()
    assert np.array_equal(tasks.build("infilling", settings(rows=6, length=40), WORDS).known, task.known)


@pytest.mark.parametrize("missing", [1, 3])
def test_story_task_hides_middle_sentences(missing):
    task = tasks.build("stories", settings(missing=missing), WORDS)
    for i in range(4):
        N = task.end[i]
        hidden = WORDS.decode(task.tokens[i, :N][~task.known[i, :N]].tolist())
        told = stories.story(tasks.FIRST + i, True).sentences
        assert hidden == " ".join(" ".join(s) for s in (told[2:3] if missing == 1 else told[1:4])) == task.extra[i]
        assert not task.known[i, N:].any()


def test_code_task_hides_one_line_and_its_truth_passes():
    task = tasks.build("code", settings(rows=8), WORDS)
    for i in range(8):
        N = task.end[i]
        words = WORDS.decode(task.tokens[i, :N].tolist()).split()
        hidden = [w for w, k in zip(words, task.known[i], strict=False) if not k]
        assert hidden and hidden[0] in ("z", "return") and not set(hidden) & {stories.LINE, stories.INDENT}
        scope: dict = {}
        exec(stories.source(words) + task.extra[i]["tests"], scope)


def test_every_attempt_is_a_row_of_its_own():
    task = tasks.build("code", settings(rows=2, attempts=3), WORDS)
    assert (
        task.ids == ["code-0/0", "code-0/1", "code-0/2", "code-1/0", "code-1/1", "code-1/2"]
        and len(task.extra) == len(task.end) == 6
    )
    assert np.array_equal(task.tokens[0], task.tokens[2]) and not np.array_equal(task.tokens[2], task.tokens[3])


def test_last_word_is_one_that_the_story_named():
    task = tasks.build("last_word", settings(rows=20), WORDS)
    named = 0
    for i in range(20):
        row = task.tokens[i, : task.end[i]]
        hidden = row[~task.known[i, : task.end[i]]]
        assert len(hidden) == 1 and WORDS.words[row[-1]] == "."
        named += hidden[0] in row[: task.end[i] - 8]
    assert named > 10


def test_choice_has_four_ends_and_one_is_right():
    task = tasks.build("choice", settings(rows=5), WORDS)
    assert len(task.ids) == 20 and [sum(r for q, r, _ in task.extra if q == k) for k in range(5)] == [1] * 5


def test_a_row_without_a_question_is_an_error():
    with pytest.raises(ValueError, match="x: no masked position"):
        tasks.pack(["x"], [([1, 2], [True, True])], 0)
    with pytest.raises(ValueError, match="x: every position is masked"):
        tasks.pack(["x"], [([1, 2], [False, False])], 0)


def test_an_unknown_word_is_named():
    with pytest.raises(ValueError, match="word 'zebra' is not in the vocabulary of 384 words"):
        WORDS.encode("the zebra ran")


# --- public data from files

STORY = "anna had lost a red ring .|she looked in the hall and under the bed .|ben came to help with the search .|they found it behind the sofa ."


def test_rocstories_both_layouts(tmp_path):
    one, two = STORY.split("|"), "now she never leaves home without the ring ."
    head = "storyid,storytitle," + ",".join(f"sentence{k}" for k in range(1, 6))
    (tmp_path / "roc.csv").write_text(f"{head}\n1,t,{','.join([*one, two])}\n")
    cloze = (
        "InputStoryid,"
        + ",".join(f"InputSentence{k}" for k in range(1, 5))
        + ",RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding"
    )
    (tmp_path / "cloze.csv").write_text(f"{cloze}\n1,{','.join(one)},anna was sad .,{two},2\n")
    for name in ("roc.csv", "cloze.csv"):
        assert tasks.five_sentences(settings(data=str(tmp_path / name), rows=1)) == [[*one, two]]
    task = tasks.build("stories", settings(data=str(tmp_path / "roc.csv"), rows=1, missing=1), WORDS)
    assert task.extra == [one[2]]


def test_wikitext_lambada_hellaswag_and_humaneval(tmp_path):
    (tmp_path / "wiki.txt").write_text("anna was glad .\n\nben was sad and she was happy .\n" * 20)
    assert tasks.build(
        "infilling", settings(data=str(tmp_path / "wiki.txt"), rows=3, length=16), WORDS
    ).tokens.shape == (3, 16)
    with pytest.raises(ConfigError, match="holds 17 texts of 16 tokens"):
        tasks.build("infilling", settings(data=str(tmp_path / "wiki.txt"), rows=99, length=16), WORDS)
    (tmp_path / "lambada.jsonl").write_text(json.dumps({"text": "anna found the ring"}) + "\n")
    task = tasks.build("last_word", settings(data=str(tmp_path / "lambada.jsonl")), WORDS)
    assert task.known.tolist() == [[True, True, True, False]]
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
    assert task.known.sum() == 6 and task.extra[0]["tests"].endswith("check(f)\n")


HEAD = b"sentence1,sentence2,sentence3,sentence4,sentence5\n"
CODE = b'{"prompt": "%s", "canonical_solution": "return", "suffix": "", "test": "t", "entry_point": "f"}\n'


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        (
            "a.csv",
            b"sentence1,sentence2\nx,y\n",
            "stories",
            "row 1 has no sentence3 or InputSentence3; its columns: sentence1, sentence2",
        ),
        ("a.jsonl", b'{"ctx": "x"}\n', "choice", "row 1 has no endings; its columns: ctx"),
        ("a.jsonl", b'{"text": "x y"}\n{bad\n', "last_word", "line 2 is not JSON"),
        ("a.txt", b"good\n\xff\xfe bad\n", "last_word", "not UTF-8 at byte 5; allowed: UTF-8 text"),
        ("a.txt", b"\n\n", "last_word", "holds no row"),
        ("a.txt.gz", b"not gzip", "last_word", "cannot be read"),
        ("a.jsonl", b"[1, 2]\n", "choice", "line 1 is no JSON object"),
        ("a.jsonl", b'{"text": 5}\n', "last_word", "row 1: text = 5; allowed: text"),
        (
            "a.jsonl",
            b'{"ctx": "x", "endings": "y", "label": 0}\n',
            "choice",
            "row 1: endings = 'y'; allowed: a list of two texts",
        ),
        (
            "a.jsonl",
            b'{"ctx": "x", "endings": ["y", "z"], "label": "2"}\n',
            "choice",
            "row 1: label = '2'; allowed: 0 to 1",
        ),
        (
            "a.csv",
            HEAD + b"a,b,,d,e\n",
            "stories",
            "row 1: sentence3 is empty; allowed: text",
        ),  # nothing would be masked
        ("a.csv", HEAD + b"a,b\n", "stories", "row 1 has no sentence3"),
        ("a.csv", HEAD + b"a" * 200_000 + b",b,c,d,e\n", "stories", "is not CSV"),
        (
            "a.jsonl",
            b'{"text": " anna "}\n',
            "last_word",
            "row 1: text = ' anna ': a single word",
        ),  # everything would be masked
        ("a.jsonl", CODE % b"", "code", "prompt and suffix are empty"),
        ("a.jsonl", CODE % b"zebra", "code", "row 1: the embedded model does not know 'zebra'"),
        (
            "a.txt",
            b"anna was glad .\nanna was a zebra .\n",
            "infilling",
            "row 2: the embedded model does not know 'zebra'",
        ),
    ],
)
def test_bad_data_is_one_line(tmp_path, name, content, kind, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        readers.check(kind, settings(data=str(tmp_path / name)), embedded=True)
    assert "\n" not in str(caught.value) and name in str(caught.value)


def test_the_datasets_library_is_used_if_it_is_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="package `datasets` is not installed"):
        readers.rows("datasets:EleutherAI/lambada_openai:test", ["text"], 2)
    asked = []
    library = SimpleNamespace(
        load_dataset=lambda *a, **k: asked.append((a, k)) or iter([{"text": "a b"}, {"text": "c d"}, {"text": "e"}])
    )
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert readers.rows("datasets:Salesforce/wikitext/wikitext-2-raw-v1:test", ["text"], 2) == [
        {"text": "a b"},
        {"text": "c d"},
    ]
    assert asked == [(("Salesforce/wikitext", "wikitext-2-raw-v1"), {"split": "test"})]


# --- figures


def test_entropy_and_rouge():
    assert statistics.entropy(np.array([1, 1, 2, 2, 3, 3, 4, 4])) == pytest.approx(2.0)
    assert statistics.entropy(np.array([5, 5, 5])) == 0
    found = score.rouge("she went to the market", "she went to the bakery")
    assert (
        found["rouge1"] == pytest.approx(0.8)
        and found["rouge2"] == pytest.approx(0.75)
        and found["rougeL"] == pytest.approx(0.8)
    )


def test_perplexity_is_read_in_pieces_and_stops_at_the_rows_end():
    class Uniform:
        config = SimpleNamespace(n_positions=9)

        def __call__(self, x):
            return SimpleNamespace(logits=torch.zeros(*x.shape, 11))

    tokens = torch.randint(1, 11, (3, 20))
    found = score.perplexities(Uniform(), tokens, torch.tensor([20, 7, 13]), 0, 1)
    assert np.allclose(found, 10)  # ten words and the mask, which has no share


def test_t_tests_see_a_difference_and_bear_constants():
    rng = np.random.default_rng(0)
    a = rng.normal(size=200)
    assert statistics.compare(a, rng.normal(size=200))["p_welch"] > 0.01
    assert statistics.compare(a + 0.5, rng.normal(size=200))["p_welch"] < 1e-3
    shared = 10 * rng.normal(size=200)
    moved = statistics.compare(shared + a + 0.5, shared + rng.normal(size=200))
    assert moved["p_paired"] < 1e-3 < 0.05 < moved["p_welch"]
    same = np.full(5, 3.0)
    assert statistics.compare(same, same) == {"difference": 0.0, "p_welch": 1.0, "p_paired": 1.0}
    assert statistics.compare(same, same + 1)["p_welch"] == 0.0


# --- the configuration


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"methods": {"assd": [{}]}}, r"text.methods = \['assd'\]: needs sequential"),
        (
            {"methods": {"sequential": [{}], "assd": [{"k": 1}]}},
            "text.methods.assd.0.k = 1: allowed: greater than or equal to 2",
        ),
        (
            {"methods": {"sequential": [{}], "sjd": [{}]}},
            "text.methods.sjd: unknown method; allowed: assd, assd_ngram, diffusion",
        ),
        ({"methods": {"sequential": [{}], "assd": []}}, r"text.methods.assd = \[\]: no variant"),
        ({"methods": {"sequential": [{}], "assd": [{}, {"k": 5}]}}, "the same variant as text.methods.assd.0"),
        (
            {"methods": {"sequential": [{}]}, "tasks": {"infilling": [{"masked": 0.999, "length": 16}]}},
            "hides every position",
        ),
        (
            {"methods": {"sequential": [{}]}, "tasks": {"infilling": [{"masked": 0.01, "length": 16}]}},
            "hides no position",
        ),
        (
            {"methods": {"sequential": [{}]}, "tasks": {"stories": [{"missing": 2}]}},
            "text.tasks.stories.0.missing = 2: allowed: 1 or 3",
        ),
        (
            {"methods": {"sequential": [{}]}, "tasks": {"stories": [{"data": "none.csv"}]}},
            "text.tasks.stories.0.data = 'none.csv': no such file",
        ),
        ({"methods": {"sequential": [{}], "gpt2": [{}]}}, "text.methods.gpt2: reads from left to right; allowed"),
        ({"methods": {"sequential": [{}]}, "cache": [True, True]}, "text.cache"),
        ({"methods": {"sequential": [{}]}, "taks": {}}, "text.taks"),
    ],
)
def test_bad_text_sections_are_one_line(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(TEXT | {"text": text})
    assert "\n" not in str(caught.value)


def test_half_a_model_is_refused():
    with pytest.raises(ConfigError, match=r"text.model.judge = '': allowed: both folders, or neither"):
        config.text_revision(config.TextModel(xlnet="here"))


def test_cells_of_the_text_section():
    loaded = config.load(
        TEXT
        | {"text": {"methods": {"sequential": [{}], "assd": [{"k": 5}], "sigma_gpt": [{}]}, "cache": [True, False]}}
    )
    found = config.text_cells(loaded)
    assert [(c["spec"]["method"], c["spec"]["cache"], c["role"]) for c in found] == [
        ("sequential", True, "reference"), ("sequential", True, "control"), ("sequential", False, "reference"),
        ("sequential", False, "control"), ("assd", True, "method"), ("assd", False, "method"), ("sigma_gpt", True, "method"),
        ("sigma_gpt", False, "method"),
    ]  # fmt: skip
    assert len({c["key"] for c in found}) == len(found)
    assert config.text_cells(config.load({"methods": {"ar": [{}]}})) == []


def test_repeating_fills_every_text_once_more_on_a_seed_of_its_own():
    text = {"methods": {"sequential": [{}], "assd": [{}]}}
    once, twice = (config.text_cells(config.load(TEXT | {"text": text, "repeat": r})) for r in (False, True))
    again = [c for c in twice if c["role"] == "again"]
    assert len(twice) == len(once) + 2 and [c["spec"]["method"] for c in again] == ["sequential", "assd"]
    assert {c["spec"]["seed"] for c in again} == {3}
