"""The equality layers at model scale: teacher-forced against the target, paired with plain sampling, and pathwise for coupled decoders.

python -m parity.compare teacher-forced --cell results/cells/scenes/sjd-0123abcd --prompts ... --shards ... --checkpoint manifest.json --out rows.json
python -m parity.compare pathwise --cell ... --prompts ... --checkpoint manifest.json --images 16 --out rows.json
python -m parity.compare paired --cell .../sjd-0123abcd --baseline .../ar-0123abcd --reference features.npz --out rows.json
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity import checkpoints
from parity.command import one_line, pin_threads
from parity.config import claim
from parity.equality import paired
from parity.equality.pathwise import token_row
from parity.equality.rows import Row
from parity.equality.teacher_forced import battery, sign_groups, slots
from parity.generate import DTYPES, generate
from parity.sampling import Sampled, Sampling
from parity.storage import join, read_arrays, read_encoded, read_json, read_shards, write_json


def teacher_forced(a: argparse.Namespace) -> list[Row]:
    """The decoder's own tokens once through the target, on every seed asked for (the first decides, the next is its repetition)."""
    spec, shard = read_json(a.cell / "spec.json"), read_shards(a.shards)
    loaded = checkpoints.load(read_json(a.checkpoint), a.device, DTYPES[spec["dtype"]])
    encoded, sampling = read_encoded(a.prompts, shard), Sampling(**spec["sampling"])

    def law(first: int, last: int) -> torch.Tensor:
        """p [last - first, L, V] of rows first..last-1."""
        model = Sampled(loaded.decodable(encoded["embeddings"][first:last], encoded["valid"][first:last], sampling.guidance != 1), sampling)
        tokens = torch.from_numpy(shard.tokens[first:last]).long().to(loaded.device)
        feed = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)
        positions = torch.arange(-1, tokens.shape[1] - 1, device=loaded.device).expand(last - first, -1)
        return model.logits(feed, positions).softmax(-1)

    # The slot is known before the token is drawn only where each pass ends in a correction: the left-to-right verifiers.
    slot = slots(shard.step) if claim(spec["method"]) == "lossless" else None
    place: dict[str, Any] = {"model": spec["model"], "method": spec["method"], "key": a.cell.name.rsplit("-", 1)[1]}
    groups = sign_groups(loaded.vq.quantize.codes.detach().cpu().numpy())
    rng = np.random.default_rng(a.seeds[0])
    width = loaded.net.config.grid
    return battery(shard.tokens, law, width, rng=rng, seed=a.seeds[0], slot=slot, groups=groups, chunk=a.batch, **place)


def compare_pairs(a: argparse.Namespace) -> list[Row]:
    """Quality and likelihood differences from the baseline, prompt by prompt."""
    spec, mine, theirs = read_json(a.cell / "spec.json"), read_arrays(a.cell / "features.npz"), read_arrays(a.baseline / "features.npz")
    place: dict[str, Any] = {"model": spec["model"], "method": spec["method"], "key": a.cell.name.rsplit("-", 1)[1]}
    x, y, seed = mine["ids"].astype(str).tolist(), theirs["ids"].astype(str).tolist(), a.seeds[0]
    logp, baseline = (np.nanmean(np.where(np.isneginf(side["logp"]), np.nan, side["logp"]), 1) for side in (mine, theirs))
    found = paired.scalar_rows(logp, baseline, x, y, name="log p", margin=a.margin_logp, seed=seed, **place)
    if "features" in mine:
        found += paired.scalar_rows(mine["cosine"], theirs["cosine"], x, y, name="CLIP", margin=a.margin_clip, seed=seed, **place)
        found.append(paired.mmd_row(mine["features"], theirs["features"], x, y, seed=seed, swaps=a.swaps, name="CLIP features", **place))
        real = read_arrays(a.reference)["features"]
        found.append(paired.fid_row(real, mine["features"], theirs["features"], x, y, seed=seed, swaps=min(a.swaps, 199), **place))
    return found


def pathwise(a: argparse.Namespace) -> list[Row]:
    """A decoder coupled to plain sampling by shared noise against plain sampling itself: the same tokens, in float64 and in the run's dtype."""
    spec, manifest, encoded = read_json(a.cell / "spec.json"), read_json(a.checkpoint), join(a.prompts)
    encoded = {k: v[: a.images] for k, v in encoded.items()}
    place: dict[str, Any] = {"model": spec["model"], "method": spec["method"], "key": a.cell.name.rsplit("-", 1)[1], "seed": spec["seed"]}
    found = []
    for dtype in dict.fromkeys(["float64", spec["dtype"]]):
        loaded = checkpoints.load(manifest, a.device, DTYPES[dtype])
        plain = {**spec, "method": "ar", "options": {}}
        mine, theirs = (generate(loaded, {**s, "dtype": dtype}, encoded, a.batch).tokens for s in (spec, plain))
        found.append(token_row(mine, theirs, exact=dtype == "float64", test=f"same tokens, {dtype}", **place))
    return found


LAYERS = {"teacher-forced": teacher_forced, "paired": compare_pairs, "pathwise": pathwise}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("layer", choices=LAYERS)
    for name in ("cell", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, help="teacher-forced, pathwise: the manifest")
    parser.add_argument("--images", type=int, default=16, help="pathwise: images to decode")
    parser.add_argument("--prompts", type=Path, nargs="+", help="teacher-forced, pathwise: the encoded prompts")
    parser.add_argument("--shards", type=Path, nargs="+", help="teacher-forced: the cell's shards")
    parser.add_argument("--baseline", type=Path, help="paired: the folder of the plain-sampling cell")
    parser.add_argument("--reference", type=Path, help="paired: features of the reference pictures")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11])
    parser.add_argument("--margin-clip", type=float, default=0.02)
    parser.add_argument("--margin-logp", type=float, default=0.05)
    parser.add_argument("--swaps", type=int, default=499)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    pin_threads(a.threads)
    write_json(a.out, {"rows": LAYERS[a.layer](a)})


if __name__ == "__main__":
    one_line(main)
