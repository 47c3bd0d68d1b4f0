"""The text page: verdicts, what each method cost and wrote, t-tests beside the tests of the law. One self-contained file and its tables."""

import argparse
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from parity.base.files import canonical, publish, read_json
from parity.equality import rows as R
from parity.equality.verdict import verdicts
from parity.experiment import config
from parity.experiment.config import Config, claim, text_cells, text_tasks
from parity.experiment.paths import text_exact, text_exact_key
from parity.metrics import statistics
from parity.report import format as words
from parity.report.environment import environment
from parity.report.page import Table, any_table

ROUGE = ("rouge1", "rouge2", "rougeL")
FIGURES = ("perplexity", "entropy", "nfe", "aux", "logp", *ROUGE, "passed")


def label(spec: dict[str, Any]) -> str:
    """A variant as the page names it."""
    given = " ".join(f"{k}={v}" for k, v in spec["options"].items())
    return " ".join(x for x in (spec["method"], given, "" if spec["cache"] else "uncached") if x)


def summary(settings: Config, records: pd.DataFrame) -> pd.DataFrame:
    """A row per cell: mean and standard error of every figure, and its comparison with sequential decoding of the same task.

    Cells of role "again" have none: they confirm or clear what a test rejects.
    """
    cells, tasks = text_cells(settings), {t["key"]: t for t in text_tasks(settings.text)} if settings.text else {}
    found = []
    for cell in [c for c in cells if c["role"] != "again"]:
        spec = cell["spec"]
        own = records[records["cell"] == cell["cell"]].sort_values("id")
        same = [
            c
            for c in cells
            if c["role"] == "reference" and c["spec"]["task"] == spec["task"] and c["spec"]["cache"] == spec["cache"]
        ]
        base = records[records["cell"] == same[0]["cell"]].sort_values("id")
        task = tasks[spec["task"]]
        row: dict[str, Any] = {
            "task": spec["kind"], "settings": canonical({k: v for k, v in task["settings"].items() if v != ""}), "variant": label(spec),
            "method": spec["method"], "options": canonical(spec["options"]), "cache": spec["cache"], "role": cell["role"], "key": cell["key"],
            "claim": claim(spec["method"], spec["options"]), "seed": spec["seed"], "n": len(own),
        }  # fmt: skip
        for name in FIGURES:
            if name in own and own[name].notna().all():
                row[name], row[f"{name}_se"] = statistics.mean_error(own[name].to_numpy(float))
        row["nfe_per_token"] = own["nfe"].sum() / own["missing"].sum()
        row["tokens_per_loop"] = own["missing"].sum() / own["loops"].sum()
        row["seconds_per_row"] = float((own["seconds"] / own["batch"]).mean())
        row["seconds_per_pass"] = float((own["seconds"] / own["passes"]).mean())
        row["nfe_ratio"] = own["nfe"].sum() / base["nfe"].sum()
        row["seconds_ratio"] = row["seconds_per_row"] / float((base["seconds"] / base["batch"]).mean())
        row["perplexity_ratio"] = row["perplexity"] / float(base["perplexity"].mean())
        row["perplexity_ratio_se"] = row["perplexity_se"] / float(base["perplexity"].mean())
        if cell["role"] != "reference":
            for name in ("perplexity", "entropy", "logp"):
                test = statistics.compare(own[name].to_numpy(float), base[name].to_numpy(float))
                row |= {
                    f"{name}_difference": test["difference"],
                    f"p_{name}_welch": test["p_welch"],
                    f"p_{name}_paired": test["p_paired"],
                }
        found.append(row)
    return pd.DataFrame(found)


