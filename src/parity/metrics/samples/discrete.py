"""What metrics see of a cell of a discrete model: pictures of captions, and CLIP's features of both."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.files import read_json
from parity.embedded.scenes import SIZE, ground_truth, reduced
from parity.metrics.estimates import prompt_groups
from parity.metrics.networks import clip
from parity.metrics.samples import Files
from parity.models.discrete.load import side


class Sample(Files):
    fewest = 2

    @property
    def labels(self) -> dict[str, Any]:
        return {"caption": self.shard.captions}

    @cached_property
    def groups(self) -> np.ndarray:
        """[n] int, a number per prompt."""
        return prompt_groups(self.shard.ids)

    @cached_property
    def forced(self) -> np.ndarray | None:
        return None if self.logp is None else np.isnan(self.logp).all(0)

    @cached_property
    def seen(self) -> dict[str, np.ndarray]:
        """Features [n, d], and cosine [n] of every picture with its caption; of published models what the declared
        networks see (`metrics.judges`)."""
        if (net := network(self.manifest, self.device)) is not None:
            return clip.cell_features(self.shard.ids, self.shard.captions, self.pixels, net)
        return self.judged(self.shard.captions.astype(str).tolist())


def network(manifest: Mapping[str, Any], device: str) -> clip.CLIP | None:
    """The CLIP that quality is measured with; None for a model whose files name none."""
    file = manifest["files"].get("clip")
    return clip.load(Path(file), device) if file else None


def renderings(captions: list[str], count: int, size: int = SIZE) -> np.ndarray:
    """uint8 [count, size, size, 3]: the captions in turn, each time a new picture, reduced as those that a model of
    this size was trained on."""
    return reduced(np.stack([ground_truth(captions[i % len(captions)], seed=i) for i in range(count)]), size)


def drawn(prompts: list[Path], count: int, manifest: Mapping[str, Any]) -> np.ndarray:
    """Fresh renderings uint8 [count, H, W, 3] of the prompts in turn; for a model of ours as large as its pictures."""
    captions = list(dict.fromkeys(entry["caption"] for file in prompts for entry in read_json(file)))
    return renderings(captions, count, side(manifest) if manifest["source"] == "embedded" else SIZE)


def looked_at(pixels: np.ndarray, manifest: Mapping[str, Any], device: str) -> dict[str, np.ndarray]:
    net = network(manifest, device)
    return {"features": clip.picture_features(pixels, net)} if net else {}
