"""Decoders that users wrote for Parity get their verdicts; a name on the command line is found, or refused in one
line."""

from pathlib import Path

import pytest
import torch
from parity_certify import import_by_name
from parity_decoders.discrete.ar import ar
from parity_decoders.discrete.sjd import sjd
from parity_decoders.steps import Step

from parity.base.errors import ParityError
from parity.certify import __main__ as command
from parity.certify import certify

ROOT = Path(__file__).parents[2]


def test_users_decoders_get_their_verdicts(monkeypatch, capsys, tmp_path):
    """The documented example: the correct one by the command, the subtly wrong one by the call."""
    settings = ["--models", "small", "--n", "3000", "--margin", "0.1", "--out", f"{tmp_path}/out"]
    monkeypatch.setattr("sys.argv", ["", "decoder", f"{ROOT}/docs/example_decoders.py:lookahead", *settings])
    with pytest.raises(SystemExit) as exit_info:
        command.main(command.add_decoder)
    printed = capsys.readouterr()
    assert exit_info.value.code == 0, printed.out + printed.err
    assert printed.out.startswith("lookahead: certified lossless"), printed.out + printed.err
    assert printed.out.endswith(f"\nreport: {tmp_path}/out/report.html\n")
    assert (tmp_path / "out/report.html").exists()
    certificate = certify(import_by_name.load(f"{ROOT}/docs/example_decoders.py:hasty"), n=3000, models="small")
    assert certificate.verdict.words.startswith("lossy: TV = 0.1")
    assert certificate.mismatch
    assert certificate.exit_code == 1
    assert str(certificate).startswith("hasty: lossy: TV = 0.1")
    assert "(repeat, seed 1)" in str(certificate)


def test_the_call_takes_options():
    verdict = certify(sjd, n=3000, models="small", margin=0.1, window=2).verdict
    assert verdict.kind == "certified"
    assert "options window=2 " in verdict.tested[1]
    assert import_by_name.parse_option("window=2") == ("window", 2)
    assert import_by_name.parse_option("init=random") == ("init", "random")


def test_a_decoder_of_one_pass_is_warned_about():
    """A decoder that draws all tokens in its first pass, or one a pass, is certified, with a list of what was not
    tested."""

    def draw_in_one_pass(model, start, *, noise):
        """Decode by `ar`, but yield all tokens [B, L] in a single step, as if one pass had drawn them."""
        steps = list(ar(model, start, noise=noise))
        tokens = torch.cat([step.tokens for step in steps], 1)
        yield Step(tokens, torch.full_like(start, tokens.shape[1]), steps[0].positions)

    for decoder, gap in (
        (draw_in_one_pass, "a second pass: there were 1.00 a sequence"),
        (ar, "no draft was accepted"),
        (sjd, ""),
    ):
        certificate = certify(decoder, n=2000, models="small", margin=0.2)
        assert certificate.verdict.kind == "certified"
        assert len(certificate.warnings) == bool(gap)
        assert gap in "".join(certificate.warnings)
        assert set(certificate.warnings) <= set(certificate.verdict.untested)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:f", "nowhere.py: no such file"),
        ("sjd", "sjd: allowed: MODULE:FUNCTION or FILE.py:FUNCTION"),
        ("json:sjd", "json: has no 'sjd'"),
        ("no.such:f", "no.such: no such module"),
    ],
)
def test_a_name_that_is_not_found_is_one_line(name, message):
    with pytest.raises(ParityError, match=message):
        import_by_name.load(name)
