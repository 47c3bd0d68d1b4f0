"""What a drafter's trees and the target's features are like: the observations verification skipping rests on (VVS, sec. 3, figs. 2 and 3).

    python -m parity.drafting_study --cell .../ar-0123abcd --prompts ... --shards ... --checkpoint manifest.json --out similarity.json staleness.json

Along plain sampling's own images, the target and the drafter are fed what was drawn. Writes two figures for the report (`report.studies.Extra`).
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from parity.base.command import one_line, pin_threads
from parity.base.files import read_encoded, read_json, read_shards, write_json
from parity.decode.generate import DTYPES
from parity.decoders.candidates import dynamic
from parity.decoders.discrete.vvs import similarity
from parity.experiment.config import options
from parity.models import checkpoints
from parity.models.discrete.sampling import Sampled, Sampling

EVERY = 8  # a tree behind every eighth token
FURTHEST = 16  # tokens between the features that are compared


@torch.inference_mode()
def observe(model: Sampled, tokens: Tensor, tree: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Similarity [B, trees] of the candidate sequences of each drafted tree, and cosine [B, FURTHEST] of features by their distance, of images
    tokens [B, L]; `tree` holds total, depth, top_k, decay and stride as of `vvs`."""
    B, L = tokens.shape
    start = torch.zeros_like(tokens[:, :1])
    model.logits(torch.cat([start, tokens[:, :-1]], 1), torch.arange(-1, L - 1, device=tokens.device).expand(B, -1))
    features = model.model.features[:B, :L].float()  # type: ignore[attr-defined]  # of the conditional rows
    cosines = [cosine_similarity(features[:, d:], features[:, :-d], dim=-1).mean(1) for d in range(1, FURTHEST + 1)]
    drafter, alike = model.drafter, []
    for at in range(EVERY, L, EVERY):
        read = torch.arange(at - EVERY, at, device=tokens.device).expand(B, -1)
        law = drafter.logits(tokens[:, at - EVERY : at], read, read - 1)[:, -1]
        found = dynamic(drafter, law, read[:, -1], tree["total"], tree["depth"], tree["top_k"])
        alike.append(similarity(found, model.codebook, tree["depth"], tree["decay"], tree["stride"]))
    return torch.stack(alike, 1), torch.stack(cosines, 1)


def figures(alike: np.ndarray, cosines: np.ndarray, model: str, width: int) -> list[dict[str, Any]]:
    """The two figures, from similarity [n, trees] and cosine [n, distances]; width: tokens in a row of the picture."""
    threshold = options("vvs", {})["threshold"]
    share = float((alike >= threshold).mean())
    mean, error = cosines.mean(0), 1.96 * cosines.std(0, ddof=1) / len(cosines) ** 0.5
    return [
        {
            "name": f"path-similarity-{model}",
            "title": f"How alike the candidate sequences of a drafted tree are ({model})",
            "caption": f"Mean cosine of the codes of every two sequences, nearer tokens weighing more (VVS, eq. 2, fig. 2b), of {alike.size} trees"
            f" along plain sampling's images. Where it is high, whichever sequence is taken looks much the same, and verifying it decides little."
            f" Here {share:.0%} of the trees reach the threshold of {threshold:g}; the paper has 75% above 0.7 on LlamaGen-XL.",
            "kind": "histogram",
            "x": "similarity of the sequences",
            "data": [{"value": float(v)} for v in alike.flatten()],
        },
        {
            "name": f"feature-staleness-{model}",
            "title": f"How alike the target's features are by their distance ({model})",
            "caption": "Cosine of the hidden states before the output matrix of two tokens so many places apart (VVS, fig. 3), mean over images with"
            f" 95% intervals. A drafter that must do with features of n tokens ago has what stands at n. A row is {width} tokens: what is so far"
            f" apart lies one above the other. Neighbours: {mean[0]:.2f} here, 0.68 in"
            " the paper.",
            "kind": "line",
            "x": "tokens apart",
            "y": "cosine",
            "data": [
                {"x": d + 1, "y": float(m), "low": float(m - e), "high": float(m + e)}
                for d, (m, e) in enumerate(zip(mean, error, strict=True))
            ],
        },
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cell", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--out", type=Path, nargs=2, required=True, help="similarity of sequences, staleness of features"
    )
    a = parser.parse_args()
    pin_threads(a.threads)
    spec, shard = read_json(a.cell / "spec.json"), read_shards(a.shards)
    loaded = checkpoints.load(read_json(a.checkpoint), a.device, DTYPES[spec["dtype"]], "drafter")
    encoded, sampling, n = read_encoded(a.prompts, shard), Sampling(**spec["sampling"]), min(a.images, len(shard.ids))
    model = Sampled(loaded.decodable(encoded["embeddings"][:n], encoded["valid"][:n], sampling.guidance != 1), sampling)
    alike, cosines = observe(model, torch.from_numpy(shard.tokens[:n]).long().to(loaded.device), options("vvs", {}))
    for file, figure in zip(
        a.out, figures(alike.cpu().numpy(), cosines.cpu().numpy(), spec["model"], model.width), strict=True
    ):
        write_json(file, figure)


if __name__ == "__main__":
    one_line(main)
