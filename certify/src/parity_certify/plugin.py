"""A pytest plugin: `assert_lossless` for the tests of other projects.

    def test_lossless(assert_lossless):
        assert_lossless(my_sampler, target="tests/tiny-llama", margin=0.05, false_alarm=1e-6)

Nothing heavy is imported before the fixture is used.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LOOKS = (1.0, 1.5, 2.25)  # sample sizes, as multiples of what a bound below the margin takes


@pytest.fixture
def assert_lossless(tmp_path: Path, record_property: Callable[[str, Any], None]) -> Callable[..., Any]:
    """Fail unless a sampler is certified lossless.

        assert_lossless(sampler, target=..., margin=0.05, false_alarm=1e-6, ...)

    Returns its Certificate, with the bound that was reached. A failure says how to see the fault again. Where no draft
    was offered or accepted nothing was tested: it fails as inconclusive.

    sampler      sample(prompts [n, P], seed) -> tokens [n, L], or parity_certify.Sampled with its counts of drafts
    target       folder of a model of transformers, a parity_certify.Distribution, or a callable of prefixes with
                 `vocab`
    margin       TV that the bound must reach; false_alarm: the rate at which a correct sampler fails
    length, prompts, end, options   of the distribution (options: keywords of `generate`); n, batch, seed, processes: of
                                    sampling
    keep         folder where samples are kept (a temporary one)
    """

    def check(sampler: Any, *, target: Any, keep: Path | None = None, **settings: Any) -> Any:
        """Certify the sampler, record the verdict as the test's property, and fail the test unless it is certified."""
        certificate = certify(sampler, target, keep or tmp_path / "parity", **settings)
        record_property("parity", certificate.verdict.words)
        reason = certificate.verdict.reason
        if certificate.exit_code == 1:
            name = target if isinstance(target, str | Path) else certificate.distribution.name
            lines = [f"not lossless: {certificate.verdict.words} ({reason})", f"target: {name}"]
            lines.append(f"seeds: {sorted({r['seed'] for r in certificate.rows})}")
            lines += [f"settings: {settings}", certificate.where]
            pytest.fail("\n".join(lines).rstrip(), pytrace=False)
        if certificate.verdict.kind != "certified":
            pytest.fail(f"inconclusive: {reason} (zero drafts, or too few samples, are no pass)", pytrace=False)
        print(f"parity: {reason}")
        return certificate

    return check


def certify(
    sampler: Any,
    target: Any,
    folder: Path,
    *,
    margin: float = 0.05,
    false_alarm: float = 1e-6,
    length: int = 3,
    prompts: Any = None,
    vocab: int = 0,
    end: int | None = None,
    options: dict[str, Any] | None = None,
    n: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Any:
    """Certify a sampler against a target of any form that `assert_lossless` takes, storing samples in `folder`. Without
    `n`, samples up to 2.25 times as many as a bound below the margin needs, because it may be missed by chance."""
    from parity_certify.distributions import Distribution, target_distribution
    from parity_certify.evidence import DRAWS, needed
    from parity_certify.sampler import certify_sampler
    from parity_certify.seeding import pair_seeds

    if isinstance(target, Distribution):
        known = target
    elif isinstance(target, str | Path):
        from parity_certify.adapters import transformers

        model = transformers.load_model(target)
        prompts = [[0], [1]] if prompts is None else prompts
        known = transformers.compute_distribution(model, prompts, length, options, end=end)
    else:
        known = target_distribution(
            target, vocab=vocab, length=length, prompts=[[0]] if prompts is None else prompts, end=end
        )
    size = n or needed(known.cells, margin, 0.025)
    settings |= {"margin": margin, "alpha": false_alarm, "seeds": pair_seeds(seed), "tell": lambda text: None}
    settings["draws"] = 199 if false_alarm < 1e-3 else DRAWS  # below 1e-3 the e-process decides, not a simulated null
    for times in LOOKS if n is None else (1.0,):
        certificate = certify_sampler(sampler, known, n=int(size * times), folder=folder, **settings)
        if certificate.verdict.kind != "consistent":
            break
    return certificate
