"""Layer 3, teacher-forced: test a decoder's tokens against the target's own conditionals, without a baseline sample.

    run_battery(tokens, distribution, width, rng=..., slot=None, groups=None, chunk=64, strict=True, **columns) -> rows

tokens  [n, L] int   what the decoder drew
distribution     callable     distribution(a, b) -> p [b - a, L, V], the target's distributions on rows a..b-1 under the
                 run's own sampling
                     settings: position i given tokens[:, :i]. NumPy or torch, float32 or wider. None ends the battery:
                     rows from a on are not tested
width   int          positions in a grid row
rng     Generator    numpy's, for the randomised PIT
slot    [n, L] int   optional stratum; use `assign_slots(step)`
groups  [V] or [G, V] optional groups of codes: a label for every code, or G indicators
columns              of the rows: model, method, key, seed, repeat

If the decoder is lossless, d_i = f(x_i) - E_p f(. | x_<i) has mean zero given the past whatever f, so
Z = sum d_i / sqrt(sum Var_p f) is standard normal: a martingale central limit, every token counts, and there is no
variance between images to overcome.

What may stratify. A stratum must be known before x_i is drawn. Position and grid row are. The slot, i minus the first
position that became final in the same pass, is so for the left-to-right verifiers: whether the run reaches i is decided
by the drafts, uniforms and corrections at positions before i (each run ends in a correction, so i is decided in the
first pass that reaches it), and x_i's own noise plays no part. It is not so for a decoder that keeps only what was
accepted, with no correction, or that finalises out of order: pass no slot there. Accepted / rejected is never known
before: stratifying by it finds "faults" in a correct decoder.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy import optimize, stats
from torch import Tensor

from parity_certify import result_rows as R
from parity_certify.errors import ParityError
from parity_certify.result_rows import Row

ComputeProbs = Callable[[int, int], Tensor | np.ndarray | None]
BORDER = 0.01  # share of tokens that rounding, as in bfloat16, may move over the border of what top-k and the like keep
BINS = 10  # number of bins of the PIT
MIN_VARIANCE = 5.0  # a z-test needs this sum of an indicator's variances (an expected count), and ...
SPREAD = 30.0  # ... this sum of variances relative to the largest variance


def wrap_probs(p: Tensor) -> ComputeProbs:
    """Wrap computed distributions [n, L, V] as a callable distribution(a, b)."""
    return lambda a, b: p[a:b]


def assign_slots(step: np.ndarray) -> np.ndarray:
    """Assign each position its slot [n, L]: how far it lies after the first position that became final in the same
    pass. step [n, L]: the pass that made a position final; 0 if forced, which gives slot 0."""
    i = np.arange(step.shape[1])
    previous = np.concatenate([np.full((len(step), 1), -1), step[:, :-1]], 1)
    return np.where(step > 0, i - np.maximum.accumulate(np.where(step != previous, i, 0), 1), 0)


def make_indicators(groups: np.ndarray | None, vocab: int) -> np.ndarray:
    """Make indicators [G, V] from groups of codes: labels [V], of which two need one indicator only, or indicators [G,
    V]; none if None. Raises ParityError if they are not of the vocabulary."""
    if groups is None:
        return np.zeros((0, vocab))
    groups = np.asarray(groups)
    if groups.shape[-1] != vocab:
        raise ParityError(f"groups: {groups.shape[-1]} codes; allowed: the vocabulary's {vocab}")
    if groups.ndim == 2:
        return groups.astype(float)
    labels = np.unique(groups)
    return (groups == labels[1 if len(labels) == 2 else 0 :, None]).astype(float)  # two groups need one indicator


def subtract_means(p: Tensor, x: Tensor, width: int, G: Tensor) -> tuple[list[str], Tensor, Tensor]:
    """Compute d_i = f(x_i) - E_p f of each test function f for tokens x [n, L] under distributions p [n, L, V]: log p,
    top-k hits, equality with the left and upper token (rows of `width`), and groups with indicators G [G, V]. Returns
    names [F], differences d and their variances [F, n, L]."""
    index = x[..., None]
    log_p = torch.where(p > 0, p, 1).log_()
    mean = (p * log_p).sum(-1)
    names = ["log p"]
    d = [p.gather(-1, index)[..., 0].log() - mean]
    var = [((p * log_p.square()).sum(-1) - mean.square()).clamp_(min=0)]

    def add_indicator(name: str, hit: Tensor, chance: Tensor, exists: Tensor | float = 1.0) -> None:
        """Append a function that is 1 where `hit` [n, L], with the probability `chance` [n, L]; 0 where `exists` is."""
        chance = chance.clamp(0, 1)
        names.append(name)
        d.append((hit.to(p.dtype) - chance) * exists)
        var.append(chance * (1 - chance) * exists)

    top = p.topk(min(5, p.shape[-1]))
    for k in (1, 5):
        if k < p.shape[-1]:
            add_indicator(f"top-{k} hit", (top.indices[..., :k] == index).any(-1), top.values[..., :k].sum(-1))
    i = torch.arange(x.shape[1])
    for name, distance, exists in (("equals left", 1, i % width > 0), ("equals upper", width, i >= width)):
        neighbour = x.roll(distance, 1)
        add_indicator(name, x == neighbour, p.gather(-1, neighbour[..., None])[..., 0], exists.to(p.dtype))
    for g, member in enumerate(G):
        add_indicator(f"group {g}", member[x] > 0, p @ member)
    return names, torch.stack(d), torch.stack(var)


def draw_pit(p: Tensor, x: Tensor, v: Tensor) -> Tensor:
    """Draw the randomised PIT U [n, L]: the mass of codes before x (likelier, or equal and lower), plus v times x's."""
    index = x[..., None]
    p_x = p.gather(-1, index)
    likelier = (p > p_x) | ((p == p_x) & (torch.arange(p.shape[-1]) < index))
    return (p * likelier).sum(-1) + v * p_x[..., 0]


