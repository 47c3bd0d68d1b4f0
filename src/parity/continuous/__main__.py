"""python -m parity.continuous COMMAND ... : the stages of the experiment on continuous tokens.

decode   images of one cell, and what each cost                         cell.npz
exact    a method on mixtures whose law is known                        rows.json
forced   a method's law of one token against the target's               rows.json
measure  pictures, class accuracy, Inception Score, FID                 records.parquet, figures.json, thumbnails.npz
report   continuous.html and its tables
convert  published checkpoints of MAR or xAR                            a folder for `continuous.weights`
"""

import argparse
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.base.command import one_line, pin_threads, progress, provenance
from parity.base.files import canonical, publish, read_arrays, write_arrays, write_json
from parity.base.noise import counted_noise
from parity.decode.continuous import run
from parity.decode.continuous_cell import decode as decode_cell
from parity.decode.continuous_cell import decoder
from parity.experiment.config import needs
from parity.models.continuous.load import Networks, caption_of, labels_of
from parity.models.continuous.protocol import Pair, Start

SHOWN = 12  # pictures of a cell on the page
REAL = 512  # pictures that FID compares with


def decode(a: argparse.Namespace) -> None:
    decode_cell(json.loads(a.spec), a.weights, a.device, a.threads, a.out)


def exact(a: argparse.Namespace) -> None:
    """On two mixtures of three tokens, of one and of two numbers; a rejection is repeated on a fresh seed."""
    from parity.equality import mixtures as continuous
    from parity.models.continuous.gmm import TabularMixture

    method, seeds, found, begin = decoder(a.method), json.loads(a.seeds), [], time.perf_counter()
    options = json.loads(a.options)
    for D, bins in ((1, 4), (2, 2)):
        target, draft = (continuous.random_mixture(np.random.default_rng(s), 3, 3, D) for s in (0, 1))
        for repeat, seed in enumerate(seeds):
            noise, order = counted_noise(seed, range(a.n)), torch.arange(3).expand(a.n, -1)
            pair = Pair(TabularMixture(target, a.n), TabularMixture(draft, a.n) if needs(a.method) else None)
            done = run(order, D, method(pair, Start(order), noise=noise, **options))
            place = {
                "model_name": f"mixture 3 x {D}-D",
                "method": a.method,
                "key": canonical(options),
                "seed": seed,
                "repeat": repeat,
            }
            rows = continuous.continuous_rows(
                done.tokens.numpy(),
                target,
                rng=np.random.default_rng([seed, D]),
                bins=bins,
                layer="exact",
                draws=4999,
                **place,
            )
            drafts = (done.accepted >= 0).sum().item()
            rows[-1] |= {
                "acceptance": (done.accepted == 1).sum().item() / drafts if drafts else None,
                "gave_up": int(done.gave_up.sum()),
            }
            found += rows
            if not any(r["verdict"] == "rejected" for r in rows if r["decides"]):
                break
    write_json(a.out, {"rows": found, "seconds": round(time.perf_counter() - begin, 1)})


