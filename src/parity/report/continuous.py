"""The page of the experiment on continuous tokens: verdicts, cost, quality, pictures, acceptance. One self-contained file and its tables."""

import argparse
import io
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from parity.base.files import canonical, publish, read_arrays, read_json
from parity.equality.verdict import verdicts
from parity.experiment import config
from parity.experiment.config import Config, claim
from parity.experiment.continuous import continuous_cells, exact_variants, folder, forced_cells, length
from parity.experiment.paths import continuous_exact, continuous_forced
from parity.report import format as words
from parity.report.environment import environment
from parity.report.figures import data_uri
from parity.report.page import Table, any_table
from parity.report.thumbnails import thumbnail

RELEASED = {
    "verify": "blind", "sigma": "inverted", "inner_temperature": 42.0, "resample": "untempered", "truncate": False, "give_up": "zero",
}  # fmt: skip
COLUMNS = {
    "variant": "Method", "right": "Right", "is": "IS", "fid": "FID", "acceptance": "Accepted", "distance": "Distance",
    "steps": "Steps", "target_conditions": "Target evaluations", "draft_conditions": "Draft evaluations", "tries": "Tries",
    "gave_up": "Gave up", "seconds": "Seconds", "speedup": "Speed", "head_share": "Head", "test_share": "Test",
}  # fmt: skip
DRAFTED = (
    "acceptance",
    "distance",
    "draft_conditions",
    "tries",
    "gave_up",
    "test_share",
)  # columns of what has a draft
SWEEPS = {  # setting: the method it is of, and the columns that are drawn against it
    "gamma": ("cspd", ["acceptance", "tries", "speedup"]),
    "prefill": ("cspd", ["acceptance", "speedup"]),
    "tries": ("cspd", ["tries", "gave_up", "speedup"]),
    "temperature": ("cspd", ["acceptance", "distance", "right"]),
    "guidance": ("cspd", ["acceptance", "distance", "right"]),
    "batch": ("cspd", ["acceptance", "speedup"]),
    "iterations": ("mar", ["fid", "right", "speedup"]),
}


def label(spec: dict[str, Any], given: dict[str, Any] | None = None) -> str:
    """A variant as the page names it: the options that are not the defaults."""
    defaults, shown = config.options(spec["method"], {}), given or spec["options"]
    if all(shown.get(k) == v for k, v in RELEASED.items()):
        defaults, name = defaults | RELEASED, f"{spec['method']} as released"
    else:
        name = spec["method"]
    said = " ".join(
        f"{k}={str(v).lower() if isinstance(v, bool) else v}"
        for k, v in shown.items()
        if v != defaults[k] or k == "gamma"
    )
    return f"{name} {said}".strip()


def settings_of(spec: dict[str, Any]) -> str:
    """What is not the default, and the batch."""
    defaults = config.ContinuousSamplingSpec().model_dump() | {"steps": None, "guidance": None}
    said = {k: v for k, v in spec["sampling"].items() if v != defaults[k]}
    said |= {"batch": spec["batch"]} if "batch" in spec else {}
    return ", ".join(
        f"{k.replace('_', ' ')} {v:g}" if isinstance(v, float) else f"{k.replace('_', ' ')} {v}"
        for k, v in said.items()
    )


def summary(settings: Config, records: pd.DataFrame, figures: dict[str, Any]) -> pd.DataFrame:
    """A row per cell: means and standard errors over images, and the speed against the target alone timed beside them."""
    cells, found = continuous_cells(settings), []
    for cell in cells:
        spec, own = cell["spec"], records[records["cell"] == cell["cell"]]
        row = {
            "cell": cell["cell"],
            "model": spec["model"],
            "method": spec["method"],
            "variant": label(spec),
            "options": canonical(spec["options"]),
        }
        row |= {k: spec["sampling"].get(k) for k in ("guidance", "sampler")}
        row |= {
            "role": cell["role"],
            "seed": spec["seed"],
            "settings": settings_of(spec),
            "batch": spec["batch"],
            "images": len(own),
        }
        row |= {k: v for k, v in figures[cell["cell"]].items() if not isinstance(v, list)}
        for name in ("right", "distance", "steps"):
            values = own[name].astype(float)
            row[name], row[f"{name}_se"] = values.mean(), values.sem()
        drafted = own["drafted"].sum()
        row["drafted"], row["acceptance"] = int(drafted), own["accepted"].sum() / drafted if drafted else None
        for name in (
            "tries",
            "gave_up",
            "seconds",
            "target_conditions",
            "target_network_seconds",
            "target_head_seconds",
            "draft_conditions",
        ):
            row[name] = own[name].mean() if name in own and own[name].notna().all() else None
        times = {k: own[k].mean() for k in own if k.endswith("_seconds") and own[k].notna().all()}
        head, network, test = (
            sum(v for k, v in times.items() if any(f"_{part}_" in k for part in parts))
            for parts in (["head"], ["network"], ["density", "residual"])
        )
        row |= {
            "head_share": head / (head + network),
            "test_seconds": test,
            "test_share": test / row["seconds"] if drafted else None,
        }
        row["speedup"] = (
            own["alone_seconds"] / own["seconds"]
        ).median()  # of batches, each with the target alone beside it
        found.append(row)
    return pd.DataFrame(found)


