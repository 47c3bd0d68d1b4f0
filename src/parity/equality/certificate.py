"""One call for a decoder of your own: the exact layer and its verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parity.equality import verdict
from parity.equality.exact import exact, name_of
from parity.equality.rows import Row
from parity.equality.targets import Decoder
from parity.equality.targets.discrete import targets


@dataclass
class Certificate:
    """The verdict (see verdict.verdicts) and the rows behind it; printed, a short report."""

    verdict: dict[str, Any]
    rows: list[Row]

    def __str__(self) -> str:
        v = self.verdict
        heads = " ".join(f"{head:>8}" for head in ("n", "G", "V-V", "pairs", "condit.", "all four", "Holm"))
        lines = [f"{v['method']}: {v['verdict']}", f"  {v['note']}", "", f"  {'target':<14} {heads}  TV (95 %)"]
        for model, seed in dict.fromkeys((r["model"], r["seed"]) for r in self.rows):
            own = {r["test"]: r for r in self.rows if (r["model"], r["seed"]) == (model, seed)}
            tests = ("joint G", "Valiant-Valiant", "pairs", "conditionals", "all four")
            ps = [own[t]["p_value"] for t in tests] + [own["all four"]["p_holm"]]
            cells = " ".join(f"{'not run' if p is None else format(p, '.2g'):>8}" for p in ps)
            last = own["TV certificate"]
            note = "; ".join(dict.fromkeys(n for n in (own["all four"]["note"], last["note"]) if n))
            bound = last["verdict"].removesuffix(" (95 %)")
            again = f"   (repeat, seed {seed})" if last["repeat"] else ""
            lines.append(f"  {model:<14} {last['n']:>8} {cells}  {bound}{again}   {note}".rstrip())
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
    """Draw n sequences from every target with decoder(model, start, noise=..., **options), and judge them.

    decoder  f(model, start, *, noise, **options) -> iterator of parity.decoders.steps.Step
    models   "full" (31 targets) or "small" (6)
    seeds    the first is the run; what it rejects is repeated on the second
    margin   the TV below which a bound certifies; a perfect sampler's bound on 243 cells is about .02 at n = 1e5 and
             .0065 at 1e6
    claim    "lossy" lets the decoder sample tokens of probability zero (counted); under "lossless" that is a
             ParityError
    options  of the decoder; bind one whose name is taken above with functools.partial
    """
    method = name_of(decoder)
    rows = exact(decoder, targets(models), options, claim=claim, n=n, seeds=seeds, threads=threads)
    return Certificate(verdict.verdicts(rows, {method: claim}, margin)[0], rows)
