"""Test whether rows of a run's own batches depend on each other: shared random numbers, or copies.

    dependence = RowDependence(tokens, batch, at_once, step)
    dependence.add(first, p)            the target's distributions p [b, L, V] of rows first..first + b - 1, in order
    dependence.make_row(seed=..., **columns)

Each row has its own prompt, and so its own distributions. On tokens of rows i < j of a batch two bets are made:

    agreement   (1[x_j = x_i] - p) (a - p) / (p (1 - p)), with p = p_j(x_i) and a = min(1, p / p_i(x_i)), the
                probability of agreement if one random number had drawn both tokens as equal as possible: shared draws,
                copies
    ranks       4 r_j r_i, where r is a token's mid-rank under its own distribution less 1/2: one number for both
                inverse distribution functions, and antithetic numbers

Given row i and the past of row j, a bet g has mean zero, whatever the distributions. So the product of 1 + s g over all
pairs of rows at a distance is an e-value, for any share s of the stake. So is its mean over distances and shares, whose
inverse is a p-value (Waudby-Smith & Ramdas 2024, J. R. Stat. Soc. B 86). Which tokens are paired must be determined
before row j's is drawn: those of the same position and, for decoders whose passes end in a correction, those of the
same pass (see `number_by_pass`), because decoders number their draws by passes.

Accepted lengths are not compared, because their distribution is unknown on a run's own model. Reused random numbers are
tested in the long layer (`parity.equality.targets.long`).
"""

import math
from typing import Any

import numpy as np
import torch
from parity_certify import result_rows as R
from parity_certify.result_rows import Row
from parity_certify.teacher_forced import assign_slots
from scipy import special
from torch import Tensor

SHARES = 2.0 ** -np.arange(1, 9)  # shares of the stake that are bet
BETS = {"agreement": SHARES, "ranks": np.concatenate([SHARES, -SHARES])}


def number_by_pass(step: np.ndarray) -> dict[str, np.ndarray]:
    """Assign tokens [n, L] numbers in three ways, by the passes step [n, L] in which they became final. Tokens of two
    rows are paired if their numbers are equal.

    pass         slot and number of the pass
    pass before  the same, for a draft that was drawn in the window of the pass before
    begin        slot, and the position where the pass began
    """
    slot = assign_slots(step)
    n_final = np.zeros((len(step), int(step.max()) + 1), dtype=int)
    np.add.at(n_final, (np.arange(len(step))[:, None], step), 1)
    n_final[:, 0] = 0
    n_final_before = np.take_along_axis(n_final, np.maximum(step - 1, 0), 1)
    width = int((slot + n_final_before).max()) + 1
    pass_start = np.arange(step.shape[1]) - slot
    return {
        "pass": step * width + slot,
        "pass before": step * width + slot + n_final_before,
        "begin": pass_start * width + slot,
    }


def find_batch_starts(batch: np.ndarray) -> np.ndarray:
    """Find the first row of each row's batch [n] from the sizes of their batches [n]."""
    starts = np.zeros(len(batch), dtype=int)
    for row in range(1, len(batch)):
        start = starts[row - 1]
        starts[row] = start if row - start < batch[start] else row
    return starts


