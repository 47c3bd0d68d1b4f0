"""Data files of text tasks: what is read, and errors that name the file, the row and what is allowed."""

import sys
from types import SimpleNamespace

import pytest

from parity.base.errors import ConfigError
from parity.inputs import readers

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
