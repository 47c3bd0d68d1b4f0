"""Bring an experiment's files together: summary.csv, equality.csv, records.parquet, published.csv and report.html.

    python -m parity.gather --config '{"methods": ...}' --published workflow/published/sjd.csv --out results/default

Which files belong to the experiment follows from its configuration (`parity.layout`); nothing is found by looking around.
"""

import argparse
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from parity.base.command import one_line, pin_threads, provenance
from parity.base.files import Shard, canonical, publish, read_arrays, read_json, read_shards
from parity.equality.rows import Row
from parity.equality.verdict import verdicts
from parity.experiment import config
from parity.experiment import paths as layout
from parity.experiment.config import Config, claim
from parity.experiment.paths import Cell
from parity.report.figures import Acceptance
from parity.report.page import Report, write
from parity.report.sweeps import Extra
from parity.report.thumbnails import Column

FIRST = [
    "model",
    "method",
    "options",
    "key",
    "role",
    "claim",
    "n",
    "nfe",
    "step_compression",
    "seconds_per_image",
    "ms_per_forward",
]
FIRST += [
    "tokens_per_second",
    "nodes_per_pass",
    "nodes_per_token",
    "device",
    "dtype",
    "fid",
    "kid",
    "clip_score",
    "precision",
    "recall",
]
FIRST += ["perplexity", "verdict"]
TESTS = [
    "model",
    "method",
    "key",
    "layer",
    "test",
    "n",
    "statistic",
    "p_value",
    "p_holm",
    "effect",
    "minimum_detectable_effect",
    "verdict",
]
PUBLISHED = [
    "paper",
    "table",
    "model",
    "metric",
    "method",
    "options",
    "conditions",
    "value",
    "change",
    "ours",
    "our_change",
    "difference",
]
PICTURES = 256  # prompts that compete for a place in the picture grid


def summary_row(cell: Cell) -> dict[str, Any]:
    spec = cell["spec"]
    row = {
        "model": spec["model"],
        "method": spec["method"],
        "options": canonical(spec["options"]),
        "key": cell["key"],
        "role": cell["role"],
    }
    return (
        row
        | {
            "claim": claim(spec["method"], spec["options"]),
            "sampling": canonical(spec["sampling"]),
            "seed": spec["seed"],
        }
        | read_json(Path(layout.folder(cell), "metrics.json"))
    )


def shards(settings: Config, cell: Cell) -> Shard:
    return read_shards(Path(p) for p in layout.pieces(settings, cell, "shards"))


def record_rows(settings: Config, cell: Cell) -> pd.DataFrame:
    """A row per image of a cell."""
    shard, features = shards(settings, cell), read_arrays(Path(layout.folder(cell), "features.npz"))
    logp = np.where(np.isneginf(features["logp"]), np.nan, features["logp"])
    spec = cell["spec"]
    frame = pd.DataFrame(
        {
            "id": shard.ids,
            "caption": shard.captions,
            "model": spec["model"],
            "method": spec["method"],
            "key": cell["key"],
        }
    )
    frame = frame.assign(
        seed=spec["seed"], nfe=shard.nfe, nodes=shard.nodes, batch=shard.batch, batch_seconds=shard.seconds
    )
    frame = frame.assign(
        logp_mean=np.nanmean(logp, 1), kept=[k[k > 0].tolist() for k in shard.kept], step=shard.step.tolist()
    )
    return frame.assign(clip=features["cosine"]) if "cosine" in features else frame


def repeats(cell: Cell, cells: list[Cell]) -> list[Cell]:
    """The cells that a cell's repetition stands in for: those of its role "again", same but for the seed."""
    same = [{**c["spec"], "seed": None} == {**cell["spec"], "seed": None} for c in cells]
    return [c for c, s in zip(cells, same, strict=True) if s and c["role"] == "again" and cell["role"] != "again"]


def rows_of(settings: Config, cell: Cell, cells: list[Cell]) -> list[Row]:
    """Every equality row of a cell, those of its repetition included, under the cell's own key."""
    rows = [row for file in layout.equality(settings, cell, cells) for row in read_json(Path(file))["rows"]]
    for again in repeats(cell, cells):
        files = [layout.teacher_forced(again), layout.paired(again, cells)]
        rows += [
            row | {"repeat": 1, "seed": again["spec"]["seed"]}
            for file in files
            for row in read_json(Path(file))["rows"]
        ]
    return [
        row | {"model": row["model"] or cell["spec"]["model"], "key": cell["key"], "method": cell["spec"]["method"]}
        for row in rows
    ]