def make_z_row(test: str, d: float, var: float, largest: float, tokens: int, columns: dict, indicator: bool) -> Row:
    """Make the row of the z-test of a sum d of differences over tokens, of variance var; largest: the largest variance
    of one token. "Not run" where var is 0, or too small for the normal limit (more so for an `indicator`)."""
    if tokens == 0 or var <= 1e-12:
        needs = "a token that is not certain (all variances are zero)"
        return R.make_not_run_row("teacher-forced", test, tokens, needs, **columns)
    short = max(MIN_VARIANCE / var if indicator else 0.0, SPREAD * largest / var)
    if short > 1:
        needs = f"n >= {int(np.ceil(tokens * short))} tokens"
        return R.make_not_run_row("teacher-forced", test, tokens, needs, **columns)
    z = d / var**0.5
    error = var**0.5 / tokens
    values = {"statistic": z, "effect": d / tokens, "minimum_detectable_effect": R.compute_detectable_z(error)}
    return R.make_row("teacher-forced", test, tokens, p_value=2 * stats.norm.sf(abs(z)), **values, **columns)


@cache
def compute_detectable_w(alpha: float = R.ALPHA) -> float:
    """Compute Cohen's w times sqrt(n) that chi-square on BINS cells finds with probability POWER."""
    critical = stats.chi2.isf(alpha, BINS - 1)
    return optimize.brentq(lambda c: stats.ncx2.sf(critical, BINS - 1, c) - R.POWER, 1e-3, 1e3) ** 0.5


def make_pit_row(test: str, bins: np.ndarray, columns: dict) -> Row:
    """Make the row of chi-square of PIT counts [BINS] against the uniform; effect: Cohen's w. "Not run" for n < 50."""
    n = int(bins.sum())
    if n < 5 * BINS:
        return R.make_not_run_row("teacher-forced", test, n, f"n >= {5 * BINS} tokens that are not certain", **columns)
    statistic, p = stats.chisquare(bins)
    values = {
        "effect": (statistic / n) ** 0.5,
        "minimum_detectable_effect": compute_detectable_w(R.get_alpha()) / n**0.5,
    }
    return R.make_row("teacher-forced", test, n, statistic=statistic, p_value=p, **values, **columns)


class Stratum:
    """Sums over the tokens of each group of one stratification, as the grid rows; label [n, L]: each token's group."""

    def __init__(self, name: str, label: np.ndarray):
        self.name, self.label, self.size = name, label, int(label.max()) + 1
        self.bins = np.zeros((self.size, BINS))
        self.sums: list[np.ndarray] = []  # a function each: sums of d and variance, largest variance, count [4, size]

    def add(self, rows: slice, d: np.ndarray, var: np.ndarray, u: np.ndarray) -> None:
        """Add the tokens of `rows` of the label to the sums: d and var [F, rows, L], randomised PIT u [rows, L]."""
        size = self.size
        group = self.label[rows].ravel()
        self.sums = self.sums or [np.zeros((4, size)) for _ in d]
        for total, d_f, v in zip(self.sums, d.reshape(len(d), -1), var.reshape(len(d), -1), strict=True):
            total[0] += np.bincount(group, d_f, size)
            total[1] += np.bincount(group, v, size)
            np.maximum.at(total[2], group, v)
            total[3] += np.bincount(group, v > 1e-12, size)
        # Tokens of a certain distribution are not counted: their PIT is v alone. A uniform distribution varies in the
        # top-1 hit only
        live = (var[:2].sum(0) > 1e-12).ravel()
        bins = np.minimum((u * BINS).astype(int), BINS - 1).ravel()
        np.add.at(self.bins, (group[live], bins[live]), 1)

    def make_rows(self, names: list[str], columns: dict[str, Any]) -> list[Row]:
        """Make a row for each function and group, and one for each group's PIT."""
        result = []
        for s in range(self.size):
            suffix = f", {self.name} {s}" if self.name else ""
            for f, name in enumerate(names):
                if name != "equals upper" or suffix != ", row 0":
                    d, var, largest, live = self.sums[f][:, s]
                    result.append(make_z_row(name + suffix, d, var, largest, int(live), columns, indicator=f > 0))
            result.append(make_pit_row("rank PIT" + suffix, self.bins[s], columns))
        return result


