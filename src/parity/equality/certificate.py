"""One call for a decoder of your own: the exact layer and its verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parity.equality import verdict
from parity.equality.exact import Decoder, exact, name_of
from parity.equality.rows import Row


@dataclass
class Certificate:
    """The verdict (see verdict.verdicts) and the rows behind it; printed, a short report."""

    verdict: dict[str, Any]
    rows: list[Row]

    def __str__(self) -> str:
        v = self.verdict
        lines = [f"{v['method']}: {v['verdict']}", f"  {v['note']}", ""]
        lines.append(
            f"  {'target':<14} {'n':>8} {'G':>8} {'V-V':>8} {'pairs':>8} {'condit.':>8} {'all four':>8} {'Holm':>8}  TV (95 %)"
        )
        for model, seed in dict.fromkeys((r["model"], r["seed"]) for r in self.rows):
            own = {r["test"]: r for r in self.rows if (r["model"], r["seed"]) == (model, seed)}
            tests = ("joint G", "Valiant-Valiant", "pairs", "conditionals", "all four")
            ps = [own[t]["p_value"] for t in tests] + [own["all four"]["p_holm"]]
            cells = " ".join(f"{'not run' if p is None else format(p, '.2g'):>8}" for p in ps)
            last = own["TV certificate"]
            note = "; ".join(dict.fromkeys(n for n in (own["all four"]["note"], last["note"]) if n))
            again = f"   (repeat, seed {seed})" if last["repeat"] else ""
            lines.append(
                f"  {model:<14} {last['n']:>8} {cells}  {last['verdict'].removesuffix(' (95 %)')}{again}   {note}".rstrip()
            )
        return "\n".join(lines)


def certify(
    decoder: Decoder,
    *,
    n: int = 100_000,
    models: str = "full",
    seeds: Sequence[int] = (0, 1),
    margin: float = 0.025,
    claim: str = "lossless",
    threads: int = 1,
    **options: Any,
) -> Certificate:
    """Draw n sequences from every target with decoder(model, start, noise=..., **options) and judge them against the exact joint.

    decoder  f(model, start, *, noise, **options) -> iterator of parity.steps.Step
    models   "full" (31 targets) or "small" (6)
    seeds    the first is the run; what it rejects is repeated on the second
    margin   the TV below which a bound certifies; a perfect sampler's bound on 243 cells is about .02 at n = 1e5 and .0065 at 1e6
    claim    "lossy" lets the decoder sample tokens of probability zero (counted); under "lossless" that is a ValueError
    options  of the decoder; bind one whose name is taken above with functools.partial
    """
    method = name_of(decoder)
    rows = exact(decoder, options, method=method, claim=claim, n=n, models=models, seeds=seeds, threads=threads)
    return Certificate(verdict.verdicts(rows, {method: claim}, margin)[0], rows)