def cut(top_k: int, vocab: int) -> int:
    """How many tokens top-k leaves: 0, and more than there are, leave all."""
    return min(top_k, vocab) if top_k else vocab


def stated(paper: pd.Series, cell: pd.Series, vocab: int) -> bool:
    """Whether a cell is what a published number is of: its options, with the defaults (which are the papers') for what it leaves unsaid,
    and the sampling settings it states. A list is any of its values."""
    options, given = json.loads(cell["options"]), json.loads(cell["sampling"])
    for key, wanted in json.loads(paper["conditions"]).items():
        name = key.removeprefix("sampling.")
        have = given.get(name)
        if key == "sampling.top_k":
            have, wanted = cut(have, vocab), cut(wanted, vocab)
        if name != key and have != wanted:
            return False
    wanted = config.options(paper["method"], {}) | json.loads(paper["options"])
    return all(options.get(k) in (v if isinstance(v, list) else [v]) for k, v in wanted.items())


def ours(summary: pd.DataFrame, published: pd.DataFrame, vocab: dict[str, int]) -> pd.DataFrame:
    """The papers' figures with ours beside them, where a cell of the same method, options and stated sampling is in the experiment.

    change, our_change  from plain sampling: the paper's own in the same table, ours under the same settings
    difference          ours less theirs: of the figures where they are ratios, else of the changes
    vocab               size of each model's codebook
    """
    found = []
    table = ["paper", "table", "model", "conditions", "metric"]
    theirs = published[published["method"] == "ar"].drop_duplicates(table).set_index(table)["value"].to_dict()
    cells = summary[summary["role"].isin(["method", "reference"])]
    for _, paper in published[published["method"].isin(set(cells["method"]))].iterrows():
        for _, cell in cells[cells["method"] == paper["method"]].iterrows():
            if not stated(paper, cell, vocab[cell["model"]]):
                continue
            metric, baseline = paper["metric"], theirs.get(tuple(paper[table]))
            same = (
                (summary["role"] == "reference")
                & (summary["model"] == cell["model"])
                & (summary["sampling"] == cell["sampling"])
            )
            plain = summary[same].iloc[0]
            value = cell.get(metric)
            if metric == "latency_ratio":
                value = plain["seconds_per_image"] / cell["seconds_per_image"]
            change = our_change = difference = None
            if metric in ("step_compression", "latency_ratio"):
                difference = value - paper["value"]
            elif metric != "seconds_per_image" and cell["method"] != "ar" and value is not None:
                our_change = value - plain[metric]
                if baseline is not None:
                    change = paper["value"] - baseline
                    difference = our_change - change
            mine = {
                "ours": value,
                "our_change": our_change,
                "difference": difference,
                "our_options": cell["options"],
                "key": cell["key"],
            }
            found.append({**paper, "change": change, **mine})
    return pd.DataFrame(found)


def read_published(files: list[Path]) -> pd.DataFrame:
    """Every published number: paper, table, model, method, options and conditions (JSON), metric, value."""
    papers = pd.concat([pd.read_csv(f) for f in files], ignore_index=True)
    return papers.assign(conditions=papers["conditions"].fillna("{}") if "conditions" in papers else "{}")


def read_extra(file: Path) -> Extra:
    """A figure made elsewhere: JSON with the fields of `Extra`, its data as a list of rows."""
    given = read_json(file)
    return Extra(**{**given, "data": pd.DataFrame(given["data"])})


