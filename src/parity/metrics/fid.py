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
from parity.metrics.spread import half_jackknife

KINDS = ("discrete", "continuous")
MEASURES = {"fid": ("FID", "", "lower")}


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
    covariance = np.atleast_2d(np.cov(x, rowvar=False))
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    return Reference(x.mean(0), root, float(np.trace(covariance)))


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
    return {"features": sample.seen["features"]} if sample.seen else {}


def measure(sample: Any) -> dict[str, Any]:
    """Against the features of the reference file, whose number is `reference_n`; None of fewer images than
    `sample.fewest`."""
    own, real = sample.seen.get("features"), sample.compared.get("features")
    if own is None or real is None:
        return {}
    enough = len(own) >= sample.fewest
    fid, error = fid_and_error(own, reference_half(real), sample.groups) if enough else (None, None)
    return {"fid": fid, "fid_se": error, "reference_n": len(real)}