def judged(
    settings: Config, exact: list[Path], forced: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Equality rows under their variant's name, and a verdict for each variant of a method."""
    files = {p.name: read_json(p)["rows"] for p in exact}
    rows: list[dict[str, Any]] = []
    claims = {}
    for cell in text_cells(settings):
        spec = cell["spec"]
        variant = " ".join([spec["method"], *(f"{k}={v}" for k, v in spec["options"].items())])
        place = {"method": spec["method"], "key": variant}
        if variant not in claims and spec["method"] != "gpt2":
            rows += [r | place for r in files[Path(text_exact(text_exact_key(settings, spec), spec)).name]]
        claims[variant] = claim(spec["method"], spec["options"])
        if cell["role"] != "control" and spec["cache"] == settings.text.cache[0]:  # type: ignore[union-attr]
            again = {"repeat": int(cell["role"] == "again")}
            rows += [r | place | again for r in forced["rows"] if r["key"] == cell["key"]]
    for variant in claims:  # a variant is tested on every task: one family
        for repeat in (0, 1):
            R.family(
                r for r in rows if r["layer"] == "teacher-forced" and r["key"] == variant and r["repeat"] == repeat
            )
    return rows, verdicts(rows, claims, settings.equality.margin_tv, settings.equality.alpha)


def stated(paper: pd.Series, cell: pd.Series) -> tuple[bool, bool]:
    """Whether a cell is of the paper's kind, and has its options: what a row leaves unsaid is the default, what it says is None is not known."""
    given = json.loads(cell["settings"]) | {"cache": cell["cache"]}
    same = paper["task"] == cell["task"] and paper["method"] == cell["method"] and cell["role"] != "control"
    kind = same and all(given.get(k) == v for k, v in json.loads(paper["conditions"]).items())
    if not kind:
        return False, False
    wanted = config.options(paper["method"], {}) | json.loads(paper["options"])
    have = json.loads(cell["options"])
    return True, all(v is None or have.get(k) == v for k, v in wanted.items())


def published(files: list[Path], table: pd.DataFrame, laws: list[dict[str, Any]]) -> pd.DataFrame:
    """The paper's figures with ours beside them: those of a task, prompt and method that are in the experiment.

    Of texts of several lengths ours is the longest, for the paper's are longer still. Where other options of the same table's method are
    in the experiment, those that are not are left out; a table of which there is none keeps them, with no figure of ours.
    """
    said = (
        pd.concat([pd.read_csv(f, keep_default_na=False) for f in files], ignore_index=True)
        if files
        else pd.DataFrame()
    )
    accuracy = {x["kind"]: x["accuracy"] for x in laws}
    found: list[dict[str, Any]] = []
    for _, p in said.iterrows():
        row: dict[str, Any] = {**p, "ours": None, "our_cell": ""}
        if p["task"] in ("last_word", "choice"):
            if p["task"] in accuracy:
                found.append(row | {"ours": accuracy[p["task"]], "our_cell": p["task"]})
            continue
        metric, near = (
            {"pass@1": "passed"}.get(p["metric"], p["metric"]),
            [(c, *stated(p, c)) for _, c in table.iterrows()],
        )
        exact = [c for c, _, options in near if options]
        if exact:
            mine = max(exact, key=lambda c: json.loads(c["settings"]).get("length", 0))
            found.append(row | {"ours": mine.get(metric), "our_cell": mine["key"]})
        elif any(kind for _, kind, _ in near):
            found.append(row)
    has = {(f["table"], f["method"]) for f in found if f["our_cell"]}
    return pd.DataFrame([f for f in found if f["our_cell"] or (f["table"], f["method"]) not in has])


MEASURES = {
    "perplexity": "Perplexity", "entropy": "Entropy", "nfe": "Passes", "aux": "Drafter calls", "nfe_per_token": "Passes per token",
    "seconds_per_row": "Seconds", "seconds_per_pass": "Seconds per pass", "seconds_ratio": "Seconds, of sequential",
    "perplexity_ratio": "Perplexity, of sequential", "p_perplexity_welch": "p perplexity", "p_entropy_welch": "p entropy",
    "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "pass@1": "pass@1", "accuracy": "Accuracy",
}  # fmt: skip


def published_table(paper: pd.DataFrame) -> Table:
    """A line for what one line of the paper's table says, its figure above and ours beneath."""
    measures = {k: v for k, v in MEASURES.items() if k in set(paper["metric"])}
    lines = []
    for (source, model, kind, conditions, method, options), part in paper.groupby(
        ["table", "model", "task", "conditions", "method", "options"], sort=False
    ):
        own = part.set_index("metric")
        told = ", ".join(f"{k} {v}" for k, v in json.loads(str(conditions)).items())
        chosen = ", ".join(f"{k}={'?' if v is None else v}" for k, v in json.loads(str(options)).items())
        line = [
            words.Cell(str(source), str(model)),
            words.Cell(str(kind).replace("_", " "), told),
            words.Cell(str(method), chosen, "name"),
        ]
        for name in measures:
            theirs = own["value"].get(name)
            mine = own["ours"].get(name)
            beneath = "ours: " + ("not run" if words.missing(mine) else words.number(mine, 3))
            line.append(
                words.Cell("")
                if theirs is None
                else words.Cell(f"{theirs:.2f}" if name.startswith("p_") else f"{theirs:g}", beneath)
            )
        lines.append(line)
    return Table([(h, "") for h in ("Source", "Task", "Method", *measures.values())], lines)


SWEEPS = {
    "k": "k, tokens drafted per loop",
    "length": "tokens of a text",
    "tolerance": "epsilon, added to every acceptance probability",
}
PANELS = {name: MEASURES[name].lower() for name in ("nfe_per_token", "seconds_ratio", "perplexity_ratio")}


def sweeps(table: pd.DataFrame, paper: pd.DataFrame) -> list[tuple[str, str]]:
    """A picture for each of k, length and tolerance of which `assd` has three values or more: ours, and the paper's where it says."""
    if not len(table):
        return []
    ours = table[(table["method"] == "assd") & (table["task"] == "infilling")]
    if not len(ours):
        return []
    theirs = pd.DataFrame()
    if len(paper):
        rows = paper[(paper["method"] == "assd") & (paper["task"] == "infilling")]
        index = ["table", "conditions", "options"]
        theirs = rows.pivot_table("value", index, "metric").reset_index().rename(columns={"conditions": "settings"})
    found = []
    for knob, name in SWEEPS.items():
        own, said = (with_knobs(t) if len(t) else t for t in (ours, theirs))
        if own[knob].nunique() < 3:
            continue
        if len(said):
            said = said[said.groupby("table")[knob].transform("nunique") > 1]
        found.append((name, picture(knob, name, own, said)))
    return found


def with_knobs(table: pd.DataFrame) -> pd.DataFrame:
    """With the settings and options that a sweep may be over as columns."""
    options, given = (table[c].map(json.loads) for c in ("options", "settings"))
    k, tolerance = options.map(lambda o: o.get("k")), options.map(lambda o: o.get("tolerance", 0.0))
    return table.assign(k=k, tolerance=tolerance, length=given.map(lambda s: s.get("length")))


def picture(knob: str, name: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> str:
    """Passes, seconds and perplexity of `assd` against one setting: solid lines are ours, crosses the paper's."""
    import matplotlib
    from matplotlib.figure import Figure

    from parity.report.figures import STYLE, data_uri

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3), layout="constrained")
        panels = figure.subplots(1, len(PANELS))
        values = sorted(ours[knob].unique())
        lines = "length" if knob != "length" else "k"
        for ax, (measure, title) in zip(panels, PANELS.items(), strict=True):
            ax.axhline(1, color="#8a94a0", lw=1)
            for i, (whose, data) in enumerate((("ours", ours), ("paper", theirs))):
                if measure not in data:
                    continue
                for j, (at, part) in enumerate(data[data[knob].isin(values)].dropna(subset=[measure]).groupby(lines)):
                    part = part.sort_values(knob)
                    x = [values.index(v) for v in part[knob]]
                    label = whose + (f", {lines} {at:g}" if ours[lines].nunique() > 1 else "")
                    look: dict[str, Any] = {
                        "marker": "ox"[i],
                        "ls": "-:"[i],
                        "color": f"C{j}" if i == 0 else "#30363d",
                        "label": label,
                    }
                    error = 1.96 * part[f"{measure}_se"] if f"{measure}_se" in part else None
                    ax.errorbar(x, part[measure], yerr=error, capsize=2, **look)
            ax.set_xticks(range(len(values)), [f"{v:g}" for v in values])
            ax.set(xlabel=name, title=title)
            ax.legend(fontsize=7)
    return data_uri(figure)


