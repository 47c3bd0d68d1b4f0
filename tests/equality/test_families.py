"""The exact layer on published families' own networks: the same verdicts, grammar forced and at no pass."""

import pytest
from parity_certify.verdict import judge_decoders
from parity_decoders.discrete.sjd import sjd
from parity_decoders.discrete.vvs import vvs

from parity.base.errors import ParityError
from parity.equality.exact import exact
from tests.benchmarks.conftest import load_script
from tests.contracts.test_contracts import decode_image
from tests.equality.faults import patch_module

families = load_script("families.py")
NEW = ("chameleon", "emu3", "janus")
WINDOW = {"window": 3, "init": "sample_above"}
CORRECT_BY_TARGET = patch_module("parity_decoders.verification", residual=lambda p, q: p).verify
WRONG = patch_module("parity_decoders.discrete.sjd", verify=CORRECT_BY_TARGET).sjd


@pytest.fixture(scope="module")
def family_targets(tmp_path_factory):
    """Targets of the families in NEW by name: tiny random networks in released formats."""
    return {t.name: t for t in families.make_targets(tmp_path_factory.mktemp("families"), NEW)}


@pytest.mark.parametrize(("decoder", "verdict"), [(sjd, "certified lossless"), (WRONG, "lossy: TV")])
@pytest.mark.parametrize("name", NEW)
def test_lossless_is_certified_and_a_fault_is_found(family_targets, name, decoder, verdict):
    rows = exact(decoder, [family_targets[name]], WINDOW, method="m", n=1500, draws=499)
    assert judge_decoders(rows, {}, 0.15)[0]["verdict"].startswith(verdict)


def test_a_pass_for_what_is_forced_is_an_error(family_targets):
    """A loop that knows no grammar reads the line's end and the image's, each in a pass of its own."""
    with pytest.raises(ParityError, match=r"row .*: [5-8] passes for 4 codes"):
        family_targets["chameleon"].draw(decode_image, 64, 0, {})


@pytest.mark.parametrize("top_k", [3, 6])
def test_what_is_taken_unverified_keeps_to_the_grammar(family_targets, top_k):
    """At a line's end all candidates but one are impossible, under top-k 3 all of a wider tree's but three; and a
    sequence of the tree is taken at random."""
    tree = {"total": 4 * top_k, "depth": 2, "top_k": top_k, "interval": 2, "k": 3}
    assert len(family_targets["chameleon"].draw(vvs, 64, 0, tree)) == 64
