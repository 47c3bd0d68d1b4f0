"""The plugin in another project's tests: it fails with what shows the fault again, and passes with the bound."""

import sys

pytest_plugins = ["pytester"]
HEAD = """
import numpy as np

P = np.array([0.5, 0.3, 0.2])

def probs(prefixes):
    return np.tile(P, (len(prefixes), 1))

def draw(p, prompts, seed):
    return np.random.default_rng(seed).choice(3, p=p, size=(len(prompts), 2))

def given(assert_lossless, sampler):
    return assert_lossless(sampler, target=probs, vocab=3, length=2, margin=0.1, false_alarm=1e-6)
"""


def run_pytest(pytester, body):
    """Run pytest with the plugin on a test file of this body, in a process; return its result."""
    pytester.makepyfile(HEAD + body)
    flags = ["-p", "no:parity_certify", "-p", "parity_certify.plugin", "-p", "no:cacheprovider", "-rA"]
    return pytester.runpytest_subprocess(*flags)


def test_a_project_that_uses_it(pytester):
    result = run_pytest(
        pytester,
        """
def test_right(assert_lossless):
    import sys  # a callable's distribution needs no torch, whose import alone takes seconds
    assert given(assert_lossless, lambda p, s: draw(P, p, s)).verdict.bound <= 0.1
    assert not {"torch", "transformers", "scipy.stats"} & set(sys.modules)

def test_wrong(assert_lossless):
    given(assert_lossless, lambda p, s: draw(P[::-1], p, s))

def test_never_drafted(assert_lossless):
    from parity_certify import Sampled
    given(assert_lossless, lambda p, s: Sampled(draw(P, p, s), 0, 0))
""",
    )
    result.assert_outcomes(passed=1, failed=2)
    text = result.stdout.str()
    assert "parity: TV <= 0.0" in text and "not lossless: lossy: TV = " in text and "target: probs" in text
    assert "differs most after prompt [0], then" in text and "distribution 0.500 0.300 0.200; drawn" in text
    assert "inconclusive: no draft was offered" in text and "seeds: [0, 1]" in text


def test_it_starts_without_torch():
    """Every run of pytest loads it, once the package is installed."""
    from subprocess import run

    program = "import sys, parity_certify.plugin; print(sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    assert run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "[]"
