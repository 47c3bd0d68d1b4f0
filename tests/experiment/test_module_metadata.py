"""What modules declare is read from their source."""

import pytest

from parity.experiment import module_metadata

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
    """A package of one module."""
    (tmp_path / "leaf").mkdir()
    (tmp_path / "leaf/one.py").write_text(TEXT)
    monkeypatch.setattr(module_metadata, "PACKAGE", tmp_path)
    module_metadata.outline.cache_clear()
    yield tmp_path
    module_metadata.outline.cache_clear()


def test_what_is_declared_first_counts(folder):
    assert module_metadata.constant("leaf", "one", "WORDS") == ("a", -1.5)
    assert module_metadata.constant("leaf", "one", "WHEN") == {"x": [True, None]}
    assert (
        module_metadata.constant("leaf", "one", "NONE", 3) == 3 and module_metadata.function("leaf", "one", "g") is None
    )
    head = module_metadata.function("leaf", "one", "f").args
    assert [a.arg for a in head.kwonlyargs] == ["b"] and [d.value for d in head.kw_defaults] == [3]
    assert head.posonlyargs[0].annotation.value == "int" and head.kwarg.arg == "c"
