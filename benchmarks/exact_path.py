"""How far `coupled: {law: path}` is from plain decoding under one noise, and its depth; for docs/explanation/heads.md.

    python benchmarks/exact_path.py [--steps 25] [--images 3] 'coupled: {law: path, reads: drafts}' ...

Every image is decoded alone, in float64. error: the largest difference of two numbers; dB: the least PSNR of two
pictures, of peak 2.
"""

import numpy as np
import torch
from common import asked, cell, embedded, numbered

from parity.base.row_noise import batch_noise
from parity.decode import loop


def main() -> None:
    a = asked(
        __doc__,
        ["coupled: {law: path, reads: drafts, window: 64, sweeps: 4}"],
        model=("mar", "xar", "harmon"),
        steps=25,
        images=3,
    )
    manifest, leaf = embedded("continuous", a.model), loop.import_kind("continuous")
    settings = {"steps": a.steps, "guidance": 3.0, "temperature": 0.8, "clip": 4.0}
    settings["guidance_schedule"] = "constant" if a.model == "harmon" else "linear"
    for variant in a.variants:
        found = []
        for image in range(a.images):
            rows, runs, depth = {k: v[image:] for k, v in numbered(image + 1).items()}, [], []
            for one in ("", variant):
                spec = cell("continuous", one, 0, sampling=settings, dtype="float64")
                loaded = loop.load("continuous", manifest, spec, "cpu")
                noise = batch_noise(0, [str(image)], dtype=torch.float64)
                model, start, steps = loop.start_decoding("continuous", loaded, spec)(rows, noise)
                runs.append(leaf.record(model, start, steps).tokens)
                depth.append(float(model.target.depth[0]))
            plain, own = (loaded.decode(tokens) for tokens in runs)
            square = float((plain - own).square().mean().clamp(min=1e-30))
            error = float((runs[0] - runs[1]).abs().max())
            found.append((*depth, model.target.counts["conditions"], error, 10 * np.log10(4 / square)))
        before, after, evaluations, error, decibels = zip(*found, strict=True)
        said = f"depth {np.mean(after):.0f}, {np.mean(before) / np.mean(after):.1f} times fewer"
        cost = f"{np.mean(evaluations):,.0f} network evaluations"
        print(f"{variant}: {said}, {cost}, error {max(error):.1e}, at least {min(decibels):.0f} dB", flush=True)


if __name__ == "__main__":
    main()