def show(table: pd.DataFrame, names: dict[str, str]) -> Table:
    """Columns of the summary as a reader sees them: a value with its error beneath, Welch's p with the paired one beneath."""
    cells = []
    for _, r in table.iterrows():
        line = []
        for name in names:
            if name == "variant":
                line.append(
                    words.Cell(r["variant"], "" if r["role"] == "method" else f"{r['role']}, seed {r['seed']}", "name")
                )
            elif f"{name}_se" in table:
                line.append(words.plus_minus(r.get(name), r.get(f"{name}_se")))
            elif f"{name}_welch" in table:
                welch, paired = r.get(f"{name}_welch"), r.get(f"{name}_paired")
                beside = "" if words.missing(paired) else f"paired {words.p_value(paired)}"
                line.append(words.Cell("" if words.missing(welch) else words.p_value(welch), beside))
            else:
                line.append(words.plain(r.get(name), 3))
        cells.append(line)
    return Table(
        [(heading, "") for heading in names.values()],
        cells,
        ["baseline" if r == "reference" else "" for r in table["role"]],
    )


def told(kind: str, settings: dict[str, Any]) -> str:
    """A task's settings in words."""
    n, tries = settings["rows"], settings.get("attempts", 1)
    often = f", {tries} attempts each" if tries > 1 else ""
    data = f", from {settings['data']}" if settings.get("data") else ""
    if kind == "infilling":
        where = "scattered" if settings["prompt"] == "scattered" else "all but the beginning"
        return (
            f"{n} texts of {settings['length']} tokens, {100 * settings['masked']:g} % of them hidden ({where}){data}"
        )
    if kind == "stories":
        return f"{n} stories of five sentences, {'the third' if settings['missing'] == 1 else 'the three in the middle'} hidden{often}{data}"
    return f"{n} functions, a line of each hidden{often}{data}"


