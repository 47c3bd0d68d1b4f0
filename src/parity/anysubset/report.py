"""The text page: verdicts, what each method cost and wrote, t-tests beside the tests of the law. One self-contained file and its tables."""

import argparse
import io
import json
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from parity import config
from parity.anysubset import statistics
from parity.config import Config, claim, text_cells, text_tasks
from parity.equality.verdict import verdicts
from parity.layout import text_exact, text_exact_key
from parity.report import words
from parity.report.build import Table, any_table
from parity.storage import canonical, publish, read_json

ROUGE = ("rouge1", "rouge2", "rougeL")
FIGURES = ("perplexity", "entropy", "nfe", "aux", "logp", *ROUGE, "passed")


def label(spec: dict[str, Any]) -> str:
    """A variant as the page names it."""
    given = " ".join(f"{k}={v}" for k, v in spec["options"].items())
    return " ".join(x for x in (spec["method"], given, "" if spec["cache"] else "uncached") if x)


def summary(settings: Config, records: pd.DataFrame) -> pd.DataFrame:
    """A row per cell: mean and standard error of every figure, and its comparison with sequential decoding of the same task."""
    cells, tasks = text_cells(settings), {t["key"]: t for t in text_tasks(settings.text)} if settings.text else {}
    found = []
    for cell in cells:
        spec = cell["spec"]
        own = records[records["cell"] == cell["cell"]].sort_values("id")
        same = [c for c in cells if c["role"] == "reference" and c["spec"]["task"] == spec["task"] and c["spec"]["cache"] == spec["cache"]]
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
        row["nfe_ratio"] = own["nfe"].sum() / base["nfe"].sum()
        row["seconds_ratio"] = row["seconds_per_row"] / float((base["seconds"] / base["batch"]).mean())
        if cell["role"] != "reference":
            for name in ("perplexity", "entropy", "logp"):
                test = statistics.compare(own[name].to_numpy(float), base[name].to_numpy(float))
                row |= {f"{name}_difference": test["difference"], f"p_{name}_welch": test["p_welch"], f"p_{name}_paired": test["p_paired"]}
        found.append(row)
    return pd.DataFrame(found)


