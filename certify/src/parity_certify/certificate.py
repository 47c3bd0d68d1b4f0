"""The result of a certification: the verdict, its rows, and what a maintainer needs to see a fault again."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special

from parity_certify import evidence, verdict
from parity_certify.calls import Drawn
from parity_certify.distributions import Distribution, select_level
from parity_certify.independence import has_dependent_rows
from parity_certify.joint_tests import digits
from parity_certify.result_rows import ALPHA, Row, describe_confidence
from parity_certify.verdict import Verdict

FEW_ROUNDS = 1.1  # with fewer rounds a sequence, a second round is hardly tested
RARE = 0.05  # if a smaller share of drafts is rejected, or accepted, what follows is hardly tested


@dataclass(frozen=True)
class Certificate:
    """The result of a certification: verdict, rows (see `result_rows`), and the sampler's name and claim ("lossless" or
    "lossy"). details: n, drafted, accepted, rounds (of drafting and verifying, a sequence), warnings, rate, where (the
    prefix at which the distributions differ most), needed; certificate.json has them as "beside". parts: the
    certificates of several conditions that it combines."""

    verdict: Verdict
    rows: list[Row]
    name: str = "sampler"
    claim: str = "lossless"
    details: dict[str, Any] = field(default_factory=dict)
    distribution: Distribution | None = None
    counts: np.ndarray | None = None
    parts: tuple["Certificate", ...] = ()

    @property
    def law(self) -> Distribution | None:  # deprecated
        """Old name of `distribution`."""
        warnings.warn("deprecated: use `distribution`", DeprecationWarning, stacklevel=2)
        return self.distribution

    @property
    def exit_code(self) -> int:
        """The verdict's exit code: 0 (what is required), 1 (lossy), 2 (inconclusive, or less than is required)."""
        return self.verdict.exit_code

    @property
    def mismatch(self) -> bool:
        """Whether the verdict contradicts the claim."""
        return self.verdict.contradicts(self.claim)

    def __str__(self) -> str:
        """Write the report for a terminal: verdict and drafts, p-value and bound by target and seed, diagnosis,
        scope."""
        if "tokens" in self.details:  # texts have other tests and another report
            return report_texts(self)
        v = self.verdict
        lines = [f"{self.name}: {v.words} ({self.drafts})", f"  {v.reason}", ""]
        lines.append(
            f"  {'target':<14} {'sequences':>9} {'p-value':>8}  total variation ({describe_confidence(ALPHA)})"
        )
        for model, seed in dict.fromkeys((r["model"], r["seed"]) for r in self.rows):
            rows = {r["test"]: r for r in self.rows if (r["model"], r["seed"]) == (model, seed)}
            p = rows["all looks"]["p_value"] if "all looks" in rows else rows["all four"]["p_holm"]
            bound = rows["TV certificate"]
            shown = f"{bound['n']:>9} {'-' if p is None else format(p, '.2g'):>8}"
            words = f"at most {bound['effect']:.4f}" if bound["effect"] < 1 else "-"
            notes = [f"repeat, seed {seed}" if bound["repeat"] else "", bound["note"]]
            note = f"   ({'; '.join(filter(None, notes))})" if any(notes) else ""
            lines.append(f"  {model:<14} {shown}  {words}{note}")
        lines += [f"  hardly tested: {text}" for text in self.warnings]
        if self.where:
            lines += ["", f"  {self.where}"]
        if "diagnosis" in self.details:
            lines += ["", f"  diagnosis: {self.details['diagnosis']['says']}"]
        if v.untested:
            untested = [text for text in v.untested if text not in self.warnings]
            lines += ["", f"  tested: {'; '.join(v.tested)}", f"  not tested: {'; '.join(untested)}"]
        return "\n".join(lines)

    @property
    def drafts(self) -> str:
        """How much was speculated, in words for the verdict's own line; a sampler that counts no drafts may have drawn
        plainly."""
        details = self.details
        if details.get("drafted") is None:
            return "drafts: not known, it may have drawn plainly"
        rounds = "" if details.get("rounds") is None else f", {details['rounds']:.2f} rounds a sequence"
        return f"drafts: {details['accepted']} of {details['drafted']} accepted{rounds}"

    @property
    def warnings(self) -> list[str]:
        """What speculation did not meet in this test."""
        return self.details.get("warnings", [])

    @property
    def where(self) -> str:
        """One line on the prompt and prefix after which a lossy sampler's next tokens differ most; "" if it is not
        lossy, or if it is only that its rows depend on each other."""
        prefix = self.details.get("where")
        if self.exit_code != 1 or self.verdict.dependent:
            return ""
        if not prefix:
            return f"differs most at {self.verdict.where}" if "tokens" in self.details and self.verdict.where else ""
        distribution, drawn = (" ".join(f"{p:.3f}" for p in prefix[which]) for which in ("distribution", "drawn"))
        compared = f"distribution {distribution}; drawn {drawn} ({prefix['n']} sequences)"
        return f"differs most after {name_prefix(prefix)}: {compared}"


