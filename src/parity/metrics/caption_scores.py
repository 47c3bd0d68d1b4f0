"""How well an image fits its caption: CLIP-score, and two scores that were trained on what people preferred.

HPSv2 (Wu et al. 2023) is the cosine under a CLIP-H; which version is in the weights (v2.1: HPS_v2.1_compressed.pt).
PickScore (Kirstain et al. 2023) is the scaled cosine: its authors' logits, before any softmax."""

from typing import Any

import numpy as np

from parity.metrics.estimates import Estimate, mean_and_error
from parity.metrics.judges import explain_absent

KINDS = ("discrete",)
MEASURES = {
    "clip_score": ("CLIP-score", "", "higher"),
    "hps": ("HPSv2", "", "higher"),
    "pickscore": ("PickScore", "", "higher"),
}
COLUMNS = {"clip_score": "cosine", "hps": "hps", "pickscore": "pickscore"}  # each score's column of `metrics.judges`


def rows(sample: Any) -> dict[str, np.ndarray]:
    """List the score of every image by its caption, of the networks that judged this cell."""
    names = {"clip": "cosine", "hps": "hps", "pickscore": "pickscore"}
    return {name: sample.outputs[column] for name, column in names.items() if column in sample.outputs}


def arrays(sample: Any) -> dict[str, np.ndarray]:
    return {"captions": sample.shard.captions} | {k: v for k, v in sample.outputs.items() if k == "cosine"}


def measure(sample: Any) -> dict[str, Any]:
    """Average each score over images, with an error by prompt; an estimate with the reason, if its network is
    missing or the prompts are numbers of classes. CLIP-score is the raw cosine between image and caption, not scaled
    or clipped.

    Published figures use other scales: torchmetrics 100 cos, Hessel et al. 2021 2.5 max(cos, 0). Cosines of the
    embedded CLIP compare with each other alone. `clip_cut` is how many captions a published CLIP cut at 77 tokens.
    """
    figures: dict[str, Any] = {"clip_cut": int(sample.outputs["cut"])} if "cut" in sample.outputs else {}
    for name, column in COLUMNS.items():
        if column in sample.outputs:
            figures[name] = Estimate(*mean_and_error(sample.outputs[column], sample.groups))
        else:
            figures |= explain_absent(sample, column, [name])
    return figures