def judged(
    settings: Config, exact: list[Path], forced: list[Path]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Equality rows under their variant's name, and a verdict for each variant and kind of head."""
    files = {p.name: read_json(p) for p in (*exact, *forced)}
    rows: list[dict[str, Any]] = []
    claims: dict[str, str] = {}
    for key, variant in exact_variants(settings).items():
        name = f"{label(variant, variant['given'])}, on mixtures"
        claims[name] = claim(variant["method"], variant["given"])
        own = files[Path(continuous_exact(key, variant)).name]["rows"]
        rows += [
            r | {"method": variant["method"], "key": name}
            for r in own
            if not any(
                o["key"] == name and o["test"] == r["test"] and o["model"] == r["model"] and o["repeat"] == r["repeat"]
                for o in rows
            )
        ]
    for cell in forced_cells(settings):
        spec = cell["spec"]
        name = (
            f"{label(spec)}, {spec['model']}, {settings_of(spec)}"
            if cell["role"] != "control"
            else f"target alone again, {spec['model']}, {settings_of(spec)}"
        )
        claims[name] = "lossless" if cell["role"] == "control" else claim(spec["method"], spec["options"])
        rows += [r | {"method": spec["method"], "key": name} for r in files[Path(continuous_forced(cell)).name]["rows"]]
    return rows, verdicts(rows, claims, settings.equality.margin_tv, settings.equality.alpha)


def ratios(settings: Config, forced: list[Path]) -> pd.DataFrame:
    files, found = {p.name: read_json(p) for p in forced}, []
    for cell in forced_cells(settings):
        known = files[Path(continuous_forced(cell)).name]["ratios"]
        if known:
            row = {
                "variant": label(cell["spec"]),
                "model": cell["spec"]["model"],
                "settings": settings_of(cell["spec"]),
            }
            row |= {
                f"{k}_log_ratio" if "path" in k else k: known.get(k, {}).get("mean" if k == "acceptance" else "median")
                for k in ("single_path", "two_paths", "distance", "acceptance")
            }
            found.append(row)
    return pd.DataFrame(found)


def one_token(settings: Config, rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A line per variant of what the teacher-forced rows say."""
    found = []
    for name, group in groupby([r for r in rows if r["layer"] == "teacher-forced"], lambda r: r["key"]):
        own = [r for r in group if not r["repeat"]]
        tests = [r for r in own if r["decides"]]
        where = {r["model"] for r in tests}
        hit = {r["model"] for r in tests if r["verdict"] == "rejected"}
        effect = {t: [r["effect"] for r in own if r["test"] == t] for t in ("energy", "mean shift", "spread ratio")}
        found.append({
            "variant": name, "draws": own[0]["n"], "conditions_rejected": f"{len(hit)} of {len(where)}", "largest_energy_distance": max(effect["energy"]),
            "mean_moved": float(np.median(effect["mean shift"])), "spread_ratio": float(np.median(effect["spread ratio"])),
        })  # fmt: skip
    return pd.DataFrame(found)


def show(table: pd.DataFrame) -> Table:
    lines = []
    for _, r in table.iterrows():
        line = []
        for name in COLUMNS:
            if name == "variant":
                line.append(
                    words.Cell(r["variant"], "" if r["role"] == "method" else f"{r['role']}, seed {r['seed']}", "name")
                )
            elif name in DRAFTED and not r["drafted"]:
                line.append(words.Cell("no draft", "", "none"))
            elif name in ("right", "head_share", "test_share"):
                cell = words.plus_minus(r[name], r.get(f"{name}_se"))
                line.append(
                    cell
                    if words.missing(r[name])
                    else words.Cell(
                        f"{100 * r[name]:.{0 if r[name] >= 0.1 else 1}f}%",
                        f"±\N{NO-BREAK SPACE}{100 * r['right_se']:.0f}%" if name == "right" else "",
                    )
                )
            elif name == "speedup":
                line.append(words.Cell(f"{r[name]:.2f}×"))
            elif f"{name}_se" in table:
                line.append(words.plus_minus(r.get(name), r.get(f"{name}_se")))
            else:
                line.append(words.plain(r.get(name), 3))
        lines.append(line)
    return Table(
        [(heading, "") for heading in COLUMNS.values()],
        lines,
        ["baseline" if r == "reference" else "" for r in table["role"]],
    )


def acceptance_figure(part: pd.DataFrame, figures: dict[str, Any]) -> str:
    """Where drafts are kept: by place in the order (the paper's Fig. 9), and on the grid (Fig. 11)."""
    from matplotlib.figure import Figure

    drafted = [
        (r["variant"], figures[r["cell"]])
        for _, r in part.iterrows()
        if any(v is not None for v in figures[r["cell"]]["by_place"])
    ][:4]
    if not drafted:
        return ""
    figure = Figure(figsize=(4.2 + 2.4 * len(drafted), 2.8), layout="constrained")
    axes = figure.subplots(1, 1 + len(drafted), width_ratios=[1.8] + [1] * len(drafted), squeeze=False)[0]
    for name, found in drafted:
        line = np.array([np.nan if v is None else v for v in found["by_place"]])
        smooth = pd.Series(line).rolling(8, min_periods=1, center=True).mean()
        axes[0].plot(range(1, len(line) + 1), smooth, label=name)
    axes[0].set(xlabel="place in the order", ylabel="share of drafts accepted", ylim=(0, 1.02))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=7, ncols=2)
    for ax, (name, found) in zip(axes[1:], drafted, strict=True):
        grid = np.array([np.nan if v is None else v for v in found["by_cell"]])
        side = round(len(grid) ** 0.5)
        image = ax.imshow(grid.reshape(side, side), vmin=0, vmax=1, cmap="YlGn")
        ax.set_title("\n".join([name[i : i + 26] for i in range(0, len(name), 26)]), fontsize=7)
        ax.set(xticks=[], yticks=[])
    figure.colorbar(image, ax=axes[1:].tolist(), shrink=0.8)
    return data_uri(figure)


def without(spec: dict[str, Any], setting: str) -> dict[str, Any]:
    """A cell's settings but one."""
    return {
        k: {o: x for o, x in v.items() if o != setting} if isinstance(v, dict) else v
        for k, v in spec.items()
        if k != setting
    }


def sweep_figure(table: pd.DataFrame, specs: dict[str, dict[str, Any]], setting: str, places: int) -> str:
    """What an option, a setting of the sampler or the batch changes, a line per all the rest; "" unless it takes three values.

    `places` is what no `iterations` stands for: a step for each.
    """
    from matplotlib.figure import Figure

    method, panels = SWEEPS[setting]
    own = table[(table["method"] == method) & (table["role"] != "control")].copy()
    spec = own["cell"].map(specs)
    own["x"] = [s[setting] if setting in s else s["sampling"].get(setting, s["options"].get(setting)) for s in spec]
    own["line"] = [f"{s['model']}, {settings_of(without(s, setting))}, {label(without(s, setting))}" for s in spec]
    own = own.dropna(subset="x")
    if setting == "iterations":
        own["x"] = own["x"].where(own["x"] > 0, places)
    if own["x"].nunique() < 3:
        return ""
    own = own[own.groupby("line")["x"].transform("nunique") > 1]
    figure = Figure(figsize=(10, 3.1 + 0.16 * own["line"].nunique()), layout="constrained")
    for ax, y in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for line, part in own.groupby("line"):
            part = part.sort_values("x")
            ax.plot(part["x"], part[y].astype(float), marker="o", label=line)
        wide = own["x"].min() > 0 and own["x"].max() / own["x"].min() > 8
        ax.set(xlabel=setting, title=COLUMNS[y], xscale="log" if wide else "linear")
        if wide or own["x"].nunique() < 7:
            ax.set_xticks(sorted(own["x"].unique()), [f"{x:g}" for x in sorted(own["x"].unique())], minor=False)
            ax.minorticks_off()
        if y == "speedup":
            ax.axhline(1, color="0.5", lw=1)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", fontsize=6.5, ncols=1)
    return data_uri(figure)


def likeness(r: pd.Series, batch: float, prefill: float | None) -> tuple[float, ...]:
    """How close a row comes to what the paper ran: its code, then its pre-filling, then its batch."""
    options = json.loads(r["options"])
    ratio = 0.0 if words.missing(batch) else -abs(np.log(r["batch"] / batch))
    return options.get("inner_temperature", 1.0), options.get("prefill") == prefill, ratio


def published(files: list[Path], table: pd.DataFrame, ratio: pd.DataFrame) -> pd.DataFrame:
    """The paper's figures with ours beside them, where a cell has the same model, method and options; others are left out."""
    said = pd.concat([pd.read_csv(f) for f in files], ignore_index=True) if files else pd.DataFrame()
    kept = []
    for _, p in said.iterrows():
        wanted = json.loads(p["options"])
        own = table[(table["method"] == p["method"]) & (table["model"] == p["model"]) & (table["role"] != "control")]
        defaults = config.options(p["method"], {}) | wanted
        free = {"prefill", "gamma", *RELEASED} - set(wanted)  # what the paper measured is its code, so that comes first
        if "without guidance" in p["pair"]:
            own = own[own["guidance"] == 1]
        elif "with guidance" in p["pair"]:
            own = own[own["guidance"] > 1]
        own = own[own["sampler"] == "ddim"] if "DDIM" in p["pair"] else own[own["sampler"] != "ddim"]
        own = own[[all(v == defaults[k] for k, v in json.loads(o).items() if k not in free) for o in own["options"]]]
        if own.empty:
            continue
        r = max((own.loc[i] for i in own.index), key=lambda r: likeness(r, p["batch"], defaults.get("prefill")))
        if p["metric"] in ("single_path_ratio", "two_paths_ratio"):
            same = ratio[ratio["variant"] == r["variant"]] if len(ratio) else ratio
            value = (
                float(np.exp(same.iloc[0][p["metric"].removesuffix("_ratio") + "_log_ratio"])) if len(same) else None
            )
        else:
            value = r.get(p["metric"])
        if not words.missing(value):
            kept.append(
                {
                    "table": p["table"],
                    "pair": p["pair"],
                    "variant": r["variant"],
                    "ours_at": r["settings"],
                    "batch": "any" if words.missing(p["batch"]) else f"{p['batch']:g}",
                    "metric": p["metric"],
                    "paper": p["value"],
                    "ours": value,
                }
            )
    return pd.DataFrame(kept)


def write(a: argparse.Namespace) -> None:
    settings = config.load(json.loads(a.config))
    records, measured, thumbs = pd.read_parquet(a.records), read_json(a.figures), read_arrays(a.thumbnails)
    table = summary(settings, records, measured["cells"])
    rows, found = judged(settings, a.exact, a.forced)
    ratio, one = ratios(settings, a.forced), one_token(settings, rows)
    sections: list[dict[str, Any]] = []
    for (model, given), part in table.groupby(["model", "settings"], sort=False):
        strips = [
            (
                r["variant"] if r["role"] == "method" else f"{r['variant']} ({r['role']})",
                [thumbnail(x, 96) for x in thumbs[r["cell"]]],
            )
            for _, r in part.iterrows()
        ]
        where = acceptance_figure(part, measured["cells"])
        figures = (
            [
                (
                    "Share of drafts accepted, by place in the order (a mean over 8 places) and by place in the picture",
                    where,
                )
            ]
            if where
            else []
        )
        sections.append({"title": model, "settings": given, "table": show(part), "strips": strips, "figures": figures})
    places = length(settings.continuous.models[0], folder(settings.continuous)) if settings.continuous else 0
    specs = {c["cell"]: c["spec"] for c in continuous_cells(settings)}
    for setting in SWEEPS:
        if sections and (uri := sweep_figure(table, specs, setting, places)):
            sections[-1]["figures"].append((f"Against {setting}", uri))
    order = ["key", "verdict", "claim", "tv_bound", "tv", "note"]
    verdict_frame = pd.DataFrame([{k: v[k] for k in order} for v in found]).rename(columns={"key": "variant"})
    paper = published(a.published, table, ratio)
    accuracy = measured["real_accuracy"]
    real = "not read: no classifier of these classes" if accuracy is None else f"{100 * accuracy:.0f}%"
    embedded = settings.continuous is not None and not settings.continuous.weights
    ours = (
        "ours have about 2 million and run where this page says."
        if embedded
        else "ours are the files this configuration names."
    )
    page = environment().get_template("continuous.html.j2").render(
        experiment=settings.experiment, images=len(records), verdicts=any_table(verdict_frame), sections=sections,
        real=real, ours=ours, ratios=any_table(ratio) if len(ratio) else None, forced=any_table(one) if len(one) else None,
        published=any_table(paper) if len(paper) else None, provenance=canonical(measured["provenance"]),
    )  # fmt: skip
    for name, frame in (("continuous.csv", table), ("continuous-equality.csv", pd.DataFrame(rows))):
        stream = io.StringIO()
        frame.replace({np.nan: None}).to_csv(stream, index=False)
        publish(a.out.parent / name, stream.getvalue().encode())
    publish(a.out, page.encode())
