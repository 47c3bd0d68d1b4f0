"""A small made-up results folder: every file that the report reads, of every kind of model, nothing decoded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from parity_certify.result_rows import make_row

from parity.base.files import write_arrays, write_json
from parity.decode.shard_io import write_shard
from parity.embedded import scenes
from parity.experiment import checks, layers, paths
from parity.experiment.cells import Cell, cells, group_cells, kinds, list_text_tasks, long_variant, variant
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import ASKED, Config
from tests.tables import make_shard_columns

PROMPTS = [f"a red circle number {i}" for i in range(12)]
SETTINGS: dict[str, Any] = {
    "experiment": "made",
    "image": {
        "prompts": {"file": "prompts.txt", "limit": 12, "shards": 2},
        "methods": {
            "ar": [{}],
            "jacobi": [{"window": 16}],
            "sjd": [{"window": 16, "init": "random"}, {"window": 16, "init": "sample_above"}],
            "gsd": [{"window": 16}],
        },
        "study": [
            {"title": "By start", "x": "init", "y": ["step_compression", "fid"], "paper": "SJD, Table 1"},
            {"title": "Recall and speed", "x": "step_compression", "y": ["recall"], "reading": "Right is faster."},
        ],
    },
    "text": {
        "methods": {"sequential": [{}], "assd": [{"k": 3}, {"k": 5}, {"k": 8}], "gpt2": [{}]},
        "tasks": {
            "infilling": [{"rows": 6, "length": 24}, {"rows": 6, "length": 32, "prompt": "prefix"}],
            "stories": [{"rows": 6}], "code": [{"rows": 6}], "last_word": [{"rows": 5}], "choice": [{"rows": 5}],
        },
        "cache": [True, False],
    },
    "continuous": {
        "images": 9, "batch": [9, 3],
        "methods": {"mar": [{}, {"iterations": 16}], "cspd": [{"gamma": 4}, {"gamma": 8}, {"gamma": 16}]},
    },
}  # fmt: skip
PLACES, TOKENS = 64, 256  # tokens of a continuous image, and of a discrete one
SPEED = {"jacobi": 1.1, "sjd": 1.8, "gsd": 2.4}


def write_results(root: Path, raw: Mapping[str, Any] = SETTINGS, p: Mapping[str, float] | None = None) -> Config:
    """Write all files of an experiment, by its configuration `raw`, under `root`, and return the checked configuration.
    p: p-values of deciding tests by method, and by "<method> again" those of its repetition; .5 for the others."""
    p = p or {}
    (root / "prompts.txt").write_text("\n".join(PROMPTS))
    settings = checks.make_config(dict(raw))
    declared = {kind: layers.read_layers(kind) for kind in kinds(settings)}
    all_cells = cells(settings, read_prompts(settings.image.prompts, root) if settings.image else [])
    for group in group_cells(all_cells):
        write_json(root / paths.speed(settings, group), {"load": 1.0, "cells": {c.key: make_speed(c) for c in group}})
    for cell in all_cells:
        rng = np.random.default_rng(int(cell.key, 16))
        write = {"discrete": write_image, "anysubset": write_texts, "continuous": write_vectors}[cell.kind]
        write(root, settings, cell, rng)
        method = cell.spec["method"]
        cell_p = p.get(f"{method} again" if cell.role == "again" else method, p.get(method, 0.5))
        tested = {
            layer: {"rows": make_rows(cell, layer, cell_p)} for layer in layers.select_layers(settings, declared, cell)
        }
        if method == "cspd" and "one_token" in tested:
            tested["one_token"]["ratios"] = make_ratios()
        write_json(root / paths.layers(cell), {"layers": tested})
        small, long_form = variant(settings, cell), long_variant(settings, cell)
        if small or long_form:
            tests = {name: {"rows": rows(p.get(method, 0.5))} for name, rows in (("exact", exact), ("long", long))}
            write_json(root / paths.tests(settings, small, long_form), tests)
    for file in paths.manifests(settings).values():
        write_json(root / file, {"sha256": {"weights": "ab" * 32}})
    for task in list_text_tasks(settings):
        if task["kind"] in ASKED:
            share = {"accuracy": 0.6, "error": 0.1, "n": 5}
            share |= {"accuracy_known_pairs": 0.7, "accuracy_held_out_pairs": None}
            write_json(root / paths.accuracy(task["kind"], task["key"]), share)
    return settings


def make_rows(cell: Cell, layer: str, p: float) -> list[dict[str, Any]]:
    """Make the result rows of a cell's layer: deciding tests with p-value p, and diagnoses that decide nothing."""
    fields = {"model": "", "method": cell.spec["method"], "key": cell.key, "seed": cell.spec["seed"]}
    if layer != "one_token":
        deciding = make_row(layer.replace("_", "-"), f"test of {layer}", 100, p_value=p, effect=0.3, **fields)
        return [deciding, make_row(layer.replace("_", "-"), "diagnosis", 100, p_value=0.9, decides=False, **fields)]
    tests = [(test, f"mar {c}") for test in ("energy", "mean shift", "spread ratio") for c in range(2)]
    figures = {test: {"p_value": p if test == "energy" else None, "decides": test == "energy"} for test, _ in tests}
    return [make_row("teacher-forced", t, 50, effect=0.2, **figures[t], **fields | {"model": m}) for t, m in tests]


