"""A pytest plugin: `assert_lossless` for the tests of other projects.

    def test_lossless(assert_lossless):
        assert_lossless(my_sampler, target="tests/tiny-llama", margin=0.05, false_alarm=1e-6)

It fails with what shows the fault again, and passes with the bound that was reached. Where no draft was offered or
accepted nothing was tested: the test fails as inconclusive. Nothing heavy is imported before the fixture is used.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LOOKS = (1.0, 1.5, 2.25)  # times the sequences that a bound below the margin takes nine times in ten


@pytest.fixture
def assert_lossless(tmp_path: Path, record_property: Callable[[str, Any], None]) -> Callable[..., Any]:
    """assert_lossless(sampler, target=..., margin=0.05, false_alarm=1e-6, ...) -> Certificate

    sampler      sample(prompts [n, P], seed) -> tokens [n, L], or parity_certify.Sampled with its counts of drafts
    target       folder of a model of transformers, a parity_certify.Law, or a callable of prefixes with `vocab`
    margin       TV that the bound must reach; false_alarm: the rate at which a correct sampler fails
    length, prompts, end, options   of the law (options: keywords of `generate`); n, batch, seed, processes: of sampling
    keep         folder where samples are kept (a temporary one)
    """

    def check(sampler: Any, *, target: Any, **settings: Any) -> Any:
        found = certified(sampler, target, tmp_path, **settings)
        record_property("parity", found.verdict.words)
        note = found.verdict.reason
        if found.exit_code == 1:
            pytest.fail(reproduction(found, target, settings), pytrace=False)
        if found.verdict.kind != "certified":
            pytest.fail(f"inconclusive: {note} (zero drafts, or too few samples, are no pass)", pytrace=False)
        print(f"parity: {note}")
        return found

    return check


def certified(
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
    batch: int = 100,
    processes: int = 1,
    keep: Path | None = None,
) -> Any:
    """The certificate, with more samples where the bound was missed by chance."""
    from parity_certify.evidence import needed
    from parity_certify.laws import Law
    from parity_certify.sampler import certify_sampler

    law = target if isinstance(target, Law) else law_for(target, vocab, length, prompts, end, options)
    wanted = n or needed(law.cells, margin, 0.025)
    given: dict[str, Any] = {"alpha": false_alarm, "seeds": (seed, seed + 1)}
    given |= {"batch": batch, "processes": processes, "folder": keep or folder / "parity", "tell": lambda text: None}
    if false_alarm < 1e-3:
        given["draws"] = 199  # no simulated null decides at such a rate: the e-process does
    for times in LOOKS if n is None else (1.0,):
        found = certify_sampler(sampler, law, n=int(wanted * times), margin=margin, **given)
        if found.verdict.kind != "consistent":
            break
    return found


def law_for(target: Any, vocab: int, length: int, prompts: Any, end: int | None, options: dict[str, Any] | None) -> Any:
    """The law of a folder's model, or of a callable."""
    import numpy as np

    if isinstance(target, str | Path):
        from parity_certify.adapters import transformers

        model = transformers.load(target)
        own = np.array([[0], [1]]) if prompts is None else prompts
        return transformers.law(model, own, length, options, end=end)
    from parity_certify.laws import law

    return law(target, vocab=vocab, length=length, prompts=((0,),) if prompts is None else prompts, end=end)


def reproduction(found: Any, target: Any, settings: dict[str, Any]) -> str:
    """What a maintainer needs to see it again."""
    from parity_certify.certificate import said_where

    seeds = sorted({r["seed"] for r in found.rows})
    model = target if isinstance(target, str | Path) else getattr(found.law, "name", "law")
    lines = [f"not lossless: {found.verdict.words} ({found.verdict.reason})", f"target: {model}"]
    lines += [f"seeds: {seeds}", f"settings: {settings}", said_where(found.beside["where"])]
    return "\n".join(lines)