def match_numbers(earlier: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find for each token of earlier rows, numbered earlier [m, L], the position in a row numbered `numbers` [L] that
    has the same number, and whether there is one (0 if not)."""
    position_of = np.full(int(max(earlier.max(), numbers.max())) + 1, -1)
    position_of[numbers] = np.arange(len(numbers))
    position = position_of[earlier]
    return np.maximum(position, 0), position >= 0


def compute_growth(chance: np.ndarray, limit: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Compute by how much bets on agreement raise the log e-value [S, m] on average, where a share s of the draws is
    shared and a share s of the stake is bet, for each of the S SHARES. For each token of m earlier rows [m, L]: chance
    and limit, the probabilities of agreement if rows are independent and if one number draws both; the bet's scale."""
    s = SHARES[:, None, None]
    p_agree = chance + s * (limit - chance)
    won, lost = (np.log1p(s * (agrees - chance) * scale) for agrees in (1, 0))
    return (p_agree * won + (1 - p_agree) * lost).sum(2)


class RowDependence:
    """Collects the bets, row by row. tokens [n, L]; batch, at_once [n]: rows that were decoded together with each, and
    how many of these at once; step [n, L]: passes, of decoders whose passes end in a correction."""

    def __init__(self, tokens: np.ndarray, batch: np.ndarray, at_once: np.ndarray, step: np.ndarray | None):
        """Start without evidence: zeros by bet, numbering of tokens and distance of rows. If `step` is None, only
        tokens of the same position are paired."""
        self.tokens = torch.as_tensor(tokens).long()
        self.rank, self.probability = np.zeros((2, *tokens.shape))  # a token's mid-rank less 1/2, and its probability
        self.batch_starts = find_batch_starts(batch)
        self.numbers = {"place": np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)}
        if step is not None:
            self.numbers |= number_by_pass(step.astype(int))
        n_distances = int(at_once.max())  # rows at this distance or further apart were never decoded at once
        self.log_e = {(bet, key): np.zeros((len(BETS[bet]), n_distances)) for bet in BETS for key in self.numbers}
        self.growth = np.zeros((len(SHARES), n_distances))  # sums of `compute_growth` by share and distance
        # By distance: how many tokens agree beyond chance, how many could at most, how many are not certain.
        self.excess, self.largest_excess, self.n_drawn = np.zeros((3, n_distances))

    def add(self, first: int, p: Tensor) -> None:
        """Add the bets on rows first..first + b - 1, each against the rows before it in its batch, under the target's
        distributions p [b, L, V], which are normalised. Rows must be added in order."""
        for j, probs in enumerate(p.double(), first):
            self._add_row(j, probs / probs.sum(-1, keepdim=True))

    def _add_row(self, j: int, probs: Tensor) -> None:
        """Add the bets on row j, whose distributions are `probs` [L, V], against the rows before it that were decoded
        with it."""
        index = self.tokens[j].to(probs.device)[:, None]
        self.probability[j] = probs.gather(-1, index)[:, 0].cpu().numpy()
        self.rank[j] = probs.cumsum(-1).gather(-1, index)[:, 0].cpu().numpy() - self.probability[j] / 2 - 0.5
        earlier = np.arange(max(self.batch_starts[j], j - len(self.n_drawn) + 1), j)  # the m rows to bet against
        if not len(earlier):
            return
        distance = j - earlier
        self.n_drawn[distance] += int((probs.amax(-1) < 1).sum())
        tokens = self.tokens[earlier]
        for key, numbers in self.numbers.items():
            position, is_paired = match_numbers(numbers[earlier], numbers[j])
            # `chance` [m, L] is the probability of agreement if rows are independent, `limit` if one number drew both.
            chance = probs[torch.as_tensor(position, device=probs.device), tokens.to(probs.device)].cpu().numpy()
            limit = np.minimum(1, chance / self.probability[earlier])
            excess = (tokens.numpy() == self.tokens[j].numpy()[position]) - chance
            scale = (limit - chance) / np.maximum(chance * (1 - chance), 1e-30) * is_paired
            ranks = 4 * self.rank[earlier] * self.rank[j][position] * is_paired
            for bet, g in (("agreement", excess * scale), ("ranks", ranks)):
                self.log_e[bet, key][:, distance] += np.log1p(BETS[bet][:, None, None] * g).sum(2)
            if key == "place":
                self.excess[distance] += excess.sum(1)
                self.largest_excess[distance] += (limit - chance).sum(1)
                self.growth[:, distance] += compute_growth(chance, limit, scale)

    def make_row(self, **columns: Any) -> Row:
        """Make the result row of the test, or one that says that it was not run if no bet was made. The effect is the
        share of draws that are shared, by agreement at the distance with most evidence."""
        distances = np.flatnonzero(self.n_drawn)
        if not len(distances):
            needs = "two rows in a batch, and tokens that are drawn"
            return R.make_not_run_row("teacher-forced", "rows of a batch", 0, needs, **columns)
        best = {key: log_e[:, distances].max(0) for key, log_e in self.log_e.items()}
        terms = np.concatenate([log_e[:, distances].ravel() for log_e in self.log_e.values()])
        log_e = float(special.logsumexp(terms) - math.log(len(terms)))
        bet, key = max(best, key=lambda pair: best[pair].max())
        found_shares = SHARES[(self.growth[:, distances] >= math.log(len(terms) / R.get_alpha())).any(1)]
        d = distances[best["agreement", "place"].argmax()]
        values = {"statistic": log_e, "effect": min(1.0, self.excess[d] / max(self.largest_excess[d], 1e-9))}
        values["minimum_detectable_effect"] = found_shares.min() if len(found_shares) else None
        values["note"] = f"most in {bet} by {key} of rows {distances[best[bet, key].argmax()]} apart"
        p = min(1.0, math.exp(-log_e))
        n = int(self.n_drawn.max())
        return R.make_row("teacher-forced", "rows of a batch", n, p_value=p, **values, **columns)
