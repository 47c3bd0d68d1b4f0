"""The networks of a protocol, which an experiment on published models has without declaring them."""

from typing import Any

from parity.experiment import weights
from parity.experiment.module_metadata import read_constant


def list_networks(protocol: str) -> dict[str, dict[str, str]]:
    """List the entries of `networks` that a protocol needs, by name; {} for an unknown protocol."""
    published = read_constant("metrics", "protocols", "NETWORKS")
    clip = weights.read_protocols().get(protocol, {}).get("clip")
    names = read_constant("metrics", "protocols", "JUDGES").get(protocol, ())
    return {name: dict(published[clip if name == "clip" else name]) for name in names}


def has_published_images(raw: dict[str, Any]) -> bool:
    """Return whether a configuration names a published model of images, as far as it can be read."""
    models = raw.get("models")
    entries = [spec for spec in models.values() if isinstance(spec, dict)] if isinstance(models, dict) else []
    families = [*weights.list_families("discrete"), *weights.list_families("continuous")]  # a value may be no text
    return any(spec.get("source", "embedded") != "embedded" and spec.get("family") in families for spec in entries)


def add_networks(raw: dict[str, Any]) -> dict[str, Any]:
    """Add, in place, the networks of the protocol that a configuration names, if it has a published model of images
    and no `networks` of its own; `networks: {}` declares none. Returns `raw`."""
    protocol = raw.get("protocol")
    if isinstance(protocol, str) and "networks" not in raw and has_published_images(raw):
        raw["networks"] = list_networks(protocol)
    return raw