COLUMNS = {
    "variant": "Method", "perplexity": "Perplexity", "entropy": "Entropy", "logp": "log p, model", "nfe": "Passes",
    "aux": "Drafter calls", "nfe_per_token": "Passes per token", "tokens_per_loop": "Tokens per loop", "seconds_per_row": "Seconds",
    "seconds_ratio": "Seconds, of sequential", "p_perplexity": "p perplexity", "p_entropy": "p entropy", "p_logp": "p log p",
}  # fmt: skip
EXTRA = {"stories": dict(zip(ROUGE, ("ROUGE-1", "ROUGE-2", "ROUGE-L"), strict=True)), "code": {"passed": "pass@1"}}
LAWS = {
    "accuracy": "Accuracy",
    "accuracy_known_pairs": "of pairs seen in training",
    "accuracy_held_out_pairs": "of pairs held out",
}


def laws_table(laws: list[dict[str, Any]]) -> Table:
    lines = []
    for x in laws:
        first = [
            words.Cell(x["kind"].replace("_", " "), kind="name"),
            words.plain(x["n"]),
            words.plus_minus(x["accuracy"], x["error"]),
        ]
        lines.append([*first, *(words.plain(x[name], 3) for name in list(LAWS)[1:]), words.plain(x["seconds"], 3)])
    return Table([(h, "") for h in ("Task", "Questions", *LAWS.values(), "Seconds")], lines)


def verdict_table(found: list[dict[str, Any]]) -> Table:
    columns = {
        "method": "Method",
        "options": "Options",
        "verdict": "Verdict",
        "claim": "Claim",
        "tv_bound": "TV bound",
        "tv": "TV",
        "note": "Note",
    }
    frame = pd.DataFrame([{**v, "options": v["key"].removeprefix(v["method"]).strip() or "-"} for v in found])[
        list(columns)
    ]
    return Table([(h, "") for h in columns.values()], any_table(frame).rows)


def write(a: argparse.Namespace) -> None:
    settings = config.load(json.loads(a.config))
    records, forced = pd.read_parquet(a.records), read_json(a.equality)
    table = summary(settings, records)
    rows, found = judged(settings, a.exact, forced)
    laws = [read_json(p) for p in a.laws]
    verdict_of = {v["key"]: v for v in found}
    names = [
        " ".join([r["method"], *(f"{k}={v}" for k, v in json.loads(r["options"]).items())]) for _, r in table.iterrows()
    ]
    table["verdict"] = [verdict_of[n]["verdict"] if n in verdict_of else words.NOT_RUN for n in names]
    sections = []
    for (kind, given), part in table.groupby(["task", "settings"], sort=False) if len(table) else ():
        columns = {"variant": "Method", **EXTRA.get(str(kind), {}), **COLUMNS}
        if not part["cache"].all():
            columns |= {"seconds_per_pass": "Seconds per pass"}
        note = forced["code"] if kind == "code" else ""
        examples = []
        for _, r in part[part["role"] != "control"].iterrows():
            own = records[records["cell"] == f"{r['method']}-{r['key']}"].sort_values("id")
            examples.append((r["variant"], own["text"].iloc[0]))
        what = told(str(kind), json.loads(str(given)))
        sections.append(
            {"kind": kind, "settings": what, "table": show(part, columns), "note": note, "examples": examples}
        )
    paper = published(a.published, table, laws)
    page = (
        environment()
        .get_template("text.html.j2")
        .render(
            experiment=settings.experiment,
            verdicts=verdict_table(found) if found else None,
            sections=sections,
            laws=laws_table(laws) if laws else None,
            published=published_table(paper) if len(paper) else None,
            sweeps=sweeps(table, paper),
            provenance={k: v if isinstance(v, str) else canonical(v) for k, v in forced["provenance"].items()},
            rows=len(records),
        )
    )
    for name, frame in (("text.csv", table), ("text-equality.csv", pd.DataFrame(rows)), ("text-published.csv", paper)):
        stream = io.StringIO()
        frame.replace({np.nan: None}).to_csv(stream, index=False)
        publish(a.out.parent / name, stream.getvalue().encode())
    publish(a.out, page.encode())
