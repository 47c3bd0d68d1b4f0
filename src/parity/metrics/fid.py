"""Frechet distance between Gaussian fits of two sets of features (Heusel et al. 2017), in the form that is quick to
repeat.

tr (S1 S2)^(1/2) needs only the eigenvalues of H S1 H with H = S2^(1/2), and H belongs to the reference: it is computed
once. With fewer images than dimensions the n x n Gram matrix has the same eigenvalues and is smaller. The value is
clean-fid's to 1e-8 relative, in a fraction of its time (tests/metrics/test_quality.py).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from parity.base.errors import ParityError
from parity.metrics.missing_reasons import absent
from parity.metrics.standard_errors import half_jackknife

KINDS = ("discrete", "continuous")
MEASURES = {"fid": ("FID", "", "lower")}
WIDE = 1024  # features, from which on a distance takes a second, and fewer half-samples give its error


@dataclass(frozen=True)
class Reference:
    """The reference side of the distance."""

    mean: np.ndarray  # [d]
    root: np.ndarray  # [d, d] symmetric square root of the covariance
    trace: float  # of the covariance


def reference_half(features: np.ndarray) -> Reference:
    """features [n, d], n >= 2, to what `frechet` needs of them."""
    if len(features) < 2 or not np.isfinite(features).all():
        raise ParityError(f"features: {len(features)} rows; allowed: 2 or more, all finite")
    x = np.asarray(features, dtype=np.float64)
    return of_statistics(x.mean(0), np.atleast_2d(np.cov(x, rowvar=False)))


def of_statistics(mean: np.ndarray, covariance: np.ndarray) -> Reference:
    """The same of mean [d] and covariance [d, d], as published statistics hold them."""
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    return Reference(mean, root, float(np.trace(covariance)))


def frechet(features: np.ndarray, reference: Reference) -> float:
    """Squared Frechet distance of features [n, d], n >= 2, to the reference: |m1 - m2|^2 + tr S1 + tr S2 - 2 tr (S1
    S2)^(1/2)."""
    x = np.asarray(features, dtype=np.float64)
    mean = x.mean(0)
    centred = (x - mean) / np.sqrt(len(x) - 1)  # S1 = centred^T centred
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
    """FID and its standard error over generated images, the reference held fixed.

    The error tells how far another seed would move the figure; it says nothing of FID's bias, which depends on n:
    compare equal n alone.
    """
    error = half_jackknife(lambda rows: np.array([frechet(features[rows], reference)]), groups, count, seed)
    return frechet(features, reference), float(error[0])


def arrays(sample: Any) -> dict[str, np.ndarray]:
    return {"features": sample.seen["features"]} if "features" in sample.seen else {}


def compared_with(sample: Any) -> Reference | None:
    """What a sample is compared with: the statistics of the reference file if it holds them, else its features."""
    held = sample.compared
    if "mu" in held and "features" in sample.seen:
        d = sample.seen["features"].shape[1]
        if held["mu"].shape != (d,):
            raise ParityError(f"reference: mu {held['mu'].shape}; allowed: ({d},), of the network's features")
        return of_statistics(held["mu"], held["sigma"])
    return reference_half(held["features"]) if "features" in held else None


def measure(sample: Any) -> dict[str, Any]:
    """Against the features of the reference file, whose number is `reference_n`, or its statistics; None of fewer
    images than `sample.fewest`."""
    own, half = sample.seen.get("features"), compared_with(sample)
    if own is None or half is None:
        return absent(sample, "features", MEASURES)
    enough, count = len(own) >= sample.fewest, 200 if own.shape[1] < WIDE else 20
    fid, error = fid_and_error(own, half, sample.groups, count) if enough else (None, None)
    number = {"reference_n": len(sample.compared["features"])} if "features" in sample.compared else {}
    return {"fid": fid, "fid_se": error} | number