def picture_columns(settings: Config, cells: list[Cell]) -> tuple[list[Column], list[str]]:
    """The same prompts, cell by cell, each model's plain sampling first; the page picks the prompts that came out worst."""
    columns, captions = [], []
    several = len({c["spec"]["model"] for c in cells}) > 1
    for cell in cells:
        images, features = (
            [read_arrays(Path(p)) for p in layout.pieces(settings, cell, "images")],
            read_arrays(Path(layout.folder(cell), "features.npz")),
        )
        if "cosine" not in features:
            continue
        spec = cell["spec"]
        label = {"reference": "ar", "control": "ar, again"}.get(
            cell["role"]
        ) or f"{spec['method']} {canonical(spec['options'])}"
        label = f"{spec['model']}: {label}" if several else label
        pixels = np.concatenate([i["pixels"] for i in images])[:PICTURES]
        columns.append(Column(label, pixels, features["cosine"][:PICTURES], cell["role"] != "method", spec["model"]))
        captions = features["captions"].tolist()[:PICTURES]
    return columns, captions


def environment(settings: Config, made: dict[str, Any]) -> dict[str, Any]:
    """What the numbers were obtained with; `made` is a shard's provenance."""
    return {
        "generation": {k: v for k, v in made.items() if k not in ("spec", "code")},
        "report": provenance("cpu", settings.dtype, 1),
        "machine": {"cores": os.cpu_count()},
        "seeds": settings.seeds.model_dump(),
        "checkpoints": {
            model: read_json(Path(layout.manifest(settings, model)))["sha256"] for model in settings.models
        },
    }


def csv(frame: pd.DataFrame, path: Path, first: list[str]) -> None:
    ordered = [c for c in first if c in frame] + [c for c in frame if c not in first]
    publish(path, frame[ordered].to_csv(index=False).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=json.loads, required=True)
    parser.add_argument("--published", type=Path, nargs="*", default=[])
    parser.add_argument(
        "--extra", type=Path, nargs="*", default=[], help="figures made elsewhere: JSON, as report.studies.Extra"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    pin_threads(a.threads)
    settings = config.load(a.config)
    cells = config.cells(settings, config.read_prompts(settings.prompts))
    everything, cells = cells, [c for c in cells if c["role"] != "again"]
    summary = pd.DataFrame([summary_row(c) for c in cells])
    tables = {name: read_json(Path(file)) for name, file in layout.tables(settings).items()}
    rows = [row for c in cells for row in rows_of(settings, c, everything)]
    claims = {c["key"]: claim(c["spec"]["method"], c["spec"]["options"]) for c in cells}
    found = {v["key"]: v for v in verdicts(rows, claims, settings.equality.margin_tv, settings.equality.alpha)}
    for name in ("verdict", "mismatch", "tv_bound", "minimum_detectable_effect", "note"):
        summary[name] = [found[key][name] for key in summary["key"]]
    rows += [row for table in tables.values() for row in table["rows"]]
    equality = pd.DataFrame(rows)
    null = pd.DataFrame(
        [{"test": test, "p_value": p} for test, ps in tables["calibration"]["p_values"].items() for p in ps]
    )
    records = pd.concat([record_rows(settings, c) for c in cells], ignore_index=True)
    papers = read_published(a.published) if a.published else pd.DataFrame()
    vocab = {name: config.largest(model)["group"] for name, model in settings.models.items()}
    published = ours(summary, papers, vocab) if len(papers) else pd.DataFrame()
    csv(summary, a.out / "summary.csv", FIRST)
    csv(equality, a.out / "equality.csv", TESTS)
    csv(published, a.out / "published.csv", PUBLISHED)
    stream = io.BytesIO()
    records.to_parquet(stream, index=False)
    publish(a.out / "records.parquet", stream.getvalue())

    decoded = [(c["key"], shards(settings, c)) for c in cells]
    columns, captions = picture_columns(settings, cells)
    report = Report(
        experiment=settings.experiment,
        summary=summary,
        equality=equality,
        environment=environment(settings, decoded[0][1].provenance),
        config=yaml.safe_dump(
            settings.model_dump(mode="json", exclude_unset=True), sort_keys=False, allow_unicode=True
        ),
        records=records,
        acceptance={
            k: Acceptance(s.step, round(s.step.shape[1] ** 0.5)) for k, s in decoded
        },  # raster order on square grids
        pictures=columns,
        captions=captions,
        published=published,
        study=settings.study,
        papers=papers,
        extras=[read_extra(file) for file in a.extra],
        top1={c["key"]: read_arrays(Path(layout.laws(c)))["top1"] for c in cells},
        null=null,
    )
    write(report, a.out / "report.html")


if __name__ == "__main__":
    one_line(main)
