"""The exact layer on published families' own networks: the same verdicts, grammar forced and at no pass."""

import pytest
import torch
from parity_certify.verdict import judge_decoders
from parity_decoders.discrete.sjd import sjd
from parity_decoders.discrete.vvs import vvs
from parity_decoders.steps import Step

from parity.base.errors import ParityError
from parity.equality.exact import exact
from parity.equality.faults import altered
from parity.equality.faults import discrete as faults
from tests.benchmarks.conftest import load_script

families = load_script("families.py")
NEW = ("chameleon", "emu3", "janus")
WINDOW = {"window": 3, "init": "sample_above"}
WRONG = altered(
    "parity_decoders.discrete.sjd",
    verify=altered("parity_decoders.verification", residual=lambda p, q: p).verify,  # a rejected draft gives way to p
).sjd


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return {t.name: t for t in families.make_targets(tmp_path_factory.mktemp("families"), NEW)}


@pytest.mark.parametrize("name", NEW)
def test_lossless_is_certified_and_a_fault_is_found(found, name):
    target = found[name]
    assert target.law.sum() == pytest.approx(1, abs=1e-12) and (target.law > 0).sum() == 3**4  # top-k leaves three
    settings = {"method": "m", "n": 1500, "draws": 499}
    judged = [judge_decoders(exact(decode, [target], WINDOW, **settings), {}, 0.15)[0] for decode in (sjd, WRONG)]
    assert judged[0]["verdict"] == "certified lossless", judged[0]
    assert judged[1]["verdict"].startswith("lossy: TV"), judged[1]


def drawn(target, tokens):
    """A decoder that writes a picture at once, without asking."""

    def decoder(model, start, *, noise):
        new = tokens.expand(len(start), -1)
        yield Step(new, torch.full_like(start, new.shape[1]), start)

    return target.draw(decoder, 2, 0, {})


def test_a_picture_that_breaks_the_grammar_is_an_error(found):
    target = found["emu3"]
    right = target.forced.clamp(min=0)
    assert target.forced.tolist() == [-1, -1, 4, -1, -1, 4, 5, 6] and drawn(target, right).tolist() == [0, 0]
    for position, token, what in ((2, 5, "token 5; allowed: 4, which the grammar forces"), (3, 4, "a code, 0 to 3")):
        wrong = right.clone()
        wrong[position] = token
        with pytest.raises(
            ParityError, match=f"model emu3, row 0, position {position}: token {token}; allowed"
        ) as told:
            drawn(target, wrong)
        assert what in str(told.value)


def test_a_pass_for_what_is_forced_is_an_error(found):
    """A loop that knows no grammar verifies the line's end and the picture's, each in a pass of its own."""
    with pytest.raises(ParityError, match=r"row .*: [5-8] passes for 4 codes"):
        found["chameleon"].draw(faults.jacobi, 64, 0, {"window": 1})


@pytest.mark.parametrize("top_k", [3, 6])
def test_what_is_taken_unverified_keeps_to_the_grammar(found, top_k):
    """At a line's end all candidates but one are impossible, under top-k 3 all of a wider tree's but three; and a
    sequence of the tree is taken at random."""
    tree = {"total": 4 * top_k, "depth": 2, "top_k": top_k, "interval": 2, "k": 3}
    assert len(found["chameleon"].draw(vvs, 64, 0, tree)) == 64
