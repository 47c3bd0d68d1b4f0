"""How far a set of images is from the reference: FID, CMMD, and the Inception Score, which needs no reference.

FID is the Frechet distance between Gaussian fits of two sets of features (Heusel et al. 2017). tr (S1 S2)^(1/2) needs
only the eigenvalues of H S1 H with H = S2^(1/2), and H, of the reference, is computed once. With fewer images than
dimensions the n x n Gram matrix has the same eigenvalues and is smaller. The value is clean-fid's to 1e-8 relative, in
a fraction of its time.

CMMD (Jayasumana et al. 2024) is the distance in CLIP's features under a Gaussian kernel. The Inception Score (Salimans
et al. 2016) rewards predictions that are confident and diverse."""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import linalg
from torch import Tensor

from parity.base.errors import ParityError
from parity.metrics.estimates import Estimate, half_jackknife
from parity.metrics.judges import explain_absent, explain_few

KINDS = ("discrete", "continuous")
MEASURES = {
    "fid": ("FID", "", "lower"),
    "cmmd": ("CMMD", "", "lower"),
    "is": ("IS", "", "higher"),
}
WIDE = 1024  # with this many features a distance takes a second, so fewer half-samples give its error
WIDTH = 10.0  # CMMD's kernel is exp(-|a - b|^2 / (2 WIDTH^2)), and its figure is times SCALE: both as published
SCALE = 1000.0


class Reference(NamedTuple):
    """The reference side of the distance."""

    mean: np.ndarray  # the mean of the features, [d]
    root: np.ndarray  # the symmetric square root of the features' covariance, [d, d]
    trace: float  # the trace of the covariance


def reference_half(features: np.ndarray) -> Reference:
    """Summarise features [n, d] as `frechet` needs them. Raises ParityError unless n >= 2 and all are finite."""
    if len(features) < 2 or not np.isfinite(features).all():
        raise ParityError(f"features: {len(features)} rows; allowed: 2 or more, all finite")
    x = np.asarray(features, dtype=np.float64)
    return make_reference(x.mean(0), np.atleast_2d(np.cov(x, rowvar=False)))


def make_reference(mean: np.ndarray, covariance: np.ndarray) -> Reference:
    """Make the reference of `frechet` from mean [d] and covariance [d, d], as published statistics hold them."""
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    return Reference(mean, root, float(np.trace(covariance)))


def frechet(features: np.ndarray, reference: Reference) -> float:
    """Compute the squared Frechet distance of features [n, d], n >= 2, to the reference: |m1 - m2|^2 + tr S1 + tr S2
    - 2 tr (S1 S2)^(1/2)."""
    x = np.asarray(features, dtype=np.float64)
    mean = x.mean(0)
    centred = (x - mean) / np.sqrt(len(x) - 1)  # the covariance S1 is centred^T centred
    if len(x) <= x.shape[1]:
        m = centred @ reference.root
        gram = m @ m.T
    else:
        gram = reference.root @ (centred.T @ centred) @ reference.root
    cross = np.sqrt(linalg.eigvalsh(gram, check_finite=False, driver="evd").clip(min=0)).sum()
    return float(((mean - reference.mean) ** 2).sum() + (centred**2).sum() + reference.trace - 2 * cross)


def fid_and_error(
    features: np.ndarray, reference: Reference, groups: np.ndarray, count: int = 200, seed: int = 0
) -> tuple[float, float]:
    """Compute FID and its standard error over generated images, the reference held fixed: how far another seed would
    move it. groups [n]: prompts; count: half-samples. FID's bias depends on n, so compare equal n alone."""
    error = half_jackknife(lambda rows: np.array([frechet(features[rows], reference)]), groups, count, seed)
    return frechet(features, reference), float(error[0])


def arrays(sample: Any) -> dict[str, np.ndarray]:
    return {"features": sample.outputs["features"]} if "features" in sample.outputs else {}


