"""Former names, until every import site has the new ones: parity.base.weights, parity.models.fetch, .discrete.load."""

from pathlib import Path
from typing import Any

from parity.base.weights import check, check_fit, load_weights, sha256, unpickle  # noqa: F401
from parity.models import fetch
from parity.models.discrete.load import Loaded, load, side  # noqa: F401


def get(name: str, spec: Any, folder: Path) -> dict:
    return fetch.manifest("discrete", name, spec.model_dump(exclude_unset=True), folder)


def load_clip(manifest: dict, device: str = "cpu") -> Any | None:
    if "clip" not in manifest["files"]:
        return None
    from parity.metrics.networks.clip import build

    clip = build()
    load_weights(clip, Path(manifest["files"]["clip"]))
    return clip.eval().to(device)
