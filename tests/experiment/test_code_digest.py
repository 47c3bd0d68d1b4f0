"""The import closure of a module, which holds nothing of other kinds, and a digest that writing does not change."""

import pytest

from parity.experiment import code_digest


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of four modules in place of `parity`: a imports b, b imports c inside a function, d is alone."""
    folder = tmp_path / "parity"
    (folder / "leaf").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "leaf/__init__": "",
        "a": '"""A."""\nimport os\nfrom parity import b\nx = 1\n',
        "b": "def f():\n    from parity.leaf.c import g\n    return g\n",
        "leaf/c": 'def g():\n    """Says."""\n    return 2  # two\n',
        "d": "y = 3\n",
    }.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setitem(code_digest.ROOTS, "parity", tmp_path)
    clear_caches()
    yield folder
    clear_caches()


def clear_caches():
    for name in ("find_file", "parse_source", "list_imports", "digest_module", "digest"):
        getattr(code_digest, name).cache_clear()


def test_closure_holds_nested_imports_and_their_packages(package):
    assert code_digest.list_closure("parity.a") == ["parity", "parity.a", "parity.b", "parity.leaf", "parity.leaf.c"]
    assert code_digest.list_closure("parity.d") == ["parity", "parity.d"]
    with pytest.raises(ValueError, match=r"parity.none: no module"):
        code_digest.list_closure("parity.none")


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("leaf/c", "return 2", "return 3", True),
        ("leaf/c", "# two", "# deux", False),
        ("leaf/c", "Says.", "Says more, on\n    two lines.", False),
        ("a", '"""A."""\n', "", False),
        ("a", "x = 1", "x = 1\n\n\nx  = 1", True),
        ("d", "y = 3", "y = 4", False),
    ],
)
def test_digest_changes_with_code_alone(package, file, old, new, changes):
    old_digest = code_digest.digest("parity.a")
    path = package / f"{file}.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    clear_caches()
    assert (code_digest.digest("parity.a") != old_digest) == changes


@pytest.mark.parametrize("file", ["leaf/templates/page.html.j2", "leaf/c.json"])
def test_templates_beside_a_package_and_json_beside_a_module_are_part_of_it(package, file):
    digest = code_digest.digest("parity.leaf.c")
    (package / file).parent.mkdir(exist_ok=True)
    (package / file).write_text("{}")
    clear_caches()
    assert code_digest.digest("parity.leaf.c") != digest


def test_a_digest_within_packages_ignores_edits_elsewhere(package):
    digests = code_digest.digest("parity.leaf.c"), code_digest.digest("parity.leaf.c", within=("parity.leaf.c",))
    (package / "leaf/__init__.py").write_text("CHANGED = 1")
    clear_caches()
    assert code_digest.digest("parity.leaf.c") != digests[0]
    assert code_digest.digest("parity.leaf.c", within=("parity.leaf.c",)) == digests[1]