def judged(settings: Config, exact: list[Path], forced: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Equality rows under their variant's name, and a verdict for each variant of a method."""
    files = {p.name: read_json(p)["rows"] for p in exact}
    rows: list[dict[str, Any]] = []
    claims = {}
    for cell in text_cells(settings):
        spec = cell["spec"]
        variant = " ".join([spec["method"], *(f"{k}={v}" for k, v in spec["options"].items())])
        claims[variant] = claim(spec["method"], spec["options"])
        own = [] if spec["method"] == "gpt2" else files[Path(text_exact(text_exact_key(settings, spec), spec)).name]
        own = [
            r | {"method": spec["method"], "key": variant}
            for r in own
            if not any(o["key"] == variant and o["layer"] == "exact" for o in rows)
        ]
        rows += own
        if cell["role"] != "control" and spec["cache"] == settings.text.cache[0]:  # type: ignore[union-attr]
            rows += [r | {"method": spec["method"], "key": variant} for r in forced["rows"] if r["key"] == cell["key"]]
    return rows, verdicts(rows, claims, settings.equality.margin_tv, settings.equality.alpha)


def published(files: list[Path], table: pd.DataFrame, laws: list[dict[str, Any]]) -> pd.DataFrame:
    """The paper's figures with ours beside them, where we have one of the same method, options and metric."""
    said = pd.concat([pd.read_csv(f) for f in files], ignore_index=True) if files else pd.DataFrame()
    ours = []
    for _, p in said.iterrows():
        metric = {"pass@1": "passed"}.get(p["metric"], p["metric"])
        value = next((x["accuracy"] for x in laws if x["kind"] == p["method"]), None)
        wanted = json.loads(p["options"])
        kind = "code" if metric == "passed" else "infilling"
        for _, r in table[(table["method"] == p["method"]) & (table["task"] == kind)].iterrows():
            if metric in r and all(json.loads(r["options"]).get(k) == v for k, v in wanted.items()):
                value = r[metric]
                break
        ours.append(value)
    return said.assign(ours=pd.Series(ours, dtype=object))


def sweep(table: pd.DataFrame) -> str:
    """NFE per token against k, as a picture; "" unless there are three values of k."""
    assd = table[(table["method"] == "assd") & (table["task"] == "infilling")].copy()
    assd["k"] = [json.loads(o)["k"] for o in assd["options"]]
    if assd["k"].nunique() < 3:
        return ""
    from matplotlib.figure import Figure

    from parity.report.figures import data_uri

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    ax = figure.subplots()
    for given, part in assd.groupby("settings"):
        part = part.sort_values("k")
        ax.plot(part["k"], part["nfe_per_token"], marker="o", label=str(given))
    ax.axhline(1, color="0.5", lw=1)
    ax.set(xlabel="k, tokens drafted per loop", ylabel="passes per token", xscale="log")
    ax.legend(fontsize=7)
    return data_uri(figure)


def show(table: pd.DataFrame, names: dict[str, str]) -> Table:
    """Columns of the summary as a reader sees them: a value with its error beneath."""
    cells = []
    for _, r in table.iterrows():
        line = []
        for name in names:
            if name == "variant":
                line.append(words.Cell(r["variant"], "" if r["role"] == "method" else f"{r['role']}, seed {r['seed']}", "name"))
            elif f"{name}_se" in table:
                line.append(words.plus_minus(r.get(name), r.get(f"{name}_se")))
            elif name.startswith("p_"):
                value = r.get(name)
                line.append(words.Cell(words.p_value(value), "", "none" if words.missing(value) else ""))
            else:
                line.append(words.plain(r.get(name), 3))
        cells.append(line)
    return Table([(heading, "") for heading in names.values()], cells, ["baseline" if r == "reference" else "" for r in table["role"]])


COLUMNS = {
    "variant": "Method", "n": "Rows", "perplexity": "Perplexity", "entropy": "Entropy", "logp": "log p, model", "nfe": "Passes",
    "aux": "Drafter calls", "nfe_per_token": "Passes per token", "tokens_per_loop": "Tokens per loop", "seconds_per_row": "Seconds",
    "seconds_ratio": "Seconds ratio", "p_perplexity_welch": "p PPL", "p_perplexity_paired": "p PPL, paired", "p_entropy_welch": "p entropy",
    "p_entropy_paired": "p entropy, paired", "p_logp_paired": "p log p, paired",
}  # fmt: skip
EXTRA = {"stories": dict(zip(ROUGE, ("ROUGE-1", "ROUGE-2", "ROUGE-L"), strict=True)), "code": {"passed": "pass@1"}}


def environment() -> jinja2.Environment:
    """What a model wrote is anybody's text: everything reaches the page escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)


def write(a: argparse.Namespace) -> None:
    settings = config.load(json.loads(a.config))
    records, forced = pd.read_parquet(a.records), read_json(a.equality)
    table = summary(settings, records)
    rows, found = judged(settings, a.exact, forced)
    laws = [read_json(p) for p in a.laws]
    verdict_of = {v["key"]: v for v in found}
    names = [" ".join([r["method"], *(f"{k}={v}" for k, v in json.loads(r["options"]).items())]) for _, r in table.iterrows()]
    table["verdict"] = [verdict_of[n]["verdict"] if n in verdict_of else words.NOT_RUN for n in names]
    sections = []
    for (kind, given), part in table.groupby(["task", "settings"], sort=False):
        columns = {**dict(list(COLUMNS.items())[:2]), **EXTRA.get(str(kind), {}), **dict(list(COLUMNS.items())[2:])}
        note = forced["code"] if kind == "code" else ""
        examples = []
        for _, r in part[part["role"] != "control"].iterrows():
            own = records[records["cell"] == f"{r['method']}-{r['key']}"].sort_values("id")
            examples.append((r["variant"], own["text"].iloc[0]))
        sections.append({"kind": kind, "settings": given, "table": show(part, columns), "note": note, "examples": examples})
    order = ["method", "options", "verdict", "claim", "tv_bound", "tv", "note"]
    verdict_frame = pd.DataFrame([{**v, "options": v["key"].removeprefix(v["method"]).strip() or "-"} for v in found])[order]
    paper = published(a.published, table, laws)
    page = (
        environment()
        .get_template("text.html.j2")
        .render(
            experiment=settings.experiment,
            verdicts=any_table(verdict_frame),
            sections=sections,
            laws=any_table(pd.DataFrame(laws)) if laws else None,
            published=any_table(paper) if len(paper) else None,
            sweep=sweep(table),
            provenance=canonical(forced["provenance"]),
            rows=len(records),
        )
    )
    for name, frame in (("text.csv", table), ("text-equality.csv", pd.DataFrame(rows))):
        stream = io.StringIO()
        frame.replace({np.nan: None}).to_csv(stream, index=False)
        publish(a.out.parent / name, stream.getvalue().encode())
    publish(a.out, page.encode())