def choose_reference(outputs: dict[str, np.ndarray], d: int) -> Reference:
    """Choose what features [n, d] are compared with, from the arrays of the reference file: its mean and covariance, or
    else its features. Raises ParityError for a mean of another size."""
    if "mu" in outputs:
        if outputs["mu"].shape != (d,):
            raise ParityError(f"reference: mu {outputs['mu'].shape}; allowed: ({d},), of the network's features")
        return make_reference(outputs["mu"], outputs["sigma"])
    return reference_half(outputs["features"])


def mean_kernel(x: np.ndarray, y: np.ndarray, rows: int = 256) -> float:
    """Average the Gaussian kernel of width WIDTH over all pairs of x [n, d] and y [m, d], by blocks of rows."""
    total = 0.0
    for block in (x[i : i + rows] for i in range(0, len(x), rows)):
        squares = (block**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * block @ y.T
        total += float(np.exp(-squares.clip(min=0) / (2 * WIDTH**2)).sum())
    return total / (len(x) * len(y))


def inception_score(logits: Tensor, splits: int) -> tuple[float, float]:
    """Compute mean and standard deviation of exp E KL(p(y|x) || p(y)) over shuffled splits of logits [n, classes];
    torch-fidelity's value."""
    n = len(logits)
    logits = logits[np.random.RandomState(2020).permutation(n)].double()
    p, log_p, scores = logits.softmax(1), logits.log_softmax(1), []
    for i in range(splits):
        split = slice(i * n // splits, (i + 1) * n // splits)
        marginal = p[split].mean(0, keepdim=True)
        scores.append((p[split] * (log_p[split] - marginal.log())).sum(1).mean().exp().item())
    return float(np.mean(scores)), float(np.std(scores))


def measure(sample: Any) -> dict[str, Any]:
    return {**measure_fid(sample), **measure_cmmd(sample), **measure_inception_score(sample)}


def measure_fid(sample: Any) -> dict[str, Any]:
    """Measure FID against the reference file: its features, whose number is `reference_n`, or its statistics. An
    estimate with the reason, if there are too few images or no reference."""
    features, real = sample.outputs.get("features"), sample.reference_outputs
    if features is None or not {"mu", "features"} & set(real):
        return explain_absent(sample, "features", ["fid"])
    counted = {"reference_n": len(real["features"])} if "features" in real else {}
    compared = sample.fewest if "mu" in real else len(real["features"])  # statistics lack their number of images
    if reason := explain_few(len(features), compared, sample.fewest):
        return {"fid": Estimate(why=reason)} | counted
    count = 200 if features.shape[1] < WIDE else 20
    fid = fid_and_error(features, choose_reference(real, features.shape[1]), sample.groups, count)
    return {"fid": Estimate(*fid)} | counted


def measure_cmmd(sample: Any) -> dict[str, Any]:
    """Compute 1000 times the squared MMD of features of unit length over every pair (the biased estimate, as
    published), and its standard error over generated images; an estimate with the reason, if features are missing."""
    features, real = sample.outputs.get("cmmd"), sample.reference_outputs.get("cmmd")
    if features is None or real is None:
        return explain_absent(sample, "cmmd", ["cmmd"])
    x, y = (np.asarray(a, dtype=np.float64) for a in (features, real))
    within_y = mean_kernel(y, y)

    def cmmd(rows: np.ndarray | slice) -> np.ndarray:
        """Compute the figure of some of the generated images against all real ones, as an array of one."""
        return np.array([SCALE * (mean_kernel(x[rows], x[rows]) + within_y - 2 * mean_kernel(x[rows], y))])

    value, error = cmmd(slice(None)), half_jackknife(cmmd, sample.groups, 20)
    return {"cmmd": Estimate(float(value[0]), float(error[0]))}


def measure_inception_score(sample: Any) -> dict[str, Any]:
    """Measure the Inception Score, a split for every hundred images, ten at most, and its standard deviation over
    splits; an estimate with the reason, if the network's logits are missing."""
    if "logits" not in sample.outputs:
        return explain_absent(sample, "logits", ["is"])
    logits = torch.from_numpy(sample.outputs["logits"])
    mean, sd = inception_score(logits, max(1, min(10, len(logits) // 100)))
    return {"is": mean, "is_sd": sd}
