"""The account of the papers' printed numbers: which experiment file makes each, or why none does.

Nothing is decoded. A file makes a number if it names the number's table, plans a cell of that network, method, options
and conditions, and declares what the metric needs there: a network that judges, images to compare with, tests."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from parity.experiment import cells, config_overlay, pins, study, weights
from parity.experiment.checks import make_config
from parity.experiment.options import KINDS
from parity.experiment.papers import PAPERS, Experiment, list_experiments
from parity.experiment.schema import ASKED, Config
from parity.report.blocks import list_records
from parity.report.collect import COMPARED, RELATIVE, list_cell_columns, list_sizes, list_studies
from parity.report.published import PaperRow, is_match, list_answers, read_published
from parity.report.settings import parse_settings

NUMBER = ("paper", "table", "model", "method", "options", "conditions", "metric", "value")  # tell a printed number
COLUMNS = [*NUMBER, "experiment", "reason"]
JUDGES = {  # by metric of images, the network that a published model's are judged by; "manifold": the protocol's
    "fid": "inception", "kid": "inception", "is": "inception", "cmmd": "clip_vision", "precision": "manifold",
    "recall": "manifold", "clip_score": "clip", "hps": "hps", "pickscore": "pickscore",
}  # fmt: skip
ALONE = ("is", "clip_score", "hps", "pickscore")  # those of JUDGES that compare with no images
PROMPTS = {"MS-COCO 2017 val": "val2017", "Parti-prompts": "Parti", "Parti-prompt": "Parti"}  # part of the file's name
PATHS = ("single_path_ratio", "two_paths_ratio")  # metrics that the one-token tests record
BASELINE = "a baseline of the paper that is not run"
REASONS = {  # printed numbers that no cell is to make, by metric or network: why
    **dict.fromkeys(("SEDD-S", "DiffuGPT-S", "DiffuLLaMA 7B"), BASELINE),
    "trees_above_similarity": "in the figures of what methods rest on, of which no table is made",
    "neighbour_feature_similarity": "in the figures of what methods rest on, of which no table is made",
    "accepted_length_kept": "a ratio of the acceptance lengths of two cells, which the table has",
}
NO_CELL = "no cell of this method and these options"
NO_NETWORK = "no cell on this network and these prompts"


class Planned(NamedTuple):
    """An experiment file as it would run, whether its data are here or not."""

    experiment: Experiment
    raw: Mapping[str, Any]  # as the file says, with its protocol's networks, without commits and digests
    config: Config
    rows: list[dict[str, Any]]  # a summary row for each cell, and each task that asks a text model; without figures
    sizes: dict[str, dict[str, int]]  # by model those that bound options


def plan_experiment(experiment: Experiment, root: Path) -> Planned:
    """Plan an experiment file. root: the folder that the file's own paths begin from."""
    raw = config_overlay.add_networks(config_overlay.read_experiment(experiment.file))

    def find(name: str) -> str:
        return str(root / name)

    here, _ = config_overlay.replace_absent_data(config_overlay.resolve_paths(copy.deepcopy(raw), find))
    config = make_config(config_overlay.resolve_paths(pins.fill_pins(here, lambda name: pins.NONE), find))
    text_tasks = cells.list_text_tasks(config)
    tasks = {task["key"]: task for task in text_tasks}
    planned_cells = [cell for cell in cells.cells(config, []) if cell.role in ("reference", "method")]
    rows = [list_cell_columns(cell, tasks.get(cell.spec.get("task", ""))) for cell in planned_cells]
    asked = [
        {"task_kind": task["kind"], "model": task["model"], "accuracy": None}
        for task in text_tasks
        if task["kind"] in ASKED
    ]
    return Planned(experiment, raw, config, [*rows, *list_answers(asked)], list_sizes(config, cells.kinds(config)))


