"""Deprecated: the names of `parity_certify.distributions` before version 0.2."""

import warnings
from typing import Any

from parity_certify import distributions

OLD = {
    "Law": "Distribution",  # deprecated
    "law": "target_distribution",  # deprecated
    "random_law": "random_distribution",  # deprecated
    "read_law": "read_distribution",  # deprecated
    "write_law": "write_distribution",  # deprecated
    "check_law": "check_distribution",  # deprecated
}


def __getattr__(name: str) -> Any:
    """Return what `distributions` has under this name, or under the name that replaces it, and warn."""
    new = OLD.get(name, name)
    value = getattr(distributions, new)
    warnings.warn(f"deprecated: use parity_certify.distributions.{new}", DeprecationWarning, stacklevel=2)
    return value
