"""Similarity of a drafter's trees and of the target's features, on which verification skipping rests (VVS, sec. 3,
figs. 2, 3), along images of plain sampling: two figures for the report (`report.figures.Extra`)."""

import argparse
from typing import Any

import numpy as np
import torch
from parity_decoders.candidates import grow_dynamic_tree
from parity_decoders.discrete.vvs import measure_similarity
from torch import Tensor
from torch.nn.functional import cosine_similarity

from parity.base.digests import read_manifest
from parity.base.files import read_json, write_json
from parity.decode.shard_io import read_shards, rows_of
from parity.experiment.options import options
from parity.metrics.estimates import PERCENT, Z
from parity.models.discrete.load import load


@torch.inference_mode()
def observe(
    model: Any, tokens: Tensor, tree: dict[str, Any], stride: int = 8, furthest: int = 16
) -> tuple[Tensor, Tensor]:
    """Measure along images, tokens [B, L], how alike the sequences are of a tree drafted after each `stride` tokens [B,
    trees], and the cosine of the target's features by their distance [B, furthest]. tree: options of `vvs`."""
    B, L = tokens.shape
    features = read_images(model, tokens)[:B].float()  # with guidance, the second half of the rows is unconditional
    cosines = [cosine_similarity(features[:, d:], features[:, :-d], dim=-1).mean(1) for d in range(1, furthest + 1)]
    drafter = model.drafter
    similarities = []
    for end in range(stride, L, stride):
        read = torch.arange(end - stride, end, device=tokens.device).expand(B, -1)
        probs = drafter.logits(tokens[:, end - stride : end], read, read - 1)[:, -1]
        drafted = grow_dynamic_tree(drafter, probs, read[:, -1], tree["total"], tree["depth"], tree["top_k"])
        similarities.append(measure_similarity(drafted, model.codebook, tree["depth"], tree["decay"], tree["stride"]))
    return torch.stack(similarities, 1), torch.stack(cosines, 1)


def read_images(model: Any, tokens: Tensor) -> Tensor:
    """Let a model read images, tokens [B, L], and return its features [R, L, dim], which its drafter now has, too."""
    nodes = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    evaluated = model.tree(torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1), nodes - 1, nodes - 1)
    model.keep(evaluated, nodes)
    features: Tensor = evaluated.hidden
    return features


def make_figures(similarity: np.ndarray, cosines: np.ndarray, model: str, width: int) -> list[dict[str, Any]]:
    """Make the two figures, as fields of `Extra`, from similarity [n, trees] and cosine [n, distances]."""
    threshold = options("discrete", "vvs", {})["threshold"]
    share = float((similarity >= threshold).mean())
    mean = cosines.mean(0)
    points = [{"x": d, "y": float(m)} for d, m in enumerate(mean, 1)]
    if len(cosines) > 1:  # with a single image there is no error to draw
        error = Z * cosines.std(0, ddof=1) / len(cosines) ** 0.5
        for point, m, e in zip(points, mean, error, strict=True):
            point |= {"low": float(m - e), "high": float(m + e)}
    return [
        {
            "name": f"path-similarity-{model}",
            "title": f"How alike the candidate sequences of a drafted tree are ({model})",
            "caption": "Mean cosine of the codes of every two sequences, nearer tokens weighing more (VVS, eq. 2,"
            f" fig. 2b), of {similarity.size} trees along plain sampling's images. Where it is high, whichever sequence"
            " is taken looks much the same, and verifying it decides little. Here"
            f" {share:.0%} of the trees reach the threshold of {threshold:g}; the paper has 75% above 0.7 on"
            " LlamaGen-XL.",
            "kind": "histogram",
            "x": "similarity of the sequences",
            "data": [{"value": float(v)} for v in similarity.flatten()],
        },
        {
            "name": f"feature-staleness-{model}",
            "title": f"How alike the target's features are by their distance ({model})",
            "caption": "Cosine of the hidden states before the output matrix of two tokens this many places apart (VVS,"
            f" fig. 3), mean over images with {PERCENT} intervals. A drafter that must do with features of n tokens ago"
            f" has what stands at n. A row is {width} tokens: tokens that far apart are vertical neighbours."
            f" Neighbours: {mean[0]:.2f} here, 0.68 in the paper.",
            "kind": "line",
            "x": "tokens apart",
            "y": "cosine",
            "data": points,
        },
    ]


def run(a: argparse.Namespace) -> None:
    """Observe a cell's first images, and write two figures: similarity of sequences, and staleness of features."""
    spec = read_json(a.cell / "spec.json")
    shard = read_shards(a.shards)
    loaded = load(read_manifest(a.checkpoint), a.device, getattr(torch, spec["dtype"]), "drafter")
    shown = slice(a.images)
    inputs = {name: column[shown] for name, column in rows_of(a.inputs, shard).items()}
    tokens = torch.from_numpy(shard.tokens[shown]).long().to(loaded.device)
    similarity, cosines = observe(loaded.model(inputs, spec["sampling"]), tokens, options("discrete", "vvs", {}))
    drawn = make_figures(similarity.cpu().numpy(), cosines.cpu().numpy(), spec["model"], loaded.width)
    for file, figure in zip(a.out, drawn, strict=True):
        write_json(file, figure)