@cache
def read_networks(file: Path) -> dict[str, list[str]]:
    """Read, by the name of a network in printed tables, the words that a model's entry must hold to be it."""
    networks: dict[str, list[str]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return networks


def is_network(
    paper: PaperRow, planned: Planned, row: Mapping[str, Any], networks: Mapping[str, Sequence[str]]
) -> bool:
    """Return whether a summary row is of the network and prompts of a printed number; one without a model stands for
    all. Embedded models stand for any network."""
    if not planned.experiment.is_published:
        return True
    model, conditions = row.get("model"), parse_settings(paper["conditions"])
    words = [*networks.get(paper["model"], []), *(f"-{conditions[n]}" for n in ("resolution",) if n in conditions)]
    models = planned.raw["models"]
    entries = [describe_model(planned, name) for name in ([model] if model else models)]
    prompts = str((planned.raw.get("image") or {}).get("prompts", {}).get("file", ""))
    is_asked = PROMPTS.get(str(conditions.get("prompts")), "") in prompts
    return is_asked and any(all(word in entry for word in words) for entry in entries)


def has_batch(paper: PaperRow, planned: Planned, row: Mapping[str, Any]) -> bool:
    """Return whether a planned row has the batch that a printed number states; embedded models stand for any."""
    batch = parse_settings(paper["conditions"]).get("batch")
    return not planned.experiment.is_published or batch is None or row.get("batch") == batch


def describe_model(planned: Planned, name: str) -> str:
    """Describe a model of an experiment by its entry and its sizes, a line each: "sizes.grid: 16"."""
    spec = planned.config.models[name]
    sizes = weights.read_sizes(spec) if weights.find_kind(spec.family) != "anysubset" else {}
    return "".join(list_lines({**planned.raw["models"][name], "sizes": sizes}))


def list_lines(entry: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in entry.items():
        if isinstance(value, Mapping):
            yield from list_lines(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}: {value}\n"


def explain_missing(planned: Planned, row: Mapping[str, Any], metric: str) -> str:
    """Explain why a planned row will not have a metric; "" if it will."""
    kind, config, task = row["kind"], planned.config, row.get("task")
    tested = [f"p_{name}_welch" for name in COMPARED.get(kind, ())]
    if metric not in {*study.list_measures(kind), *RELATIVE, *tested, *PATHS, "accuracy"}:
        return f"no metric {metric}"
    if metric == "speedup" and config.timing.methods != "all":
        timed = row["role"] == "reference" or row["method"] in config.timing.methods
        return "" if timed else f"{row['method']} is not timed"
    if metric in PATHS:
        return "" if config.continuous and config.continuous.forced else "no test of one token"
    if metric in tested:
        return "it is compared with itself" if row["role"] == "reference" else ""
    if metric.startswith("rouge"):
        return "" if task == "stories" else "no original to compare with"
    if metric == "passed":
        return "" if config.text and config.text.run_generated_code else "run_generated_code is off"
    if metric not in JUDGES or not planned.experiment.is_published or kind == "anysubset":
        return ""
    network = JUDGES[metric]
    if network == "manifold":
        network = weights.read_protocols()[config.protocol].get("manifold", "inception")
    if network not in config.networks.list_named():
        return f"no network {network}"
    return "" if metric in ALONE or planned.raw[KINDS[kind]].get("reference") else "no reference"


def list_candidates(paper: PaperRow, key: str, experiments: Sequence[Planned]) -> list[Planned]:
    """List the experiments that are to make a printed number: those that name its table and run the paper's networks,
    or else embedded ones; without a table all of its paper; of no paper of PAPERS those with a figure of it."""
    if key not in [name for name, _ in PAPERS.values()]:
        figures = [(p, f.paper) for p in experiments for kind in KINDS for f in list_studies(p.config, kind)]
        return list({id(p): p for p, source in figures if source.partition(",")[0] == paper["paper"]}.values())
    own = [p for p in experiments if p.experiment.paper == key]
    table = str(paper["table"]).replace("Fig. ", "Figure ")
    naming = [p for p in own if table in p.experiment.references]
    return [p for p in naming if p.experiment.is_published] or naming or own


def find_maker(
    paper: PaperRow, key: str, experiments: Sequence[Planned], networks: Mapping[str, Sequence[str]]
) -> tuple[str, str]:
    """Find the experiment that makes a printed number: its name and "", or the likeliest one's and why it does not."""
    where, reason = "", "no experiment names the table"
    for name in (paper["model"], paper["metric"]):
        if name in REASONS:
            return where, REASONS[name]
    for planned in list_candidates(paper, key, experiments):
        matching = [row for row in planned.rows if is_match(paper, row, planned.sizes)]
        ours = [r for r in matching if is_network(paper, planned, r, networks) and has_batch(paper, planned, r)]
        reasons = [explain_missing(planned, row, paper["metric"]) for row in ours]
        if "" in reasons:
            return planned.experiment.file.stem, ""
        if not where or (reasons and reason in (NO_CELL, NO_NETWORK)):
            where = planned.experiment.file.stem
            reason = reasons[0] if reasons else NO_NETWORK if matching else NO_CELL
    return where, reason


def plan_all(folder: Path, paper: str = "") -> list[Planned]:
    return [plan_experiment(experiment, folder.parents[1]) for experiment in list_experiments(folder, paper)]


def make_account(files: Iterable[Path], folder: Path) -> pd.DataFrame:
    """Make the account of all printed numbers in CSV files, by COLUMNS, from the experiment files in a folder."""
    experiments = plan_all(folder)
    lines: list[dict[str, Any]] = []
    for file in files:
        networks = read_networks(file.with_name("networks.yaml"))
        for paper in list_records(read_published([file])):
            where, reason = find_maker(paper, file.stem, experiments, networks)
            lines.append({**paper, "experiment": where, "reason": reason})
    return pd.DataFrame(lines, columns=COLUMNS)