def report_texts(c: Certificate) -> str:
    """Write what a certificate of texts says: the verdict, a line a test, what was tested and what was not."""
    v, details = c.verdict, c.details
    count = details["n"][0]
    total = "" if count == details["of"] else f" of {details['of']}: the time was used up"
    lines = [f"{count} texts{total}, {details['tokens']} tokens: {v.words} ({c.drafts})"]
    lines += [f"  {v.reason}", f"  {details['tests']}"]
    if v.where:
        lines.append(f"  differs most at {v.where}")
    lines.append("")
    for r in (r for r in c.rows if r["decides"] and r["p_value"] is not None):
        smallest = r["minimum_detectable_effect"]
        limit = f"; least effect that is found {smallest:.3g}" if smallest else ""
        p = f"p = {r['p_value']:.2g} (Holm {r['p_holm']:.2g})"
        lines.append(f"  {r['test']:<16} {p}, effect {r['effect']:.3g}{limit}")
    lines += ["", f"  tested: {'; '.join(v.tested)}", f"  not tested: {'; '.join(v.untested)}"]
    return "\n".join(lines)


def name_prefix(prefix: dict[str, Any]) -> str:
    """Name the prompt and prefix in a result of `find_largest_difference`."""
    return f"prompt {prefix['prompt']}, then {prefix['prefix'] or 'nothing'}"


def find_gaps(n: int, drafted: int | None, accepted: int | None, rounds: int | None) -> list[str]:
    """Say in sentences what the speculation of n sequences hardly met: a second round, a rejection, or an acceptance.
    Empty if drafts were not counted or none was accepted."""
    if not drafted or not accepted:
        return []
    gaps = []
    if rounds is None:
        gaps.append("a second round of speculation, as far as is known: rounds were not counted")
    elif rounds < FEW_ROUNDS * n:
        gap = f"a second round of speculation: there were {rounds / n:.2f} a sequence"
        gaps.append(f"{gap}; longer sequences or fewer drafts a round have more")
    share = accepted / drafted
    if share > 1 - RARE:
        gaps.append(f"what follows a rejection: {share:.1%} of the drafts were accepted; try a draft that differs more")
    if share < RARE:
        gaps.append(f"what follows an acceptance: {share:.1%} of the drafts were accepted; try a draft that is nearer")
    return gaps


