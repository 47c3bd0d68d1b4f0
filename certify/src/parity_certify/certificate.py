"""What a certification comes to: the verdict, the rows behind it, and what a maintainer needs to see a fault again."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special

from parity_certify import evidence, verdict
from parity_certify.independence import dependent
from parity_certify.joint_tests import digits
from parity_certify.laws import Law, first_of
from parity_certify.result_rows import ALPHA, Row
from parity_certify.verdict import Verdict

TESTS = ("joint G", "Valiant-Valiant", "pairs", "conditionals", "all four")


@dataclass
class Certificate:
    """verdict  a value (`verdict.Verdict`)
    rows     see rows
    name     of the sampler; claim: what it says of itself ("lossless", "lossy")
    beside   of a black box: n, drafted, accepted, rate, where (the prefix at which the laws differ most), needed
    """

    verdict: Verdict
    rows: list[Row]
    name: str = "sampler"
    claim: str = "lossless"
    beside: dict[str, Any] = field(default_factory=dict)
    law: Law | None = None
    counts: np.ndarray | None = None

    @property
    def exit_code(self) -> int:
        """0, 1 (lossy), 2 (inconclusive)."""
        return self.verdict.exit_code

    @property
    def mismatch(self) -> bool:
        """Whether the verdict contradicts the claim."""
        return self.verdict.breaks(self.claim)

    def __str__(self) -> str:
        v = self.verdict
        last = "all looks" if any(r["test"] == "all looks" for r in self.rows) else "Holm"
        heads = " ".join(f"{head:>8}" for head in ("n", "G", "V-V", "pairs", "condit.", "all four", last))
        lines = [f"{self.name}: {v.words}", f"  {v.reason}", "", f"  {'target':<14} {heads}  TV (95 %)"]
        for model, seed in dict.fromkeys((r["model"], r["seed"]) for r in self.rows):
            own = {r["test"]: r for r in self.rows if (r["model"], r["seed"]) == (model, seed)}
            deciding = own["all looks"]["p_value"] if last != "Holm" else own["all four"]["p_holm"]
            ps = [*(own[t]["p_value"] for t in TESTS), deciding]
            cells = " ".join(f"{'not run' if p is None else format(p, '.2g'):>8}" for p in ps)
            bound = own["TV certificate"]
            note = "; ".join(dict.fromkeys(n for n in (own["all four"]["note"], bound["note"]) if n))
            words = f"TV <= {bound['effect']:.4f}" if bound["effect"] < 1 else "not run"
            again = f"   (repeat, seed {seed})" if bound["repeat"] else ""
            lines.append(f"  {model:<14} {bound['n']:>8} {cells}  {words}{again}   {note}".rstrip())
        return "\n".join([*lines, *self.more()])

    def more(self) -> list[str]:
        """Lines on a black box: drafts, the place of the largest difference, the fault that fits."""
        b, lines = self.beside, []
        if b.get("drafted") is not None:
            lines += ["", f"  drafts: {b['accepted']} of {b['drafted']} accepted"]
        if "where" in b and self.exit_code == 1 and not self.verdict.dependent:
            lines += ["", "  " + said_where(b["where"])]
        if "diagnosis" in b:
            lines += ["", f"  diagnosis: {b['diagnosis']['says']}"]
        if self.verdict.untested:
            lines += ["", f"  tested: {'; '.join(self.verdict.tested)}"]
            lines += [f"  not tested: {'; '.join(self.verdict.untested)}"]
        return lines


def said_where(place: dict[str, Any]) -> str:
    """One line on where the laws differ most."""
    law, drawn = (" ".join(f"{p:.3f}" for p in place[which]) for which in ("law", "drawn"))
    behind = f"prompt {place['prompt']}, then {place['prefix'] or 'nothing'}"
    return f"differs most behind {behind}: law {law}; drawn {drawn} ({place['n']} sequences)"


def largest_difference(counts: np.ndarray, law: Law) -> dict[str, Any]:
    """The prompt and prefix behind which next tokens, drawn [K * V^L], are least likely under the law (largest G)."""
    K, V, L = len(law.prompts), law.vocab, law.length
    best: tuple[float, dict[str, Any]] = (-1.0, {})
    for depth in range(L):
        own = counts.reshape(K, V**depth, V, -1).sum(-1)  # [K, prefixes, V]
        p = law.tables[:, first_of(V, depth) : first_of(V, depth) + V**depth]
        total = own.sum(-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            g = 2 * np.where(own > 0, own * np.log(own / np.maximum(total * p, 1e-12)), 0).sum(-1)
        k, prefix = np.unravel_index(int(g.argmax()), g.shape)
        if g[k, prefix] > best[0]:
            drawn = own[k, prefix] / max(1, total[k, prefix, 0])
            place = {"prompt": law.prompts[k].tolist(), "prefix": digits(V, depth)[prefix].tolist() if depth else []}
            place |= {"law": p[k, prefix].tolist(), "drawn": drawn.tolist(), "n": int(total[k, prefix, 0])}
            best = (float(g[k, prefix]), place)
    return best[1]


def tv_low(first: np.ndarray, second: np.ndarray, law: Law, alpha: float = ALPHA) -> float:
    """A lower bound on the TV at 1 - alpha / 2: an event that the first seed's sample has too often, in the second's
    (Clopper-Pearson), less its probability. One sample chooses, the other judges, so it holds at any size. Events are
    of the prompt and the first 1, 2, ..., L tokens (few cells are chosen well by few samples), each with its share."""
    K, V, L = len(law.prompts), law.vocab, law.length
    best, n = 0.0, int(second.sum())
    for depth in range(1, L + 1):
        own, again, p = (x.reshape(K, V**depth, -1).sum(-1) for x in (first, second, law.cells))
        event = own > own.sum() * p
        hits = int(again[event].sum())
        least = float(special.betaincinv(hits, n - hits + 1, alpha / 2 / L)) if hits else 0.0
        best = max(best, least - float(p[event].sum()))
    return best


def concluded(
    rows: list[Row],
    law: Law,
    counts: np.ndarray,
    samples: Sequence[Any],
    *,
    margin: float,
    alpha: float,
    claim: str,
    name: str,
) -> Certificate:
    """The verdict on a black box: of its rows, and of its drafts (none accepted: nothing was tested)."""
    v: Verdict = verdict.verdicts(rows, {name: claim}, margin, alpha)[0]["value"]
    needed = evidence.needed(law.cells, margin)
    counted = [s.drafts() for s in samples]
    drafted = None if any(d is None for d, _ in counted) else sum(d for d, _ in counted)
    accepted = None if drafted is None else sum(a for _, a in counted)
    row = next((r for r in rows[::-1] if r["test"] == evidence.INDEPENDENCE), None)  # counts alone have no order
    wrong = [r for r in rows if r["test"] == "all looks"][-1]["verdict"] == "rejected"  # the law of single rows
    together = v.kind == "lossy" and row is not None and row["p_holm"] <= alpha
    if row and together and not (wrong and not dependent(samples[-1].batches, law)):
        reason = f"{row['note']}, on {len(samples)} seeds, p <= {alpha:g} each; or the law changes from call to call"
        v = replace(v, dependent=True, bound=None, estimate=None, interval=None, where=row["note"], reason=reason)
    elif v.kind == "lossy":  # of the fresh seed: its size was fixed beforehand
        again = [r for r in rows if r["test"] == "TV certificate"][-1]
        again["tv_low"] = tv_low(samples[0].counts, samples[-1].counts, law)
        again["tv"] = max(again["tv"], again["tv_low"])
        interval = f"95 % interval {again['tv_low']:.4f} to {again['tv_high']:.4f}"
        reason = f"on {law.name}, {interval}; rejected on {len(samples)} seeds, p <= {alpha:g} each"
        v = replace(v, estimate=again["tv"], interval=(again["tv_low"], again["tv_high"]), reason=reason)
    elif drafted == 0 or accepted == 0:
        what = "no draft was offered" if drafted == 0 else f"none of {drafted} drafts was accepted"
        v = replace(v, kind="inconclusive", reason=f"{what}: speculation was not tested")
    elif v.kind == "consistent":
        v = replace(v, reason=f"{v.reason}; a bound below {margin:g} takes about {needed} sequences")
    fresh, seconds = sum(s.fresh for s in samples), sum(s.seconds for s in samples)
    beside: dict[str, Any] = {"n": [s.n for s in samples], "drafted": drafted, "accepted": accepted, "needed": needed}
    beside |= {"rate": fresh / seconds if seconds else None, "where": largest_difference(counts, law)}
    beside |= {"alpha": alpha, "margin": margin}
    return Certificate(v, rows, name, claim, beside, law, counts)


__all__ = ["ALPHA", "Certificate", "concluded", "largest_difference"]
