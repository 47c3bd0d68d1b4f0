"""A job of one kind, layer or method depends on the sources of its own alone."""

import pytest

from parity.experiment.code_digest import closure

LEAVES = {
    "discrete": ("targets.discrete", "faults.discrete", "layers.discrete.teacher_forced", "layers.discrete.pathwise"),
    "anysubset": ("targets.anysubset", "faults.anysubset", "layers.anysubset.teacher_forced"),
    "continuous": ("targets.continuous", "faults.continuous", "layers.continuous.one_token"),
}
OTHERS = [(kind, leaf) for kind, leaves in LEAVES.items() for leaf in leaves]


@pytest.mark.parametrize(("kind", "leaf"), OTHERS)
def test_a_leaf_imports_nothing_of_another_kind(kind, leaf):
    found = closure("parity.equality.__main__", "parity.equality.exact", f"parity.equality.{leaf}")
    foreign = [m for m in found if any(f".{other}" in m for other in LEAVES if other != kind)]
    assert [m for m in foreign if m.split(".")[1] in ("equality", "decoders", "decode")] == []
    layers = [m for m in found if m.startswith(f"parity.equality.layers.{kind}.")]
    assert layers == ([f"parity.equality.{leaf}"] if leaf.startswith("layers") else [])
