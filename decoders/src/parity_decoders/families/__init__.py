"""Image models of transformers, an adapter each: what `generate` hands over for them, where their tokens stand, and how
tokens become pixels."""

import importlib
from types import ModuleType
from typing import Any

# model types of transformers, and the module of this folder that reads them
FAMILIES = {
    "Emu3": "emu3p5",
    "chameleon": "chameleon",
    "emu3": "emu3",
    "gemma": "liquid",
    "glm_image": "glm_image",
    "imagegpt": "imagegpt",
    "janus": "janus",
}


def find_family(model: Any) -> ModuleType | None:
    """Find the adapter of a model; None for a model of texts."""
    name = FAMILIES.get(getattr(getattr(model, "config", None), "model_type", ""))
    return None if name is None else importlib.import_module(f"parity_decoders.families.{name}")
