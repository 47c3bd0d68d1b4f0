"""Bring an experiment's files together: the summary row of every cell, equality rows and verdicts, records, published
figures. Which files belong to it follows from its configuration (`parity.experiment.paths`), not from a search."""

import hashlib
import importlib.metadata
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from parity.base import machine
from parity.base.command import provenance
from parity.base.files import dump_canonical, read_arrays, read_json
from parity.decode.shard_io import read_columns, read_provenance
from parity.experiment import cells, layers, paths, weights
from parity.experiment.cells import Cell
from parity.experiment.options import KINDS, claimant, declaration, find_plain_method, is_coupled
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import ASKED, Config, EqualitySpec, FigureSpec
from parity.experiment.study import list_measures, list_speeds, metrics
from parity.metrics.continuous_cost import LARGEST
from parity.metrics.estimates import (
    Estimate,
    columns_of,
    compare,
    estimate_of,
    mean_and_error,
    prompt_groups,
    ratio_and_error,
)
from parity.metrics.tables import join_tables, read_table
from parity.report import published
from parity.report.blocks import is_missing
from parity.report.figures import Extra, read_extra
from parity.report.order import rank_row
from parity.report.settings import make_labels, name_variant, parse_settings
from parity.report.verdicts import Tested, add_run, explain_untested, judge_tests

JUDGED = (
    "value", "verdict", "verdict_kind", "pill", "scope", "mismatch", "tv_bound", "tv", "tv_low", "tv_high",
    "minimum_detectable_effect", "note", "reach", "tested_options", "tested_models", "own_options",
)  # fmt: skip
TESTS = (
    "kind", "model", "method", "key", "layer", "test", "n", "statistic", "p_value", "p_holm", "effect", "verdict",
    "decides", "repeat",
)  # fmt: skip
SHOWN = ("captions", "cosine", "by_place", "by_cell")  # arrays of a cell that pages show by row
OF_SETS = ("fid", "kid", "cmmd", "is", "precision", "recall")  # figures of a set of images, which runs repeat
COMPARED = {"anysubset": ("perplexity", "entropy", "logp")}  # t-tests compare the means of these figures
# These figures compare a cell with its reference, so they are made here and not by a metric.
RELATIVE = {"nfe_ratio": "passes, of plain decoding", "perplexity_ratio": "perplexity, of plain decoding"}