def exact(p: float) -> list[dict[str, Any]]:
    """Make rows of the exact layer on two models; rejected, and again on a second seed, if p is below .05."""
    rows = []
    for model, worst in (("random 3x5", 0.012), ("disjoint 3x4", 0.015)):
        low, tv, high = (0.18, 0.2, 0.22) if p < 0.05 else (0.0, 0.0, worst)
        bound = {"effect": high, "decides": False, "minimum_detectable_effect": 0.008, "alpha": 0.05}
        bound |= {"verdict": f"TV <= {high:.4f}", "tv": tv, "tv_low": low, "tv_high": high}
        for repeat in range(2 if p < 0.05 else 1):
            fields = {"model": model, "seed": 11 + repeat, "repeat": repeat, "tokens": int(model[-1])}
            fields |= {"accepted_drafts": 99}
            rows.append(make_row("exact", "all four", 20_000, p_value=p, p_holm=p, effect=tv, **fields))
            rows.append(make_row("exact", "TV certificate", 20_000, **bound, **fields))
    return rows


def long(p: float) -> list[dict[str, Any]]:
    """Make a method's rows of the long layer on one model; rejected, and again on a second seed, if p is below .05."""
    fields = {"model": "chain 8x64", "tokens": 64, "accepted_drafts": 99, "effect": 0.3, "p_value": p, "p_holm": p}
    fields |= {"minimum_detectable_effect": 0.01}
    return [make_row("long", "distances", 60_000, seed=11 + k, repeat=k, **fields) for k in range(2 if p < 0.05 else 1)]


def make_ratios() -> dict[str, dict[str, float]]:
    values = {"single_path": -50.0, "two_paths": -1.0, "distance": 0.8, "acceptance": 0.1}
    return {name: {"mean": value, "median": value, "log_mean": value, "n": 100} for name, value in values.items()}


def write_cell(root: Path, cell: Cell, n: int, figures: dict, records: dict, arrays: dict) -> None:
    """Write spec.json, metrics.json, records.parquet (`records`) and features.npz (`arrays`) of a cell of n rows; of
    four rows or fewer some figures are missing, with the reason."""
    folder, ids = root / paths.folder(cell), [str(i) for i in range(n)]
    reason = "too few images: 4 or more are needed"
    write_json(folder / "spec.json", cell.spec)
    if n < 4:
        figures |= {f"{name}_why": reason for name in ("fid", "kid", "precision", "recall")}
    if n == 1:
        figures = {name: value for name, value in figures.items() if not name.endswith("_se")}
    figures = {name: value for name, value in figures.items() if f"{name.removesuffix('_se')}_why" not in figures}
    write_json(folder / "metrics.json", {"n": n, **figures})
    fields = {"model": cell.spec["model"], "method": cell.spec["method"], "key": cell.key, "seed": cell.spec["seed"]}
    pd.DataFrame({"id": ids, **fields, **records}).to_parquet(folder / "records.parquet", index=False)
    write_arrays(folder / "features.npz", ids=np.array(ids), **arrays)


