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


def has_published_pictures(raw: dict[str, Any]) -> bool:
    """Return whether a configuration names a published model of pictures, as far as it can be read."""
    models = raw.get("models")
    for spec in models.values() if isinstance(models, dict) else ():
        if not isinstance(spec, dict) or spec.get("source", "embedded") == "embedded":
            continue
        families = {*weights.list_families("discrete"), *weights.list_families("continuous")}
        if spec.get("family") in families:
            return True
    return False


def add_networks(raw: dict[str, Any]) -> dict[str, Any]:
    """Add, in place, the networks of the protocol that a configuration names, if it has a published model of pictures
    and no `networks` of its own; `networks: {}` declares none. Returns `raw`."""
    protocol = raw.get("protocol")
    if isinstance(protocol, str) and "networks" not in raw and has_published_pictures(raw):
        raw["networks"] = list_networks(protocol)
    return raw