@dataclass
class Files:
    """The files of an experiment, read when they are asked for."""

    settings: Config
    kinds: Sequence[str]  # kinds of model
    root: Path  # the folder that holds results/
    local: Path  # the folder of files that no job makes, such as prompts and gpu.json

    @cached_property
    def cells(self) -> list[Cell]:
        """Every cell of these kinds, repetitions included."""
        image = self.settings.image
        prompts = read_prompts(image.prompts, self.local) if image is not None else []
        return [c for c in cells.cells(self.settings, prompts) if c.kind in self.kinds]

    @cached_property
    def tasks(self) -> dict[str, dict[str, Any]]:
        return {t["key"]: t for t in cells.list_text_tasks(self.settings)} if "anysubset" in self.kinds else {}

    def read_json(self, path: str) -> Any:
        return read_json(self.root / path)

    def read_decoded(self, cell: Cell, *names: str) -> dict[str, np.ndarray]:
        """Read these columns of all shards of a cell; one that they lack is left out."""
        return read_columns([self.root / p for p in paths.pieces(self.settings, cell, "shards")], names)

    def read_provenance(self, cell: Cell) -> dict[str, Any]:
        return read_provenance(self.root / paths.pieces(self.settings, cell, "shards")[0])

    def count_tokens(self, cell: Cell) -> int:
        """Count the tokens of each image or text that a cell decodes."""
        first = self.root / paths.pieces(self.settings, cell, "shards")[0]
        return read_columns([first], ("tokens",))["tokens"].shape[1]

    def read_pixels(self, cell: Cell, first: int) -> np.ndarray:
        """Read the `first` of a cell's images, uint8 [n, H, W, 3], from as few files as hold these."""
        read: list[np.ndarray] = []
        for piece in paths.pieces(self.settings, cell, "images"):
            if missing := first - sum(map(len, read)):
                read.append(read_arrays(self.root / piece)["pixels"][:missing])
        return np.concatenate(read)  # a copy, so that the other images of a file are not kept

    def read_features(self, cell: Cell) -> dict[str, np.ndarray]:
        """Read those arrays of a cell's features.npz (`parity.metrics`) that are SHOWN, a row an image or text."""
        return read_arrays(self.root / paths.folder(cell) / "features.npz", SHOWN)

    def read_top1(self, cell: Cell) -> np.ndarray:
        """Read the largest probability [n, L] of the target's distribution of each token of a cell."""
        return read_arrays(self.root / paths.probs(cell), ("top1",))["top1"]

    def read_records(self, cell: Cell) -> pd.DataFrame:
        """Read a row per image or text of a cell, sorted by id, without columns that have a list a row."""
        return read_table(self.root / paths.folder(cell) / "records.parquet").sort_values("id", kind="stable")

    def join_records(self, path: Path) -> None:
        """Write the records of all cells but repetitions to one file."""
        kept = [c for kind in self.kinds for c in self.cells if c.kind == kind and not c.is_repetition]
        names = [{"kind": c.kind, "model": c.spec["model"], "method": c.spec["method"], "key": c.key} for c in kept]
        files = [self.root / paths.folder(c) / "records.parquet" for c in kept]
        join_tables(path, list(zip(files, names, strict=True)))

    def average_runs(self, cell: Cell, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Average OF_SETS over the runs of a cell of vectors, whose first run's metrics are given, as summary columns;
        {} for a single run or without figures."""
        runs = cells.list_runs(self.settings, cell)
        values = [metrics, *(self.read_json(f"{paths.folder(run)}/metrics.json") for run in runs)]
        columns: dict[str, Any] = {}
        for name in OF_SETS if runs else ():
            figures = [row.get(name) for row in values]
            if not any(map(is_missing, figures)):
                sd = float(np.std(figures, ddof=1))
                error = sd / math.sqrt(len(figures))
                columns |= {name: float(np.mean(figures)), f"{name}_se": error, f"{name}_runs_sd": sd}
        return columns | ({"runs": len(values)} if columns else {})

    def read_accuracy(self) -> list[dict[str, Any]]:
        """Read how often each text model's own answer is right, by task; models of equal weights share a file."""
        if "anysubset" not in self.kinds:
            return []
        questions = [t for t in cells.list_text_tasks(self.settings) if t["kind"] in ASKED]
        return [
            {**self.read_json(paths.accuracy(t["kind"], t["key"])), "task_kind": t["kind"], "model": t["model"]}
            for t in questions
        ]

    def read_speeds(self) -> dict[str, dict[str, Any]]:
        """Read the columns of each cell's speed by its key, with the machine's load meanwhile."""
        columns: dict[str, dict[str, Any]] = {}
        for group in cells.group_cells(self.cells):
            timed = self.read_json(paths.speed(self.settings, group))
            columns |= {key: {**found, "load": timed["load"]} for key, found in timed["cells"].items()}
        return columns

    def find_tests(self, kind: str) -> Iterator[Tested]:
        """Yield the tests of each cell of a kind: on models of known distribution, then by layer."""
        declared = {kind: layers.read_layers(kind)}
        kind_cells = [c for c in self.cells if c.kind == kind]
        repetitions = [c for c in kind_cells if c.role == "again"]
        for cell in (c for c in kind_cells if not c.is_repetition):
            small, long = cells.variant(self.settings, cell), cells.long_variant(self.settings, cell)
            tests = self.read_json(paths.tests(self.settings, small, long)) if small or long else {}
            if small is not None:
                yield Tested(cell, small, False, f"exact {cells.variant_key(self.settings, small)}", tests["exact"])
            if long is not None:
                yield Tested(cell, long, False, f"long {cells.long_key(self.settings, long)}", tests["long"], long=True)
            spec = {**cell.spec, "seed": None}
            for run in (cell, *(c for c in repetitions if {**c.spec, "seed": None} == spec)):
                for layer in layers.select_layers(self.settings, declared, run):
                    results = self.read_json(paths.layers(run))["layers"]
                    yield Tested(cell, None, run is not cell, f"{layer} {run.key}", results[layer])


@dataclass
class Gathered:
    settings: Config
    files: Files
    kinds: list[str]  # kinds of model that have cells
    summary: pd.DataFrame  # a row per cell, without repetitions and further runs
    equality: pd.DataFrame  # a row per test of a method
    verdicts: pd.DataFrame  # a verdict for each name under which tests are judged
    papers: pd.DataFrame  # every number that papers publish
    published: pd.DataFrame  # published numbers that match a cell, joined with our figures
    environment: dict[str, Any]
    ratios: dict[str, dict[str, Any]]  # by a cell's key the likelihood ratios that accept its drafts
    accuracy: list[dict[str, Any]]  # how often the text model itself is right, by task
    extras: list[Extra]

    def select_rows(self, kind: str) -> pd.DataFrame:
        """Select the summary of one kind, without its empty columns."""
        return self.summary[self.summary["kind"] == kind].dropna(axis=1, how="all").reset_index(drop=True)

    def map_cells(self, kind: str) -> dict[str, Cell]:
        by_key = {c.key: c for c in self.files.cells}
        rows = self.summary[self.summary["kind"] == kind]
        return {label: by_key[key] for label, key in zip(rows["label"], rows["key"], strict=True)}

    def find_baseline(self, kind: str) -> str:
        """Find the variant that is a kind's baseline in place of plain decoding, by name; "" without."""
        rows = self.select_rows(kind)
        return str(rows["baseline"].iloc[0]) if "baseline" in rows else ""


def list_studies(settings: Config, kind: str) -> list[FigureSpec]:
    """List the study figures that a configuration asks for, of a kind of model."""
    section = getattr(settings, KINDS[kind])
    return [] if section is None else section.study


def list_declared(kind: str) -> dict[str, tuple[str, str, str]]:
    """List the figures of a kind of model as declared: label, unit and direction by name."""
    return {name: words for own in (*metrics(kind).values(), list_speeds(kind)) for name, words in own.items()}


def label_measures(kind: str) -> dict[str, str]:
    """Map the figures of a kind of model to the labels of their axes."""
    return list_measures(kind) | RELATIVE


COLUMNS_VERSION = 2  # of summary.csv and records.parquet: a change of what a column means raises it


def list_cell_columns(cell: Cell, task: dict[str, Any] | None) -> dict[str, Any]:
    """List a cell's settings as summary columns, some as JSON (`report.settings`). task: kind and settings, of text."""
    kind, spec = cell.kind, cell.spec
    row = {
        "kind": kind, "model": spec["model"], "method": spec["method"], "options": dump_canonical(spec["options"]),
        "key": cell.key, "role": cell.role, "claim": cell.claim, "seed": spec["seed"],
        "columns_version": COLUMNS_VERSION, "claimant": claimant(kind, spec["method"], spec["options"]),
        "origin": declaration(kind, spec["method"]).ORIGIN,
    }  # fmt: skip
    if "sampling" in spec:
        row["sampling"] = dump_canonical(spec["sampling"])
    if task is not None:
        settings = {k: v for k, v in task["settings"].items() if v != ""}
        row |= {"task": task["kind"], "settings": dump_canonical(settings)}
    if "baseline" in spec:
        row["baseline"] = name_variant(kind, find_plain_method(kind), spec["baseline"], list(spec["baseline"]))
    return row | {name: spec[name] for name in ("cache", "batch") if name in spec}


def compare_with_reference(row: dict[str, Any], records: pd.DataFrame, base_records: pd.DataFrame) -> dict[str, Any]:
    """Compare a cell's summary row and records with its reference's, both sorted by id: ratios, t-tests (none of the
    reference with itself) and `gain`, how many times fewer passes (of vectors, fewer calls one after another)."""
    passes = "nfe" if "nfe" in records else "passes"  # passes of the row, or of its batch if rows are not counted
    count = "depth" if "depth" in records else passes
    gain = Estimate(*ratio_and_error(base_records[count].to_numpy(float), records[count].to_numpy(float)))
    result: dict[str, Any] = {"nfe_ratio": records[passes].sum(skipna=False) / base_records[passes].sum()}
    result |= columns_of({"gain": gain})
    tested = [name for name in COMPARED.get(row["kind"], ()) if name in records]
    if "perplexity" in tested:
        mean = float(base_records["perplexity"].mean())
        result |= {"perplexity_ratio": row["perplexity"] / mean, "perplexity_ratio_se": row["perplexity_se"] / mean}
    for name in () if row["role"] == "reference" else tested:
        test = compare(records[name].to_numpy(float), base_records[name].to_numpy(float))
        p = {f"p_{name}_{how}": test[f"p_{how}"] for how in ("welch", "paired")}
        result |= {f"{name}_difference": test["difference"], **p}
    return result


def complete_speeds(columns: dict[str, Any], batch: int | None) -> dict[str, Any]:
    """Complete the columns of a cell's speed: at batch 1 the speed of its batch is that of a row alone."""
    if batch != 1:
        return columns
    single = "speedup_single"
    return {name.replace(single, "speedup", 1): v for name, v in columns.items() if name.startswith(single)} | columns


def summarize(files: Files, kind: str, ratios: dict[str, Any]) -> list[dict[str, Any]]:
    """Compute the summary row of each cell of a kind but repetitions. ratios: likelihood ratios by key."""
    kind_cells = [c for c in files.cells if c.kind == kind and not c.is_repetition]
    records = {c.key: files.read_records(c) for c in kind_cells}
    speeds = files.read_speeds()
    rows = []
    for cell in kind_cells:
        base = cells.find_reference(cell, kind_cells)
        row = list_cell_columns(cell, files.tasks.get(cell.spec.get("task", ""))) | {"reference": base.key}
        metrics = files.read_json(f"{paths.folder(cell)}/metrics.json")
        row |= {name: value for name, value in metrics.items() if name not in row}  # no metric replaces a setting
        row |= files.average_runs(cell, metrics) | complete_speeds(speeds.get(cell.key, {}), row.get("batch"))
        if row.get("tokens") and row.get("seconds_alone"):
            row["tokens_per_second_single"] = row["tokens"] / row["seconds_alone"]
        if (files.root / paths.benchmarks(cell)).is_file():
            row |= files.read_json(paths.benchmarks(cell))
        tokens = np.ascontiguousarray(files.read_decoded(cell, "tokens")["tokens"])
        row["drawn"] = hashlib.sha256(tokens.tobytes()).hexdigest()[:8]  # equal if two cells drew the same
        row |= compare_with_reference(row, records[cell.key], records[base.key])
        if single := ratios.get(cell.key, {}).get("single_path"):
            row["single_path_ratio"] = math.exp(min(single["log_mean"], LARGEST))
        rows.append(row)
    by_key = {row["key"]: row for row in rows}
    for row, label in zip(rows, make_labels(rows), strict=True):
        base_row = by_key[row["reference"]]
        row |= {"label": label, "too_few": " ".join(list_too_few(base_row, files.settings.equality))}
        if row is not base_row:
            row |= columns_of(compute_changes(row, base_row, records[row["key"]], records[base_row["key"]]))
    reach = compute_critical_z(rows, files.settings.equality.alpha)
    for row in rows:
        row["moved"] = " ".join(list_moved(row, reach))
    return rows


NEEDED = ("kind", "model", "task", "method", "options", "key", "role", "claim", "verdict", "verdict_kind", "label")


def describe_environment(files: Files) -> dict[str, Any]:
    """Describe what the numbers were obtained with: run, machine, decoding jobs, seeds, digests of checkpoints."""
    decoding = files.read_provenance(files.cells[0]) if files.cells else {}
    image = files.settings.image
    shown = (*files.kinds, "networks")
    manifests = {n: p for n, p in paths.manifests(files.settings).items() if n.partition("/")[0] in shown}
    return {
        "run": {
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "version": importlib.metadata.version("parity"),
            "commit": machine.describe_commit(Path(__file__).parent),
            "command": os.environ.get(machine.COMMAND) or "python -m parity.report ...",
        },
        "machine": machine.describe_machine(),
        "decoding": {k: v for k, v in decoding.items() if k not in ("spec", "code")},
        "report": provenance("cpu", image.dtype if image is not None else "float32", 1),
        "seeds": files.settings.seeds.model_dump(),
        "checkpoints": {name: files.read_json(path)["sha256"] for name, path in manifests.items()},
    }


def gather(
    settings: Config, papers: Sequence[Path], extra: Sequence[Path] = (), only: Sequence[str] = (), root: Path = Path(),
    local: Path | None = None,
) -> Gathered:  # fmt: skip
    """Gather everything that the page of an experiment is made of, for the kinds of model in `only` (all, if empty).
    extra: JSON files of figures made elsewhere; local: the folder of files that the configuration names, or `root`."""
    files = Files(settings, [kind for kind in cells.kinds(settings) if kind in (only or KINDS)], root, local or root)
    cell_by_key = {cell.key: cell for cell in files.cells}
    summary: list[dict[str, Any]] = []
    equality: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    ratios: dict[str, Any] = {}
    for kind in files.kinds:
        tested = list(files.find_tests(kind))
        ratios |= {t.cell.key: t.results["ratios"] for t in tested if t.results.get("ratios")}
        rows = summarize(files, kind, ratios)
        tokens = {cell.key: files.count_tokens(cell) for cell in files.cells if cell.kind == kind}
        labels = {row["key"]: row["label"] for row in rows}
        tests, judged, verdict_by_key = judge_tests(settings, tested, labels, tokens)
        for row in rows:
            verdict = verdict_by_key.get(row["key"]) or explain_untested(settings, cell_by_key[row["key"]])
            verdict = add_run(row, verdict)
            row |= {name: verdict.get(name) for name in JUDGED}
        summary += sorted(rows, key=rank_row)
        equality += [{"kind": kind, **row} for row in tests]
        verdicts += [{"kind": kind, **verdict} for verdict in judged]
    # an experiment that only asks its models has no cell, and so no row
    table = pd.DataFrame(summary, columns=None if summary else NEEDED)
    table = table.assign(**({"stand_in": True} if settings.stand_in else {}))
    paper_rows, accuracy = published.read_published(papers), files.read_accuracy()
    networks = find_paper_networks(weights.list_models(settings, "discrete")) if settings.image is not None else {}
    sizes, answers = list_sizes(settings, files.kinds), published.list_answers(accuracy)
    return Gathered(
        settings, files, [kind for kind in files.kinds if kind in set(table["kind"])], table,
        tabulate_tests(equality), pd.DataFrame(verdicts),
        paper_rows, published.join_published(paper_rows, table, sizes, answers, networks),
        describe_environment(files), ratios, accuracy, [read_extra(file) for file in extra],
    )  # fmt: skip


def tabulate_tests(tests: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(tests) if tests else pd.DataFrame(columns=TESTS)


def list_sizes(settings: Config, kinds: Sequence[str]) -> dict[str, dict[str, int]]:
    """List the sizes that bound options, by model of these kinds."""
    models = [named for kind in kinds for named in weights.list_models(settings, kind).items()]
    return {name: weights.list_option_sizes(model) for name, model in models}


def find_paper_networks(models: Mapping[str, Any]) -> dict[str, str]:
    """Map our models that are a paper's own network (published files of its sizes) to its name in the paper."""
    return {
        name: network for name, m in models.items() if m.source == "hub"
        for network, sizes in weights.read_family(m.family).get("papers", {}).items() if sizes == m.network
    }  # fmt: skip


# --- rows that drew the same


def group_same(rows: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """Group rows that drew the same tokens of the same model, in the order of the first of each; others are alone."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        is_unknown = is_missing(row.get("drawn"))
        groups.setdefault(row["key"] if is_unknown else (row["model"], row["drawn"]), []).append(row)
    return list(groups.values())


def follows_plain(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether rows that drew the same drew plain decoding's: one is coupled to its noise and not lossy."""
    coupled = [r for r in rows if is_coupled(r["kind"], r["method"], parse_settings(r["options"]))]
    return bool(coupled) and all(r.get("verdict_kind") != "lossy" for r in coupled)


def name_group(rows: Sequence[Mapping[str, Any]], name: str = "name") -> str:
    """Join the names of rows, or their labels where they have none: "mtj, mtj_draft and eagle"."""
    names = [str(row.get(name, row["label"])) for row in rows]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


# --- changes of quality that matter


# Effects of interest: EFFECTS are in the figure's own unit (entropy in bits), MARGINS name a margin of `equality` in
# the configuration, SHARES are shares of the figure itself.
EFFECTS = {"fid": 5.0, "kid": 0.005, "precision": 0.1, "recall": 0.1, "right": 0.1, "passed": 0.1, "entropy": 0.1}
EFFECTS |= {"rouge1": 0.05, "rouge2": 0.05, "rougeL": 0.05}
MARGINS = {"clip_score": "margin_clip", "logp_mean": "margin_logp"}
SHARES = {"perplexity": 0.1, "is": 0.1}
QUALITY = (*EFFECTS, *MARGINS, *SHARES)
RECORDED = {"clip_score": "clip"}  # this figure's column in the records has another name


def find_effect_of_interest(name: str, value: float, margins: EqualitySpec) -> float | None:
    """Find how large a change of the figure `name` from `value` matters; None for figures that are not of quality."""
    if name in MARGINS:
        return float(getattr(margins, MARGINS[name]))
    return SHARES[name] * abs(value) if name in SHARES else EFFECTS.get(name)


def is_too_few(row: Mapping[str, Any], name: str, margins: EqualitySpec) -> bool:
    """Return whether half the interval of a figure of quality is as wide as an effect of interest, or n is 1."""
    figure = estimate_of(row, name)
    if figure.missing or isinstance(figure.value, str) or not math.isfinite(figure.value):
        return False
    effect = find_effect_of_interest(name, figure.value, margins)
    if effect is None:
        return False
    reach = figure.reach()
    return row.get("n") == 1 if reach is None else not sum(reach) / 2 < effect


def list_too_few(row: Mapping[str, Any], margins: EqualitySpec) -> list[str]:
    return [name for name in QUALITY if is_too_few(row, name, margins)]


def compute_changes(
    row: Mapping[str, Any], base: Mapping[str, Any], records: pd.DataFrame, base_records: pd.DataFrame
) -> dict[str, Estimate]:
    """Compute `<figure>_change` of each figure of quality, the difference from the reference's: by prompt where the
    records of both, sorted by id, have the figure and the same ids, else from the errors of both."""
    result = {}
    for name in QUALITY:
        ours, theirs = estimate_of(row, name), estimate_of(base, name)
        column = RECORDED.get(name, name)
        if column in records and column in base_records and records["id"].tolist() == base_records["id"].tolist():
            difference = records[column].to_numpy(float) - base_records[column].to_numpy(float)
            gap = pd.Series(difference, records["id"]).dropna()
            if len(gap):
                change = mean_and_error(gap.to_numpy(), prompt_groups(gap.index.to_numpy()))
                result[f"{name}_change"] = Estimate(*change)
        elif not ours.missing and not theirs.missing and ours.error is not None and theirs.error is not None:
            result[f"{name}_change"] = Estimate(ours.value - theirs.value, math.hypot(ours.error, theirs.error))
    return result


def compute_critical_z(rows: Sequence[Mapping[str, Any]], alpha: float) -> float:
    """Compute how many standard errors a change of quality must exceed to count among all of `rows` (Bonferroni)."""
    methods = [row for row in rows if row["role"] == "method"]
    return float(stats.norm.isf(alpha / 2 / max(1, sum(len(list_changes(row)) for row in methods))))


def list_changes(row: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """List the change from the reference and its standard error, by figure of quality, where the error is known."""
    estimates = {name: estimate_of(row, f"{name}_change") for name in QUALITY}
    return {name: (change.value, change.error) for name, change in estimates.items() if change.error is not None}


def list_moved(row: Mapping[str, Any], reach: float) -> list[str]:
    return [name for name, (change, error) in list_changes(row).items() if abs(change) > reach * error]