def make_speed(cell: Cell) -> dict[str, Any]:
    """Make the columns of a cell's speed: of two methods it was measured, of the others it is predicted."""
    speed = SPEED.get(cell.spec["method"], 1.0)
    how = "timed" if cell.spec["method"] in ("sjd", "assd", "cspd") else "predicted"
    columns = {"speedup": speed, "speedup_predicted": 1.2 * speed, "speedup_how": how, "seconds_alone": 2.0}
    columns |= {"speedup_single": 0.8 * speed, "speedup_single_predicted": 0.7 * speed, "speedup_single_how": how}
    if how == "timed":
        columns |= {"speedup_low": 0.95 * speed, "speedup_high": 1.05 * speed}
        columns |= {"speedup_single_low": 0.75 * speed, "speedup_single_high": 0.85 * speed}
    if cell.kind == "discrete":
        columns |= {"pass_cost": 2.0, "step_cost": 1.1}
    if cell.role == "reference" and cell.kind == "discrete":
        columns |= {"speedup_compiled": 1.5, "speedup_compiled_low": 1.4, "speedup_compiled_high": 1.6}
    return columns


def write_tokens(
    path: Path, ids: list[str], step: np.ndarray, tokens: np.ndarray | None = None, **columns: Any
) -> None:
    """Write a shard of rows with these steps and tokens (zeros if None), a made-up clock and `columns`."""
    n, provenance = len(ids), {"device": "cpu", "dtype": "float32", "versions": {"torch": "2"}, "threads": 1}
    provenance["parameters"] = {"target": 3_200_000, "draft": 400_000}
    columns = {**make_shard_columns(n, step.shape[1]), "ids": np.array(ids), "step": step, **columns}
    write_shard(path, columns if tokens is None else columns | {"tokens": tokens}, provenance)


def write_image(root: Path, settings: Config, cell: Cell, rng: np.random.Generator) -> None:
    """Write all files of a cell of images, whose speed and quality depend on its method."""
    n = settings.image.prompts.limit
    speed = SPEED.get(cell.spec["method"], 1.0)
    shards = paths.pieces(settings, cell, "shards")
    jump = rng.random((n, TOKENS)) < 1 / speed
    jump[:, 0] = True
    step = jump.cumsum(1).astype(np.int16)
    pixels = np.stack([scenes.draw_ground_truth(scenes.draw_example(i)[0], i) for i in range(n)])
    pieces = np.split(np.arange(n), len(shards))
    for piece, file, images in zip(pieces, shards, paths.pieces(settings, cell, "images"), strict=True):
        ids = [str(i) for i in piece]
        drawn = np.full_like(step[piece], int(cell.key, 16) % 1000)  # cells have different tokens
        write_tokens(root / file, ids, step[piece], drawn, captions=np.array(PROMPTS)[piece], nfe=step[piece].max(1))
        write_arrays(root / images, ids=np.array(ids), pixels=pixels[piece])
    nfe = step.max(1)
    lossy = cell.spec["method"] == "gsd"
    drafts = cell.spec["method"] == "mtj_draft"
    ratio = TOKENS / nfe
    cosine = 0.7 + 0.05 * rng.standard_normal(n)
    figures = {
        "nfe": nfe.mean(), "nfe_se": nfe.std() / n**0.5, "step_compression": ratio.mean(), "tokens": 256.0,
        "step_compression_low": ratio.mean() - 0.05, "step_compression_high": ratio.mean() + 0.05,
        "nodes_per_pass": 15.1, "nodes_per_pass_se": 0.02, "nodes_per_token": 15.1 / speed, "nodes_per_token_se": 0.1,
        "ms_per_forward": 62.5, "ms_per_forward_q1": 60.0, "ms_per_forward_median": 62.1, "ms_per_forward_q3": 90.0,
        "seconds_per_image": 0.5, "device": "cpu", "dtype": "float32", "batch": 12, "machine": "a processor, 2 cores",
        "calls": nfe.mean() + 6 * nfe.mean() * drafts, "draft_calls": 6 * nfe.mean() * drafts, "draft_nodes": 8.0,
        "draft_share": 0.125 if drafts else None,
        "fid": 12.0 + 3 * lossy, "fid_se": 0.4, "kid": 0.001, "kid_se": 0.0011, "clip_score": cosine.mean(),
        "clip_score_se": 0.004, "precision": 0.66, "precision_se": 0.03, "recall": None if lossy else 0.61,
        "recall_se": None if lossy else 0.03, "perplexity": 41.2, "perplexity_se": 0.8, "excluded": 0.012 * lossy,
    }  # fmt: skip
    arrays = {"captions": np.array(PROMPTS[:n]), "cosine": cosine}
    write_cell(root, cell, n, figures, {"nfe": nfe, "caption": PROMPTS[:n]}, arrays)
    write_arrays(root / paths.probs(cell), ids=np.arange(n), top1=rng.random((n, TOKENS)))