def forced(a: argparse.Namespace) -> None:
    """A few images of the reference, cut at random places."""
    from parity.equality import one_token as layer

    spec, cell = json.loads(a.spec), read_arrays(a.reference)
    networks, rng, begin = (
        Networks(spec["model"], a.device, a.weights),
        np.random.default_rng([spec["seed"], 11]),
        time.perf_counter(),
    )
    speculative = needs(spec["method"]) == "draft"
    options = spec["options"] | ({"gamma": 1, "prefill": 0.0} if speculative else {})
    ratios: dict[str, list[float]] = {"single_path": [], "two_paths": [], "distance": [], "acceptance": []}
    chosen = [
        (int(c), int(rng.integers(1, cell["order"].shape[1]))) for c in range(min(a.conditions, len(cell["tokens"])))
    ]
    place = {"model": spec["model"], "method": spec["method"], "key": a.key, "seed": spec["seed"]}
    conditions = []
    for c, at in chosen:
        one = range(c, c + 1)
        draft = networks.of("-draft", one, spec["sampling"]) if speculative else None
        image = (torch.from_numpy(cell["tokens"][c]), torch.from_numpy(cell["order"][c]), at)
        conditions.append((Pair(networks.of("", one, spec["sampling"]), draft), image))
    seeds = (1000 + spec["seed"], 50_000 + spec["seed"])
    found = layer.rows(conditions, decoder(spec["method"]), options, a.n, seeds, **place)
    for c, (pair, image) in enumerate(conditions if speculative else []):
        noise = counted_noise(seeds[0], range(c * a.n, (c + 1) * a.n), torch.float32)
        done = layer.draw(pair, decoder(spec["method"]), options, image, noise)
        ratios["two_paths"] += done.log_ratio[:, 0].tolist()
        ratios["distance"] += done.distance[:, 0].tolist()
        ratios["acceptance"] += (done.accepted[:, 0] == 1).float().tolist()
        if spec["model"] in ("mar", "harmon"):
            ratios["single_path"] += layer.single_path(pair, image, noise).tolist()
    known = {k: {"mean": float(np.mean(v)), "median": float(np.median(v)), "n": len(v)} for k, v in ratios.items() if v}
    write_json(a.out, {"rows": found, "ratios": known, "seconds": round(time.perf_counter() - begin, 1)})


def real_pictures(count: int) -> np.ndarray:
    """Fresh pictures of the classes in turn."""
    from parity.embedded.scenes import ground_truth

    return np.stack([ground_truth(caption_of(i), seed=70_000 + i) for i in range(count)])


