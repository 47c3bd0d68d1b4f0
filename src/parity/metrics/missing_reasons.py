"""What a metric says in its place where it cannot be taken of a published model. Imports no torch."""

from collections.abc import Iterable
from typing import Any

NEEDS = {  # columns of `metrics.judge_features`, by the network that gives them
    "features": "inception",  # [n, 2048]
    "logits": "inception",  # [n, 1008]
    "vgg16": "vgg16",  # [n, 4096], under protocols whose precision and recall are of them
    "cosine": "clip",  # [n] of a picture with its caption
    "cmmd": "clip_vision",  # [n, d] of unit length
    "hps": "hps",  # [n]
    "pickscore": "pickscore",  # [n]
}


def absent(sample: Any, column: str, figures: Iterable[str]) -> dict[str, str]:
    """`<figure>_why` of figures of a published model that cannot be taken: the network that is not declared, or what
    there is nothing to compare with. Embedded models have networks of their own, and need no word."""
    if not sample.protocol:
        return {}
    section = "image" if sample.spec.get("prompts") else "continuous"
    why = "no reference: " + str(sample.compared.get("why", f"{section}.reference"))
    if column not in sample.seen:
        why = f"no network: networks.{NEEDS[column]}"
    return {f"{name}_why": why for name in figures}