def find_largest_difference(counts: np.ndarray, distribution: Distribution) -> dict[str, Any]:
    """Find the prompt and prefix whose next tokens, in counts [K * V^L], are least likely under the distribution
    (largest G). Returns a dict of prompt, prefix, distribution [V] and drawn share [V] of the next token, and their
    number n."""
    K, V, L = len(distribution.prompts), distribution.vocab, distribution.length
    largest, prefix_found = -1.0, {}
    for depth in range(L):
        drawn = counts.reshape(K, V**depth, V, -1).sum(-1)  # [K, prefixes, V]
        p = distribution.tables[:, select_level(V, depth)]
        total = drawn.sum(-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            g = 2 * np.where(drawn > 0, drawn * np.log(drawn / np.maximum(total * p, 1e-12)), 0).sum(-1)
        k, prefix = np.unravel_index(int(g.argmax()), g.shape)
        if g[k, prefix] > largest:
            largest, n = float(g[k, prefix]), int(total[k, prefix, 0])
            prefix_found = {
                "prompt": distribution.prompts[k].tolist(),
                "prefix": digits(V, depth)[prefix].tolist() if depth else [],
            }
            prefix_found |= {
                "distribution": p[k, prefix].tolist(),
                "drawn": (drawn[k, prefix] / max(1, n)).tolist(),
                "n": n,
            }
    return prefix_found


def bound_tv_from_below(
    first: np.ndarray, second: np.ndarray, distribution: Distribution, alpha: float = ALPHA
) -> float:
    """Bound the TV from below, at confidence 1 - alpha / 2: of an event that the first sample has too often, its share
    in the second (Clopper-Pearson) less its probability. One sample chooses, the other judges, so it holds at any size.
    Events are of the prompt and the first 1, 2, ..., L tokens (a small sample chooses well among few)."""
    K, V, L = len(distribution.prompts), distribution.vocab, distribution.length
    best = 0.0
    n = int(second.sum())
    for depth in range(1, L + 1):
        chosen, judged, p = (x.reshape(K, V**depth, -1).sum(-1) for x in (first, second, distribution.cells))
        event = chosen > chosen.sum() * p
        hits = int(judged[event].sum())
        share = float(special.betaincinv(hits, n - hits + 1, alpha / 2 / L)) if hits else 0.0
        best = max(best, share - float(p[event].sum()))
    return best


def make_certificate(
    rows: list[Row],
    distribution: Distribution,
    samples: Sequence[Drawn],
    *,
    margin: float,
    alpha: float,
    claim: str,
    name: str,
) -> Certificate:
    """Make the certificate of a sampler with this claim from its rows and samples, of one seed or two. It is
    inconclusive if drafts were counted and none was accepted, and names dependence instead of a TV if the rows depend
    on each other. For a lossy sampler its last row "TV certificate" has the TV and interval of the fresh seed."""
    v: Verdict = verdict.judge_decoders(rows, {name: claim}, margin, alpha)[0]["value"]
    counts = samples[-1].counts
    needed = evidence.needed(distribution.cells, margin)
    drafts = [s.count_drafts() for s in samples]
    drafted, accepted, rounds = (None if None in numbers else sum(numbers) for numbers in zip(*drafts, strict=True))
    total = sum(s.n for s in samples)
    prefix = find_largest_difference(counts, distribution)
    last_rows = {r["test"]: r for r in rows}
    independence = last_rows.get(evidence.INDEPENDENCE)
    certificate = last_rows["TV certificate"]
    # by the test of the distribution of single rows
    distribution_rejected = last_rows["all looks"]["verdict"] == "rejected"
    rejected = v.kind == "lossy" and independence is not None and independence["p_holm"] <= alpha
    if (
        independence
        and rejected
        and not (distribution_rejected and not has_dependent_rows(samples[-1].batches, distribution))
    ):
        order = independence["note"]
        reason = (
            f"{order}, on {len(samples)} seeds, p <= {alpha:g} each; or the distribution changes from call to call."
        )
        reason += " Do rows share random numbers? Give each row a generator of its own (certify/docs/function.md)"
        v = replace(v, dependent=True, bound=None, estimate=None, interval=None, where=order, reason=reason)
    elif v.kind == "lossy":  # the TV is measured on the fresh seed, at a look whose size was fixed beforehand
        low, high = (
            bound_tv_from_below(samples[0].counts, counts, distribution, certificate["alpha"]),
            certificate["tv_high"],
        )
        tv = max(certificate["tv"], low)
        rows = [r | {"tv": tv, "tv_low": low} if r is certificate else r for r in rows]
        reason = f"on {distribution.name}, {describe_confidence(ALPHA)} interval {low:.4f} to {high:.4f}"
        reason += f"; rejected on {len(samples)} seeds, p <= {alpha:g} each"
        v = replace(v, estimate=tv, interval=(low, high), where=name_prefix(prefix), reason=reason)
    elif drafted == 0 or accepted == 0:
        problem = "no draft was offered" if drafted == 0 else f"none of {drafted} drafts was accepted"
        advice = "let the engine draft, with a draft model nearer to the target or longer sequences, and certify again"
        v = replace(v, kind="inconclusive", reason=f"{problem}: speculation was not tested; {advice}")
    elif v.kind == "inconclusive" and len(samples) > 1:
        first, second = (s.n for s in samples)
        reason = f"rejected after {first} sequences, but not on the fresh seed after {second}: chance, or a small fault"
        advice = f"certify on other seeds, with n = {4 * max(first, second)} sequences or more"
        v = replace(v, reason=f"{reason}; {advice}")
    elif v.kind == "consistent":
        v = replace(v, reason=f"{v.reason}; a bound below {margin:g} takes about {needed} sequences")
    seconds = sum(s.seconds for s in samples)
    details: dict[str, Any] = {"n": [s.n for s in samples], "drafted": drafted, "accepted": accepted, "needed": needed}
    details |= {"rate": sum(s.sampled for s in samples) / seconds if seconds else None, "where": prefix}
    details |= {"rounds": None if rounds is None else rounds / total}
    details["warnings"] = find_gaps(total, drafted, accepted, rounds)
    return Certificate(v, rows, name, claim, details | {"alpha": alpha, "margin": margin}, distribution, counts)
