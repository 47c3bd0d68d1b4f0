"""The nights of a job, judged together: small faults are found, and a correct engine is not rejected in years.

    history = History.read(file)              a line for each night: how often each sequence was drawn
    history.level(alpha), history.seeds(0)    of tonight's run
    history.judge(certificate, alpha)         the certificate, lossy if all nights together reject
    history.write()

`alpha` bounds the probability that a correct engine is ever rejected, over all nights of a file, however many. Half of
it is for each night's own tests: night k has alpha / (2 k (k + 1)), which sum to alpha / 2. The other half is for an
e-process over the nights,

    M_t = sum_j 1 / (j (j + 1)) mean_c E_c(j, t)

where E_c(j, t) is the e-value (`joint_tests.compute_log_e`) of what condition c drew in nights j to t, so that a fault
that begins at night j is not diluted by the nights before. With E_c = 1 for nights j to come, the weights sum to one.
M is a mean of test martingales, hence one itself, and reaches 2 / alpha with probability alpha / 2 at most (Ville).

Nights must be independent, so each has seeds of its own. A night whose own tests are lossy is not added: its run ended
early, and the guarantee concerns the first rejection.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from parity_certify.certificate import Certificate, find_largest_difference, name_prefix
from parity_certify.distributions import Distribution
from parity_certify.errors import ParityError
from parity_certify.files import publish
from parity_certify.joint_tests import compute_log_e
from parity_certify.samples import is_copy
from parity_certify.seeding import LARGEST_SEED, check_seed

FORMAT = "parity-history"
SAME = 1e-5  # probabilities of a condition that differ by no more are the same, computed on another machine


class Evidence(NamedTuple):
    """The evidence of all nights together, and the condition and first night (from 1) with most of it."""

    log_e: float
    condition: str
    since: int


@dataclass
class History:
    """Nights of one job. cells: the probabilities [K] of each condition's sequences, by name; counts: [nights, K]."""

    file: Path
    cells: dict[str, np.ndarray] = field(default_factory=dict)
    counts: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "History":
        """Read a file; one that does not exist has no nights. Raises ParityError that names the line if it is
        damaged."""
        history = cls(file)
        if not file.exists():
            return history
        nights: list[dict[str, Any]] = []
        for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
                if number == 1:
                    if line["format"] != FORMAT:
                        raise ValueError
                    history.cells = {name: np.array(p, dtype=float) for name, p in line["conditions"].items()}
                    continue
                counts = {name: np.array(line["counts"][name], dtype=np.int64) for name in history.cells}
                if any((c < 0).any() or c.shape != history.cells[name].shape for name, c in counts.items()):
                    raise ValueError
                nights.append(counts)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                allowed = "a file that --history wrote, or a new one"
                raise ParityError(f"history: {file}, line {number}: damaged; allowed: {allowed}") from None
        for name, p in history.cells.items():
            history.counts[name] = np.array([night[name] for night in nights], dtype=np.int64).reshape(-1, len(p))
        return history

    @property
    def nights(self) -> int:
        """How many nights there are."""
        return len(next(iter(self.counts.values()), ()))

    def level(self, alpha: float) -> float:
        """Compute the level of the next night's own tests, for `alpha` over all nights."""
        k = self.nights + 1
        return alpha / (2 * k * (k + 1))

    def seeds(self, seed: int) -> tuple[int, int]:
        """Compute the seeds of the next night and of its repeat from the run's seed: no two nights have the same."""
        first = check_seed(seed) + 2 * self.nights
        return first % (LARGEST_SEED + 1), (first + 1) % (LARGEST_SEED + 1)

    def check(self, distributions: Sequence[Distribution]) -> None:
        """Take the conditions of a first night from their distributions. Raises ParityError for other ones than those
        of the file."""
        cells = {distribution.name: distribution.cells for distribution in distributions}
        if not self.nights:
            self.cells, self.counts = cells, {name: np.zeros((0, len(p)), dtype=np.int64) for name, p in cells.items()}
        changed = {*cells} ^ {*self.cells} or {
            name
            for name, p in cells.items()
            if p.shape != self.cells[name].shape or abs(p - self.cells[name]).max() > SAME
        }
        if changed:
            problem = f"{', '.join(sorted(changed))}: not as in the nights before"
            raise ParityError(
                f"history: {self.file}: {problem}; allowed: the same conditions and target, or another file"
            )

    def add(self, counts: dict[str, np.ndarray]) -> None:
        """Add a night: counts [K] of each condition. Raises ParityError for one whose samples are those of another."""
        for name, drawn in counts.items():
            for night in np.flatnonzero((self.counts[name] == drawn).all(1)):
                if is_copy(drawn, self.counts[name][night]):
                    problem = f"{name}: tonight's samples are those of night {night + 1}"
                    allowed = "independent ones, by an engine that heeds its seed"
                    raise ParityError(f"history: {self.file}: {problem}; allowed: {allowed}")
        self.counts = {name: np.vstack([self.counts[name], counts[name]]) for name in self.cells}

    def measure(self) -> Evidence:
        """Measure the evidence of all nights together against a correct engine: log M, see the head of this module."""
        t = self.nights
        j = np.arange(1, t + 1)
        log_e = np.stack([compute_log_e(c[::-1].cumsum(0)[::-1], self.cells[name]) for name, c in self.counts.items()])
        terms = log_e - np.log(len(log_e)) - np.log(j * (j + 1.0))  # [conditions, t]
        condition, since = np.unravel_index(int(terms.argmax()), terms.shape)
        total = float(np.logaddexp(special.logsumexp(terms), -math.log(t + 1)))
        return Evidence(total, list(self.counts)[condition], int(since) + 1)

    def judge(self, c: Certificate, alpha: float) -> Certificate:
        """Add the night of a certificate, whose own tests had the level of `level`, and judge all nights together, at
        `alpha`. Returns the certificate, lossy if they reject."""
        if c.verdict.kind == "lossy":
            return replace(c, verdict=replace(c.verdict, reason=f"{c.verdict.reason}; not added to {self.file}"))
        distributions: dict[str, Distribution] = {}
        counts: dict[str, np.ndarray] = {}
        for one in c.parts or (c,):
            if one.distribution is None or one.counts is None:
                raise ParityError("history: no counts; allowed: a way to certify that counts sequences")
            distributions[one.distribution.name], counts[one.distribution.name] = one.distribution, one.counts
        self.check(list(distributions.values()))
        self.add(counts)
        found, needed = self.measure(), math.log(2 / alpha)
        nights = f"nights {found.since} to {self.nights}" if found.since < self.nights else f"night {self.nights}"
        about = {"nights": self.nights, "log_e": min(found.log_e, 1e300), "needed": needed, "since": found.since}
        details = c.details | {"history": about | {"condition": found.condition, "alpha": alpha}}
        tested = f"{self.nights} nights together, at {alpha:g} for all nights that are to come, too"
        v = replace(c.verdict, tested=(*c.verdict.tested, tested))
        if found.log_e >= needed:
            distribution = distributions[found.condition]
            prefix = find_largest_difference(self.counts[found.condition][found.since - 1 :].sum(0), distribution)
            reason = (
                f"rejected by {nights} together, under {found.condition}: log e-value {found.log_e:.1f}, {needed:.1f}"
            )
            reason += f" reject; after a fix, begin another file than {self.file}"
            where = f"{found.condition}, {name_prefix(prefix)}"
            v = replace(v, kind="lossy", reason=reason, where=where, estimate=None, interval=None, dependent=False)
            details["where"] = prefix
        return replace(c, verdict=v, details=details)

    def write(self) -> None:
        """Write the file, whole or not at all; without a night nothing is written."""
        if self.nights:
            head = {"format": FORMAT, "conditions": {name: p.tolist() for name, p in self.cells.items()}}
            nights = [{"counts": {name: c[t].tolist() for name, c in self.counts.items()}} for t in range(self.nights)]
            publish(self.file, "".join(json.dumps(line) + "\n" for line in (head, *nights)).encode())
