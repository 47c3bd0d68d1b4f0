"""What metrics read of a cell of a discrete model: images of captions, and CLIP's features of both."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.files import read_json
from parity.embedded.scenes import SIZE, draw_ground_truth, reduce_images
from parity.metrics import judges
from parity.metrics.estimates import prompt_groups
from parity.metrics.networks import clip
from parity.metrics.samples import Files
from parity.models.discrete.load import image_side


class Sample(Files):
    fewest = 2

    @cached_property
    def labels(self) -> dict[str, Any]:
        """The caption of every row, a further column of the records."""
        return {"caption": self.shard.captions}

    @cached_property
    def groups(self) -> np.ndarray:
        """[n] int, a number per prompt."""
        return prompt_groups(self.shard.ids)

    @cached_property
    def forced(self) -> np.ndarray | None:
        """[L] bool: places without a probability in any image, which the grammar forces; None without distributions."""
        return None if self.logp is None else np.isnan(self.logp).all(0)

    @cached_property
    def outputs(self) -> dict[str, np.ndarray]:
        """Features [n, d], and cosine [n] of every image with its caption; of published models what the declared
        networks see (`metrics.judges`)."""
        if file := self.manifest["files"].get("clip"):
            return clip.cell_features(self.shard.captions, self.pixels, clip.load(Path(file), self.device))
        captions = self.shard.captions.astype(str).tolist()
        return self.judge(None if judges.are_numbers(captions) else captions)


def draw(prompts: list[Path], count: int, manifest: Mapping[str, Any]) -> np.ndarray:
    """Draw renderings uint8 [count, H, W, 3] of the captions in turn, those in the files `prompts`; as large as the
    images of an embedded model, else of the size SIZE."""
    captions = list(dict.fromkeys(entry["caption"] for file in prompts for entry in read_json(file)))
    rendered = np.stack([draw_ground_truth(captions[i % len(captions)], seed=i) for i in range(count)])
    return reduce_images(rendered, image_side(manifest) if manifest["source"] == "embedded" else SIZE)


def outputs_of(pixels: np.ndarray, manifest: Mapping[str, Any], device: str) -> dict[str, np.ndarray]:
    """Compute the embedded CLIP's features [n, d] of images; {} for a model whose files name no CLIP."""
    file = manifest["files"].get("clip")
    return {"features": clip.image_features(pixels, clip.load(Path(file), device))} if file else {}
