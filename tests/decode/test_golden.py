"""Every decoder draws on every family of models what it drew when `golden.json` was written."""

from typing import Any

import pytest
import torch

from parity.base.files import read_json
from parity.experiment.code_digest import ENGINE
from tests.decode.golden import FAMILIES, GOLDEN, LONG, Golden, list_differences, read_golden

KERNELS = torch.backends.cpu.get_cpu_capability()  # those of AVX-512 round otherwise than AVX2's, of which the file is
ROUNDS = ("harmon",)  # families whose vectors this changes


@pytest.mark.parametrize("family", [pytest.param(f, marks=[pytest.mark.long] * (f in LONG)) for f in FAMILIES])
def test_tokens_passes_and_nodes_are_those_recorded(family, tmp_path):
    if family in ROUNDS and KERNELS != "AVX2":
        pytest.skip(f"recorded with the kernels of AVX2, not of {KERNELS}: ATEN_CPU_CAPABILITY=avx2 pytest ...")
    assert not list_differences(read_golden(family), dict(Golden(family, tmp_path).generate()))


def test_the_number_that_names_samples_is_that_of_the_recorded_cases():
    """Shared code that changes what is drawn raises it, so that samples of before are not taken for today's."""
    assert read_json(GOLDEN)["ENGINE"] == [ENGINE], "python -m tests.decode.golden --write"


CHANGES: dict[str, dict[str, Any]] = {
    "seed": {"seed": 8},
    "acceptance": {"options": {"window": 3, "init": "random", "refine": True, "tolerance": 0.3}},
    "guidance": {"sampling": {"guidance": 2.1, "temperature": 2.0, "top_k": 40, "top_p": 0.95}},
    "top-k": {"sampling": {"guidance": 2.0, "temperature": 2.0, "top_k": 20, "top_p": 0.95}},
}


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """LlamaGen's random network of classes, whose cases are made fastest."""
    return Golden("llamagen_c2i", tmp_path_factory.mktemp("llamagen_c2i"))


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_ingredient_is_noticed(name, classes):
    """Must fail: other noise, another rule of acceptance, other distributions."""
    case = "llamagen_c2i sjd"
    recorded = {case: read_golden("llamagen_c2i")[case]}
    assert not list_differences(recorded, {case: classes.compute("sjd")})
    (difference,) = list_differences(recorded, {case: classes.compute("sjd", **CHANGES[name])})
    assert difference.startswith(f"{case}: tokens ")