class Judge:
    """The Scenes classifier and what it sees in real pictures: quality of a cell's pictures, for models of those classes."""

    def __init__(self, file: Path, device: str):
        from parity.metrics.fid import reference_half
        from parity.metrics.networks import classifier

        self.net, self.device = classifier.load(file).to(device), device
        real, logits = self.read(real_pictures(REAL))
        self.half, self.right = reference_half(real), (logits.argmax(1) == labels_of(range(REAL))).float().mean().item()

    @torch.inference_mode()
    def read(self, pixels: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
        """Features [n, F] and logits [n, classes]."""
        from parity.training.loop import to_pictures

        features = torch.cat([self.net.features(p) for p in to_pictures(pixels).to(self.device).split(128)])
        return features.cpu().double().numpy(), self.net.out(features).cpu()

    def quality(self, pixels: np.ndarray) -> tuple[dict[str, float | None], list[bool]]:
        """FID, Inception Score (torch-fidelity's), and whether each picture's class is read."""
        from torch_fidelity.metric_isc import isc_features_to_metric

        from parity.metrics.fid import fid_and_error

        (features, logits), n = self.read(pixels), len(pixels)
        fid, fid_error = fid_and_error(features, self.half, np.arange(n)) if n >= 8 else (None, None)
        score = isc_features_to_metric(logits, splits=max(1, min(10, n // 100)))
        found = {
            "fid": fid,
            "fid_se": fid_error,
            "is": score["inception_score_mean"],
            "is_sd": score["inception_score_std"],
        }
        return found, (logits.argmax(1) == labels_of(range(n))).tolist()


def measure(a: argparse.Namespace) -> None:
    """A record per image, and a cell's figures; quality for the embedded models, whose classes there is a classifier of."""
    import pandas as pd

    embedded = a.weights / "classifier.safetensors"
    judge = Judge(embedded, a.device) if embedded.exists() else None
    records, figures, thumbnails = [], {}, {}
    networks: dict[str, Networks] = {}
    for path in progress(a.cells, len(a.cells), "measure"):
        cell = read_arrays(path)
        spec = json.loads(str(cell["provenance"]))["spec"]
        net_of = networks.setdefault(spec["model"], Networks(spec["model"], a.device, a.weights))
        pixels = net_of.pictures(torch.from_numpy(cell["tokens"]))
        n = len(pixels)
        quality, right = (
            judge.quality(pixels) if judge else (dict.fromkeys(("fid", "fid_se", "is", "is_sd")), [None] * n)
        )
        figures[path.stem] = {
            **quality,
            "by_place": [float(np.nanmean(np.where(c >= 0, c, np.nan))) if (c >= 0).any() else None for c in cell["accepted"].T],
            "by_cell": grid_acceptance(cell["accepted"], cell["order"]),
        }  # fmt: skip
        thumbnails[path.stem] = pixels[:SHOWN]
        for i in range(n):
            verified = cell["accepted"][i] >= 0
            records.append({
                "cell": path.stem, "model": spec["model"], "method": spec["method"], "id": int(cell["ids"][i]), "seed": spec["seed"],
                "class": net_of.class_of(i), "right": right[i], "drafted": int(verified.sum()),
                "accepted": int((cell["accepted"][i] == 1).sum()),
                "log_ratio": float(np.median(cell["log_ratio"][i][verified])) if verified.any() else None,
                "distance": float(cell["distance"][i][verified].mean()) if verified.any() else None,
                **{k: float(cell[k][i]) for k in cell if k.startswith(("target_", "draft_"))},
                **{k: float(cell[k][i]) for k in ("steps", "tries", "gave_up", "seconds", "alone_seconds")},
            })  # fmt: skip
    stream = io.BytesIO()
    pd.DataFrame(records).to_parquet(stream)
    publish(a.out, stream.getvalue())
    write_arrays(a.thumbnails, **thumbnails)
    real = judge.right if judge else None
    write_json(
        a.figures, {"cells": figures, "real_accuracy": real, "provenance": provenance(a.device, "float32", a.threads)}
    )


def grid_acceptance(accepted: np.ndarray, order: np.ndarray) -> list[float | None]:
    """Share of drafts accepted [L] at each position of the grid, over a cell's images; None where none was looked at."""
    L = accepted.shape[1]
    at = np.full((len(accepted), L), np.nan)
    np.put_along_axis(at, order, np.where(accepted >= 0, accepted, np.nan), 1)
    counts = np.isfinite(at).sum(0)
    return [float(np.nansum(at[:, j]) / counts[j]) if counts[j] else None for j in range(L)]


def report(a: argparse.Namespace) -> None:
    from parity.report import continuous as page

    page.write(a)


def convert(a: argparse.Namespace) -> None:
    from parity.models.continuous import published

    published.convert(a.model, a.target, a.draft, a.kl, a.out)


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = main.add_subparsers(dest="command", required=True)

    def command(
        name: str,
        do: Any,
        *texts: str,
        paths: tuple[str, ...] = (),
        many: tuple[str, ...] = (),
        counts: tuple[str, ...] = (),
    ) -> argparse.ArgumentParser:
        c = commands.add_parser(name)
        c.set_defaults(run=do)
        for text in texts:
            c.add_argument(f"--{text}", required=True)
        for path in paths:
            c.add_argument(f"--{path}", type=Path, required=True)
        for path in many:
            c.add_argument(f"--{path}", type=Path, nargs="*", required=True)
        for count in counts:
            c.add_argument(f"--{count}", type=int, required=True)
        c.add_argument("--out", type=Path, required=True)
        c.add_argument("--threads", type=int, default=1)
        c.add_argument("--device", default="cpu")
        return c

    command("decode", decode, "spec", paths=("weights",))
    command("exact", exact, "method", "options", "seeds", counts=("n",))
    command("forced", forced, "spec", "key", paths=("reference", "weights"), counts=("n", "conditions"))
    command("measure", measure, paths=("weights", "thumbnails", "figures"), many=("cells",))
    command(
        "report", report, "config", paths=("records", "figures", "thumbnails"), many=("exact", "forced", "published")
    )
    command("convert", convert, paths=("target", "draft", "kl")).add_argument(
        "--model", choices=["mar", "xar"], required=True
    )
    return main


def main() -> None:
    a = parser().parse_args()
    pin_threads(a.threads)
    a.run(a)


if __name__ == "__main__":
    one_line(main)
