"""The equality layers that ask the target: teacher-forced, and pathwise for coupled decoders. (`parity.pair` needs samples alone.)

python -m parity.compare teacher-forced --cell .../sjd-0123abcd --prompts ... --shards ... --checkpoint manifest.json --out rows.json --logp logp.npz
python -m parity.compare pathwise --cell ... --prompts ... --checkpoint manifest.json --images 16 --out rows.json
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.base.command import one_line, pin_threads
from parity.base.files import join, read_encoded, read_json, read_shards, write_arrays, write_json
from parity.decode.generate import DTYPES, generate
from parity.equality.pathwise import token_row
from parity.equality.rows import Row
from parity.equality.teacher_forced import battery, sign_groups, slots
from parity.experiment.config import claim, needs
from parity.metrics.likelihood import log_probabilities, teacher_forced_logits, top_probabilities
from parity.models import checkpoints
from parity.models.discrete.sampling import Sampled, Sampling


def teacher_forced(a: argparse.Namespace) -> list[Row]:
    """The decoder's own tokens once through the target, on every seed asked for (the first decides, the next is its repetition)."""
    spec, shard = read_json(a.cell / "spec.json"), read_shards(a.shards)
    loaded = checkpoints.load(read_json(a.checkpoint), a.device, DTYPES[spec["dtype"]])
    encoded, sampling = read_encoded(a.prompts, shard), Sampling(**spec["sampling"])

    logp: list[np.ndarray] = []
    top1: list[np.ndarray] = []

    def law(first: int, last: int) -> torch.Tensor:
        """p [last - first, L, V] of rows first..last-1; kept on the way: the tokens' own log-probabilities, and the largest probability."""
        model = Sampled(
            loaded.decodable(encoded["embeddings"][first:last], encoded["valid"][first:last], sampling.guidance != 1),
            sampling,
        )
        tokens = torch.from_numpy(shard.tokens[first:last]).to(loaded.device)
        logits = teacher_forced_logits(model, tokens)
        logp.append(log_probabilities(logits, tokens, model.forced).cpu().numpy())
        p = logits.softmax(-1)
        top1.append(top_probabilities(p, model.forced).cpu().numpy())
        return p

    # The slot is known before the token is drawn only where each pass ends in a correction: the left-to-right verifiers.
    strict = claim(spec["method"], spec["options"]) == "lossless"
    place: dict[str, Any] = {"model": spec["model"], "method": spec["method"], "key": a.cell.name.rsplit("-", 1)[1]}
    groups = sign_groups(loaded.vq.quantize.codes.detach().cpu().numpy())
    settings = {"slot": slots(shard.step) if strict else None, "groups": groups, "chunk": a.batch, "strict": strict}
    rng = np.random.default_rng(a.seeds[0])
    found = battery(shard.tokens, law, loaded.net.config.grid, rng=rng, seed=a.seeds[0], **settings, **place)
    write_arrays(a.logp, ids=shard.ids, logp=np.concatenate(logp), top1=np.concatenate(top1))
    return found


def pathwise(a: argparse.Namespace) -> list[Row]:
    """A decoder coupled to plain sampling by shared noise against plain sampling itself: the same tokens, in float64 and in the run's dtype."""
    spec, manifest, encoded = read_json(a.cell / "spec.json"), read_json(a.checkpoint), join(a.prompts)
    encoded = {k: v[: a.images] for k, v in encoded.items()}
    place: dict[str, Any] = {
        "model": spec["model"],
        "method": spec["method"],
        "key": a.cell.name.rsplit("-", 1)[1],
        "seed": spec["seed"],
    }
    found = []
    for dtype in dict.fromkeys(["float64", spec["dtype"]]):
        loaded = checkpoints.load(manifest, a.device, DTYPES[dtype], needs(spec["method"]))
        plain = {**spec, "method": "ar", "options": {}}
        mine, theirs = (generate(loaded, {**s, "dtype": dtype}, encoded, a.batch).tokens for s in (spec, plain))
        found.append(token_row(mine, theirs, exact=dtype == "float64", test=f"same tokens, {dtype}", **place))
    return found


LAYERS = {"teacher-forced": teacher_forced, "pathwise": pathwise}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("layer", choices=LAYERS)
    for name in ("cell", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, help="teacher-forced, pathwise: the manifest")
    parser.add_argument("--logp", type=Path, help="teacher-forced: where the tokens' log-probabilities go")
    parser.add_argument("--images", type=int, default=16, help="pathwise: images to decode")
    parser.add_argument("--prompts", type=Path, nargs="+", help="teacher-forced, pathwise: the encoded prompts")
    parser.add_argument("--shards", type=Path, nargs="+", help="teacher-forced: the cell's shards")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    pin_threads(a.threads)
    write_json(a.out, {"rows": LAYERS[a.layer](a)})


if __name__ == "__main__":
    one_line(main)
