"""The result of a certification: the verdict, the rows behind it, and what a maintainer needs to see a fault again."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special

from parity_certify import evidence, verdict
from parity_certify.calls import Drawn
from parity_certify.independence import dependent
from parity_certify.joint_tests import digits
from parity_certify.laws import Law, level
from parity_certify.result_rows import ALPHA, Row, describe_confidence
from parity_certify.verdict import Verdict


@dataclass
class Certificate:
    """verdict  a value (`verdict.Verdict`)
    rows     see `result_rows`
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
        v, b = self.verdict, self.beside
        lines = [f"{self.name}: {v.words}", f"  {v.reason}", ""]
        lines.append(
            f"  {'target':<14} {'sequences':>9} {'p-value':>8}  total variation ({describe_confidence(ALPHA)})"
        )
        for model, seed in dict.fromkeys((r["model"], r["seed"]) for r in self.rows):
            own = {r["test"]: r for r in self.rows if (r["model"], r["seed"]) == (model, seed)}
            p = own["all looks"]["p_value"] if "all looks" in own else own["all four"]["p_holm"]
            bound = own["TV certificate"]
            shown = f"{bound['n']:>9} {'-' if p is None else format(p, '.2g'):>8}"
            words = f"at most {bound['effect']:.4f}" if bound["effect"] < 1 else "-"
            notes = [f"repeat, seed {seed}" if bound["repeat"] else "", bound["note"]]
            note = f"   ({'; '.join(filter(None, notes))})" if any(notes) else ""
            lines.append(f"  {model:<14} {shown}  {words}{note}")
        if b.get("drafted") is not None:
            lines += ["", f"  drafts: {b['accepted']} of {b['drafted']} accepted"]
        if where := self.where:
            lines += ["", f"  {where}"]
        if "diagnosis" in b:
            lines += ["", f"  diagnosis: {b['diagnosis']['says']}"]
        if v.untested:
            lines += ["", f"  tested: {'; '.join(v.tested)}", f"  not tested: {'; '.join(v.untested)}"]
        return "\n".join(lines)

    @property
    def where(self) -> str:
        """Of a lossy sampler, one line on where the laws differ most."""
        place = self.beside.get("where")
        if not place or self.exit_code != 1 or self.verdict.dependent:
            return ""
        law, drawn = (" ".join(f"{p:.3f}" for p in place[which]) for which in ("law", "drawn"))
        behind = f"prompt {place['prompt']}, then {place['prefix'] or 'nothing'}"
        return f"differs most behind {behind}: law {law}; drawn {drawn} ({place['n']} sequences)"


def largest_difference(counts: np.ndarray, law: Law) -> dict[str, Any]:
    """The prompt and prefix behind which next tokens, drawn [K * V^L], are least likely under the law (largest G)."""
    K, V, L = len(law.prompts), law.vocab, law.length
    largest, place = -1.0, {}
    for depth in range(L):
        own = counts.reshape(K, V**depth, V, -1).sum(-1)  # [K, prefixes, V]
        p = law.tables[:, level(V, depth)]
        total = own.sum(-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            g = 2 * np.where(own > 0, own * np.log(own / np.maximum(total * p, 1e-12)), 0).sum(-1)
        k, prefix = np.unravel_index(int(g.argmax()), g.shape)
        if g[k, prefix] > largest:
            largest, n = float(g[k, prefix]), int(total[k, prefix, 0])
            place = {"prompt": law.prompts[k].tolist(), "prefix": digits(V, depth)[prefix].tolist() if depth else []}
            place |= {"law": p[k, prefix].tolist(), "drawn": (own[k, prefix] / max(1, n)).tolist(), "n": n}
    return place


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


def conclude(
    rows: list[Row], law: Law, samples: Sequence[Drawn], *, margin: float, alpha: float, claim: str, name: str
) -> Certificate:
    """The verdict on a black box: of its rows, and of its drafts (none accepted: nothing was tested)."""
    v: Verdict = verdict.verdicts(rows, {name: claim}, margin, alpha)[0]["value"]
    counts, needed = samples[-1].counts, evidence.needed(law.cells, margin)
    drafts = [s.drafts() for s in samples]
    drafted, accepted = (None if None in numbers else sum(numbers) for numbers in zip(*drafts, strict=True))
    last = {r["test"]: r for r in rows}
    independence, certificate = last.get(evidence.INDEPENDENCE), last["TV certificate"]
    law_rejected = last["all looks"]["verdict"] == "rejected"  # of single rows
    rejected = v.kind == "lossy" and independence is not None and independence["p_holm"] <= alpha
    if independence and rejected and not (law_rejected and not dependent(samples[-1].batches, law)):
        where = independence["note"]
        reason = f"{where}, on {len(samples)} seeds, p <= {alpha:g} each; or the law changes from call to call"
        v = replace(v, dependent=True, bound=None, estimate=None, interval=None, where=where, reason=reason)
    elif v.kind == "lossy":  # measured on the fresh seed, whose size was fixed beforehand
        certificate["tv_low"] = tv_low(samples[0].counts, counts, law)
        certificate["tv"] = max(certificate["tv"], certificate["tv_low"])
        low, high = interval = certificate["tv_low"], certificate["tv_high"]
        reason = f"on {law.name}, {describe_confidence(ALPHA)} interval {low:.4f} to {high:.4f}"
        reason += f"; rejected on {len(samples)} seeds, p <= {alpha:g} each"
        v = replace(v, estimate=certificate["tv"], interval=interval, reason=reason)
    elif drafted == 0 or accepted == 0:
        what = "no draft was offered" if drafted == 0 else f"none of {drafted} drafts was accepted"
        v = replace(v, kind="inconclusive", reason=f"{what}: speculation was not tested")
    elif v.kind == "consistent":
        v = replace(v, reason=f"{v.reason}; a bound below {margin:g} takes about {needed} sequences")
    fresh, seconds = sum(s.fresh for s in samples), sum(s.seconds for s in samples)
    beside: dict[str, Any] = {"n": [s.n for s in samples], "drafted": drafted, "accepted": accepted, "needed": needed}
    beside |= {"rate": fresh / seconds if seconds else None, "where": largest_difference(counts, law)}
    return Certificate(v, rows, name, claim, beside | {"alpha": alpha, "margin": margin}, law, counts)
