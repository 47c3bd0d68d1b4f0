"""Deprecated: `parity_decoders.images.image_model` makes the causal model of a Janus."""

import warnings
from typing import Any

from parity_decoders.families.janus import make_causal_model


def make_image_model(janus: Any) -> Any:
    """Make the causal model of a Janus, deprecated: see `parity_decoders.images.image_model`."""
    warnings.warn("deprecated: use parity_decoders.images.image_model", DeprecationWarning, stacklevel=2)
    model = make_causal_model(janus)
    model.first_token = model.lm_head.n_words
    return model
