"""The import closure of a module, which holds nothing of other kinds, and a digest that writing does not change."""

import pytest

from parity.experiment import code_digest
from parity.experiment.code_digest import list_closure


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
    """Forget all digests and imports that were computed before."""
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


def test_templates_beside_a_package_are_part_of_it(package):
    digest = code_digest.digest("parity.leaf.c")
    (package / "leaf/templates").mkdir()
    (package / "leaf/templates/page.html.j2").write_text("<p>")
    clear_caches()
    assert code_digest.digest("parity.leaf.c") != digest


def test_json_beside_a_module_of_its_name_is_part_of_it(package):
    digest = code_digest.digest("parity.leaf.c")
    (package / "leaf/c.json").write_text("{}")
    clear_caches()
    assert code_digest.digest("parity.leaf.c") != digest


def test_a_digest_within_packages_ignores_edits_elsewhere(package):
    digests = code_digest.digest("parity.leaf.c"), code_digest.digest("parity.leaf.c", within=("parity.leaf.c",))
    (package / "leaf/__init__.py").write_text("CHANGED = 1")
    clear_caches()
    assert code_digest.digest("parity.leaf.c") != digests[0]
    assert code_digest.digest("parity.leaf.c", within=("parity.leaf.c",)) == digests[1]


LEAVES = {
    "discrete": ("targets.discrete", "faults.discrete", "layers.discrete.teacher_forced", "layers.discrete.pathwise"),
    "anysubset": ("targets.anysubset", "faults.anysubset", "layers.anysubset.teacher_forced"),
    "continuous": ("targets.continuous", "faults.continuous", "layers.continuous.one_token"),
}
OTHERS = [(kind, leaf) for kind, leaves in LEAVES.items() for leaf in leaves]


@pytest.mark.parametrize(("kind", "leaf"), OTHERS)
def test_a_leaf_imports_nothing_of_another_kind(kind, leaf):
    closure = list_closure("parity.equality.__main__", "parity.equality.exact", f"parity.equality.{leaf}")
    foreign = [m for m in closure if any(f".{another}" in m for another in LEAVES if another != kind)]
    assert [m for m in foreign if m.split(".")[1] in ("equality", "decoders", "decode")] == []
    layers = [m for m in closure if m.startswith(f"parity.equality.layers.{kind}.")]
    assert layers == ([f"parity.equality.{leaf}"] if leaf.startswith("layers") else [])
