"""What modules declare is read once a text, and anew where the text is another."""

import atexit

import pytest

from parity.experiment import declared, kept

TEXT = """
WORDS: tuple = ("a", -1.5)
WORDS = ()
WHEN = {"x": [True, None]}

@property
def f(a: "int", /, *, b: Annotated[int, Field(ge=1)] = 3, **c) -> float:
    '''Says.'''
    return WORDS
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A package of one module, with nothing known of it, and what is to be done at the end of the run."""
    (tmp_path / "leaf").mkdir()
    (tmp_path / "leaf/one.py").write_text(TEXT)
    monkeypatch.setattr(declared, "PACKAGE", tmp_path)
    monkeypatch.setattr(declared, "known", {})
    declared.outline.cache_clear()
    yield tmp_path
    declared.outline.cache_clear()


@pytest.fixture
def last(monkeypatch):
    """What a run does when it ends."""
    found = []
    monkeypatch.setattr(atexit, "register", found.append)
    return found


def begun(folder):
    """A new run, which knows what earlier ones found."""
    declared.outline.cache_clear()
    declared.known.clear()
    kept.remember(folder / "declared.json", declared.known)


def test_what_is_declared_first_counts(folder):
    assert declared.constant("leaf", "one", "WORDS") == ("a", -1.5)
    assert declared.constant("leaf", "one", "WHEN") == {"x": [True, None]}
    assert declared.constant("leaf", "one", "NONE", 3) == 3 and declared.function("leaf", "one", "g") is None
    head = declared.function("leaf", "one", "f").args
    assert [a.arg for a in head.kwonlyargs] == ["b"] and [d.value for d in head.kw_defaults] == [3]
    assert head.posonlyargs[0].annotation.value == "int" and head.kwarg.arg == "c"


def test_a_text_is_parsed_once_and_another_one_anew(folder, last, monkeypatch):
    begun(folder)
    declared.constant("leaf", "one", "WHEN")
    last.pop()()
    parse = declared.source
    monkeypatch.setattr(declared, "source", lambda *_: pytest.fail("parsed again"))
    begun(folder)
    assert declared.constant("leaf", "one", "WHEN") == {"x": [True, None]}
    (folder / "leaf/one.py").write_text(TEXT.replace("True", "False"))
    begun(folder)
    with pytest.raises(pytest.fail.Exception, match="parsed again"):
        declared.constant("leaf", "one", "WHEN")
    monkeypatch.setattr(declared, "source", parse)
    assert declared.constant("leaf", "one", "WHEN") == {"x": [False, None]}


def test_a_damaged_file_costs_the_time_again_and_is_mended(folder, last):
    begun(folder)
    declared.constant("leaf", "one", "WHEN")
    last.pop()()
    file = folder / "declared.json"
    file.write_text(file.read_text().replace("True", "Falso"))
    begun(folder)
    assert declared.known == {}
    assert declared.constant("leaf", "one", "WHEN") == {"x": [True, None]}
    last.pop()()
    begun(folder)
    assert len(declared.known) == 1
