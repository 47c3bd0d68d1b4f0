"""How far `coupled: {law: path}` is from plain decoding under one noise, and its depth; for docs/explanation/heads.md.

    python benchmarks/exact_path.py [--steps 25] [--images 10] 'coupled: {law: path, reads: drafts}' ...

Every image is decoded alone, in float64. error: the largest difference of two numbers, printed for each image; dB: the
least PSNR of two pictures, of peak 2.
"""

import numpy as np
import torch
from common import make_manifest, make_spec, number_images, parse_flags

from parity.base.row_noise import batch_noise
from parity.decode import loop


def main() -> None:
    """Decode images plainly and by each variant under one noise, and print depths and differences."""
    variants = ["coupled: {law: path, reads: drafts, window: 64, sweeps: 4}"]
    a = parse_flags(__doc__, variants, model=("mar", "xar", "harmon"), steps=25, images=10)
    manifest = make_manifest("continuous", a.model)
    decoding = loop.import_kind("continuous")
    settings = {"steps": a.steps, "guidance": 3.0, "temperature": 0.8, "clip": 4.0}
    settings["guidance_schedule"] = "constant" if a.model == "harmon" else "linear"
    for variant in a.variants:
        measured = []
        for image in range(a.images):
            rows = {k: v[image:] for k, v in number_images(image + 1).items()}
            runs = []
            depths = []
            for name in ("", variant):
                spec = make_spec("continuous", name, 0, sampling=settings, dtype="float64")
                loaded = loop.load("continuous", manifest, spec, "cpu")
                noise = batch_noise(0, [str(image)], dtype=torch.float64)
                model, start, steps = loop.start_decoding("continuous", loaded, spec)(rows, noise)
                runs.append(decoding.record(model, start, steps).tokens)
                depths.append(float(model.target.depth[0]))
            plain, coupled = (loaded.decode(tokens) for tokens in runs)
            square = float((plain - coupled).square().mean().clamp(min=1e-30))
            error = float((runs[0] - runs[1]).abs().max())
            print(f"image {image}: depth {depths[1]:.0f}, error {error:.1e}", flush=True)
            measured.append((*depths, model.target.counts["conditions"], error, 10 * np.log10(4 / square)))
        plain_depth, depth, evaluations, error, decibels = zip(*measured, strict=True)
        calls = f"depth {np.mean(depth):.0f}, {np.mean(plain_depth) / np.mean(depth):.1f} times fewer"
        cost = f"{np.mean(evaluations):,.0f} network evaluations"
        print(f"{variant}: {calls}, {cost}, error {max(error):.1e}, at least {min(decibels):.0f} dB", flush=True)


if __name__ == "__main__":
    main()