def write_texts(root: Path, settings: Config, cell: Cell, rng: np.random.Generator) -> None:
    """Write all files of a cell of texts."""
    task = cell.spec["task_kind"]
    n = next(t["settings"]["rows"] for t in list_text_tasks(settings) if t["key"] == cell.spec["task"])
    nfe = np.full(n, 20.0) - cell.spec["options"].get("k", 0)
    drawn = {"perplexity": 7 + rng.random(n), "entropy": 4 + rng.random(n), "logp": -40 + rng.random(n)}
    figures = {name: float(values.mean()) for name, values in drawn.items()}
    figures |= {f"{name}_se": float(values.std() / n**0.5) for name, values in drawn.items()}
    figures |= {"nfe": nfe.mean(), "nfe_se": 0.0, "aux": 0.0, "nfe_per_token": nfe.mean() / 20, "tokens_per_loop": 1.5}
    figures |= {"accepted_drafts": 9 if cell.spec["method"].startswith("assd") else None}
    figures |= {f"rouge{k}": 0.2 for k in ("1", "2", "L")} if task == "stories" else {}
    figures |= {"passed_why": "run_generated_code is off"} if task == "code" else {}
    columns = {"nfe": nfe, "passes": nfe, "batch": n, "at_once": n, **drawn}
    write_cell(root, cell, n, figures, columns | {"text": [f"once upon a {cell.key} {i}" for i in range(n)]}, {})
    shard = root / paths.pieces(settings, cell, "shards")[0]
    write_tokens(shard, [str(i) for i in range(n)], np.ones((n, 8), np.int16))


def write_vectors(root: Path, settings: Config, cell: Cell, rng: np.random.Generator) -> None:
    """Write all files of a cell of vectors; of `cspd` the last 40 places are drafted."""
    n, drafted = cell.spec["images"], 40 if cell.spec["method"] == "cspd" else 0
    shares = np.where(np.arange(PLACES) < PLACES - drafted, np.nan, 0.3)
    figures = {"right": 0.5, "right_se": 0.1, "is": 3.0, "fid": 20.0, "fid_se": 1.0, "steps": 64.0, "steps_se": 0.0}
    figures |= {"accepted_drafts": drafted or None}
    figures |= {"drafted": drafted, "target_conditions": 64.0 + drafted, "head_share": 0.3, "real_accuracy": 0.95}
    drafting = {"acceptance": 0.3 - cell.spec["options"].get("gamma", 0) / 100, "distance": 1.2, "distance_se": 0.1}
    drafting |= {"draft_conditions": 40.0, "tries": 2.0, "gave_up": 0.0, "test_share": 0.01}
    drafting |= {"two_paths_ratio": float(np.exp(-1.0))}
    figures |= drafting if drafted else {"acceptance": None}
    write_cell(root, cell, n, figures, {"passes": np.full(n, 64.0)}, {"by_place": shares, "by_cell": shares})
    shard = root / paths.pieces(settings, cell, "shards")[0]
    write_tokens(shard, [str(i) for i in range(n)], np.ones((n, PLACES), np.int16))
    pixels = rng.integers(0, 255, (n, 16, 16, 3), dtype=np.uint8)
    write_arrays(root / paths.pieces(settings, cell, "images")[0], ids=np.arange(n), pixels=pixels)


def write_papers(file: Path) -> Path:
    fields = {"kind": "discrete", "paper": "SJD", "table": "Table 1", "model": "Big"}
    fields |= {"conditions": '{"device": "A100"}'}
    random = '{"init": "random"}'
    lines = (("ar", "{}", "fid", 28.0), ("sjd", random, "step_compression", 1.63), ("sjd", random, "fid", 29.0))
    rows = [fields | {"method": m, "options": o, "metric": k, "value": v} for m, o, k, v in lines]
    pd.DataFrame(rows).to_csv(file, index=False)
    return file
