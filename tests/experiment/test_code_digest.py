"""Which edits change the code that a result is named by, and which do not."""

import pytest

from parity.base.files import read_json
from parity.experiment import code_digest

SOURCE = '''"""Says."""
import warnings

LEVEL = Field(2, description="of something")


def f(x):
    """Says."""
    if x:
        raise ValueError(f"{x}: not allowed")  # refused
    warnings.warn("it is so")
    return max(x, LEVEL)
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in place of `parity`, with a module, a package with a template, and a module of no one."""
    folder = tmp_path / "parity"
    (folder / "pages/templates").mkdir(parents=True)
    for name, text in {
        "a.py": SOURCE,
        "b.py": "y = 3\n",
        "pages/__init__.py": "",
        "pages/templates/page.j2": "x",
    }.items():
        (folder / name).write_text(text)
    monkeypatch.setitem(code_digest.ROOTS, "parity", tmp_path)
    clear_caches()
    yield folder
    clear_caches()


def clear_caches():
    for name in ("find_file", "digest_source", "digest_module", "digest"):
        getattr(code_digest, name).cache_clear()


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("max(x", "min(x", True),
        ("Field(2", "Field(3", True),
        ("if x:", "if not x:", True),
        ("ValueError(", "KeyError(", True),
        ("refused", "not taken", False),
        ('"""Says."""', '"""Says more,\n    on two lines."""', False),
        ("of something", "of another thing", False),
        ("not allowed", "too large; allowed: 0", False),
        ("it is so", "it is otherwise", False),
    ],
)
def test_what_only_readers_see_is_no_code(package, old, new, changes):
    before = code_digest.digest("parity.a")
    assert old in SOURCE
    (package / "a.py").write_text(SOURCE.replace(old, new))
    clear_caches()
    assert (code_digest.digest("parity.a") != before) == changes


def test_a_result_is_named_by_its_own_modules_and_shared_numbers(package, monkeypatch):
    before = code_digest.digest("parity.a"), code_digest.digest("parity.a", measured=True)
    (package / "b.py").write_text("y = 4\n")
    clear_caches()
    assert (code_digest.digest("parity.a"), code_digest.digest("parity.a", measured=True)) == before
    monkeypatch.setattr(code_digest, "MEASURING", 10**6)
    clear_caches()
    assert code_digest.digest("parity.a") == before[0]
    assert code_digest.digest("parity.a", measured=True) != before[1]
    monkeypatch.setattr(code_digest, "ENGINE", 10**6)
    clear_caches()
    assert code_digest.digest("parity.a") != before[0]


def test_a_package_is_all_its_files(package):
    before = code_digest.digest("parity.pages")
    (package / "pages/templates/page.j2").write_text("y")
    clear_caches()
    assert code_digest.digest("parity.pages") != before
    with pytest.raises(ValueError, match=r"parity\.none: no module"):
        code_digest.digest("parity.none")


def test_a_run_says_what_it_makes_again_and_why(package, tmp_path, monkeypatch):
    record, used = tmp_path / "code.json", {"parity.a": "its cells are"}
    assert code_digest.describe_changes(used, record) == []
    code_digest.record_code(used, record)
    code_digest.record_code({"parity.b": ""}, record)
    assert code_digest.describe_changes(used, record) == []
    (package / "a.py").write_text(SOURCE.replace("max", "min"))
    clear_caches()
    assert code_digest.describe_changes(used, record) == [
        "parity.a has changed since the last run: its cells are made again"
    ]
    assert read_json(record).keys() == {"ENGINE", "MEASURING", "parity.a", "parity.b"}
    monkeypatch.setattr(code_digest, "ENGINE", 10**6)
    clear_caches()
    assert "everything is made again" in code_digest.describe_changes(used, record)[0]