def run_battery(
    tokens: np.ndarray,
    compute_probs: ComputeProbs,
    width: int,
    *,
    rng: np.random.Generator,
    slot: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    chunk: int = 64,
    strict: bool = True,
    **columns: Any,
) -> list[Row]:
    """Test each function in each stratum (overall, each grid row, each slot), a row each; p_holm is over all rows.
    Tokens whose distribution is certain carry no information and are not counted in n. Raises ParityError for
    distributions that are none, and, if `strict`, for a token of probability zero; otherwise that is a rejection (row
    "support")."""
    tokens = np.asarray(tokens)
    n, L = tokens.shape
    strata = [Stratum("", np.broadcast_to(0, (n, L)))]
    if width < L:
        strata.append(Stratum("row", np.broadcast_to(np.arange(L) // width, (n, L))))
    if slot is not None:
        strata.append(Stratum("slot", np.asarray(slot)))
    names: list[str] = []
    impossible_tokens = 0
    first = 0, 0
    for a in range(0, n, chunk):
        b = min(a + chunk, n)
        if (probs := compute_probs(a, b)) is None:
            break
        p, x = torch.as_tensor(probs), torch.as_tensor(tokens[a:b]).long()
        p = p.cpu().to(torch.promote_types(p.dtype, torch.float32))
        impossible = check_probs(p, x, a, columns.get("model", ""), strict)
        if impossible.any() and not impossible_tokens:
            first = a + int(impossible.nonzero()[0, 0]), int(impossible.nonzero()[0, 1])
        impossible_tokens += int(impossible.sum())
        p = p / p.sum(-1, keepdim=True)
        G = torch.as_tensor(make_indicators(groups, p.shape[-1]), dtype=p.dtype)
        names, d, var = subtract_means(p, x, width, G)
        d, var = (v.masked_fill(impossible, 0).double() for v in (d, var))
        u = draw_pit(p, x, torch.as_tensor(rng.random((b - a, L)), dtype=p.dtype)).clamp(0, 1)
        for stratum in strata:
            stratum.add(slice(a, b), d.numpy(), var.numpy(), u.numpy())
    result = []
    if impossible_tokens:
        values: dict[str, Any] = {"row": first[0], "position": first[1], "effect": impossible_tokens / (n * L)}
        values["note"] = f"{impossible_tokens} of {n * L} tokens have probability zero"
        result.append(R.make_row("teacher-forced", "support", n * L, p_value=R.SMALLEST, **values, **columns))
    for stratum in strata:
        result += stratum.make_rows(names, columns)
    return R.adjust_family(result)


def loosen(options: dict[str, Any]) -> dict[str, Any]:
    """Make options of sampling of which those that exclude tokens are half as strict."""
    half = {
        "top_k": lambda k: 2 * k,
        **dict.fromkeys(("top_p", "typical_p"), lambda p: (1 + p) / 2),
        **dict.fromkeys(("min_p", "epsilon_cutoff", "eta_cutoff"), lambda p: p / 2),
    }
    return {key: half[key](value) if key in half else value for key, value in options.items()}


def make_border_row(count: int, n: int, **columns: Any) -> Row:
    """Make the row of the test whether more than a share BORDER of n tokens are at the border of what options such as
    top-k keep: excluded, but not by options half as strict (`loosen`)."""
    error = (BORDER * (1 - BORDER) / max(n, 1)) ** 0.5
    values: dict[str, Any] = {
        "effect": count / max(n, 1),
        "minimum_detectable_effect": BORDER + R.compute_detectable_z(error),
    }
    values["note"] = f"{count} of {n} tokens are excluded, but not by options half as strict: rounding may do that"
    p = float(stats.binom.sf(count - 1, n, BORDER))
    return R.make_row("teacher-forced", "border", n, p_value=p, **values, **columns)


def check_probs(p: Tensor, x: Tensor, first: int, model: str, strict: bool = True) -> Tensor:
    """Return where tokens x [n, L] have probability zero. Raises ParityError for rows of p that are no distributions,
    unknown tokens and, if `strict`, tokens of probability zero; rows count from `first`."""
    if p.shape[:2] != x.shape:
        raise ParityError(
            f"model {model}: distributions of {tuple(p.shape[:2])} positions for tokens of {tuple(x.shape)}"
        )
    total = p.sum(-1)
    bad = ~(torch.isfinite(p).all(-1) & ((total - 1).abs() <= 1e-3) & (p >= 0).all(-1))
    unknown = (x < 0) | (x >= p.shape[-1])
    zero = p.gather(-1, x.clamp(0, p.shape[-1] - 1)[..., None])[..., 0] == 0
    for wrong in (bad, unknown | zero if strict else unknown):
        if wrong.any():
            row, position = wrong.nonzero()[0].tolist()
            problem = f"token {int(x[row, position])} of probability zero was sampled"
            problem = f"p is not a distribution (sum {total[row, position]:.6g})" if wrong is bad else problem
            raise ParityError(f"model {model}, position {position}, row {first + row}: {problem}")
    return zero
