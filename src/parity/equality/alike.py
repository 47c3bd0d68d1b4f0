"""Whether rows of a run's own batches depend on each other: shared random numbers, or copies.

    alike = Alike(tokens, batch, at_once, step)
    alike.add(first, p)             the target's laws p [b, L, V] of rows first..first + b - 1, in order
    alike.row(seed=..., **place)    the row of the test

Each row has its own prompt, and so its own laws. On tokens of rows i < j of a batch two bets are made:

    agreement   (1[x_j = x_i] - p) (a - p) / (p (1 - p)), with p = p_j(x_i) and a = min(1, p / p_i(x_i)), the
                probability of agreement if one random number had drawn both tokens as equal as possible: shared races,
                copies
    ranks       4 r_j r_i, where r is a token's mid-rank under its own law less 1/2: one number for both inverse
                distribution functions, and antithetic numbers

Given row i and the past of row j, a bet g has mean zero, whatever the laws. So the product of 1 + s g over all pairs of
rows at a distance is an e-value, for any share s of the stake. So is its mean over distances and shares, whose inverse
is a p-value (Waudby-Smith & Ramdas 2024, J. R. Stat. Soc. B 86). Which tokens are paired must be known before row j's
is drawn: those of the same place and, for decoders whose passes end in a correction, those of the same pass (see
`by_pass`), because decoders number their draws by passes.

Accepted lengths are not compared, because their law is unknown on a run's own model. Reused random numbers are tested
in the long layer (`parity.equality.targets.long`).
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

SHARES = 2.0 ** -np.arange(1, 9)
BETS = {"agreement": SHARES, "ranks": np.concatenate([SHARES, -SHARES])}


def by_pass(step: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers [n, L] of tokens by the slot and number of the pass `step` in which they became final; or by the place
    where that pass began; or, for a draft that was drawn in the window of the pass before, by that."""
    slot, final = assign_slots(step), np.zeros((len(step), int(step.max()) + 1), dtype=int)
    np.add.at(final, (np.arange(len(step))[:, None], step), 1)
    final[:, 0] = 0
    before = np.take_along_axis(final, np.maximum(step - 1, 0), 1)
    wide = int((slot + before).max()) + 1
    begin = np.arange(step.shape[1]) - slot
    return {"pass": step * wide + slot, "pass before": step * wide + slot + before, "begin": begin * wide + slot}


class Alike:
    """tokens [n, L]; batch, at_once [n]: rows that were decoded together with each, and how many of these at once;
    step [n, L]: passes, of decoders whose passes end in a correction."""

    def __init__(self, tokens: np.ndarray, batch: np.ndarray, at_once: np.ndarray, step: np.ndarray | None):
        self.tokens = torch.as_tensor(tokens).long()
        self.rank, self.own = np.zeros((2, *tokens.shape))  # of each token, and its probability
        self.begin = np.zeros(len(tokens), dtype=int)  # the first row of each row's batch
        for row in range(1, len(tokens)):
            begin = self.begin[row - 1]
            self.begin[row] = begin if row - begin < batch[begin] else row
        self.keys = {"place": np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))}
        self.keys |= {} if step is None else by_pass(step.astype(int))
        most = int(at_once.max())  # rows as far apart were not decoded at once
        self.won = {(bet, key): np.zeros((len(BETS[bet]), most)) for bet in BETS for key in self.keys}  # log e-values
        self.shared = np.zeros((len(SHARES), most))  # what agreement would win if that share of draws were shared
        self.beyond, self.could, self.drawn = np.zeros((3, most))  # tokens: agree beyond chance, could, were drawn

    def add(self, first: int, p: Tensor) -> None:
        tokens = self.tokens.to(p.device)
        for j, law in enumerate(p.double(), first):
            law = law / law.sum(-1, keepdim=True)
            own = tokens[j][:, None]
            self.own[j] = law.gather(-1, own)[:, 0].cpu().numpy()
            self.rank[j] = law.cumsum(-1).gather(-1, own)[:, 0].cpu().numpy() - self.own[j] / 2 - 0.5
            some = np.arange(max(self.begin[j], j - len(self.drawn) + 1), j)
            self.drawn[j - some] += int((law.amax(-1) < 1).sum())
            for key, number in self.keys.items() if len(some) else ():
                place = np.full(int(number[some[0] : j + 1].max()) + 1, -1)
                place[number[j]] = np.arange(number.shape[1])
                at = place[number[some]]  # of each token of the others, the place of row j's; -1 for none
                there, at = at >= 0, np.maximum(at, 0)
                chance = law[torch.as_tensor(at, device=p.device), tokens[some]].cpu().numpy()
                agree = self.tokens[some].numpy() == self.tokens[j].numpy()[at]
                most = np.minimum(1, chance / self.own[some])
                scale = (most - chance) / np.maximum(chance * (1 - chance), 1e-30) * there
                bets = {"agreement": (agree - chance) * scale, "ranks": 4 * self.rank[some] * self.rank[j][at] * there}
                for bet, g in bets.items():
                    self.won[bet, key][:, j - some] += np.log1p(BETS[bet][:, None, None] * g).sum(2)
                if key == "place":
                    self.beyond[j - some] += (agree - chance).sum(1)
                    self.could[j - some] += (most - chance).sum(1)
                    self.shared[:, j - some] += growth(chance, most, scale)

    def row(self, **place: Any) -> Row:
        """The effect is the share of draws that are shared, by agreement at the distance with most evidence."""
        own = np.flatnonzero(self.drawn)
        if not len(own):
            needs = "two rows in a batch, and tokens that are drawn"
            return R.make_not_run_row("teacher-forced", "rows of a batch", 0, needs, **place)
        best = {at: logs[:, own].max(0) for at, logs in self.won.items()}
        terms = np.concatenate([logs[:, own].ravel() for logs in self.won.values()])
        log_e = float(special.logsumexp(terms) - math.log(len(terms)))
        bet, key = max(best, key=lambda at: best[at].max())
        enough = SHARES[(self.shared[:, own] >= math.log(len(terms) / R.get_alpha())).any(1)]
        d = own[best["agreement", "place"].argmax()]
        values = {"statistic": log_e, "effect": min(1.0, self.beyond[d] / max(self.could[d], 1e-9))}
        values["minimum_detectable_effect"] = enough.min() if len(enough) else None
        values["note"] = f"most in {bet} by {key} of rows {own[best[bet, key].argmax()]} apart"
        p = min(1.0, math.exp(-log_e))
        return R.make_row("teacher-forced", "rows of a batch", int(self.drawn.max()), p_value=p, **values, **place)


def growth(chance: np.ndarray, most: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """What bets on agreement win by row [S, m], on average, if a share of draws are shared; the rest [m, L]."""
    s = SHARES[:, None, None]
    agree = chance + s * (most - chance)
    won, lost = (np.log1p(s * (equal - chance) * scale) for equal in (1, 0))
    return (agree * won + (1 - agree) * lost).sum(2)
