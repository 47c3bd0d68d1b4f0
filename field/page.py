"""The page of the field, and docs/results/field.md, written from the verdicts of field/.

python field/page.py --out FILE.html        rows run here (results/field), the others as they came with the repository
python field/page.py --keep NAME ...        copy their verdicts into field/ and write docs/results/field.md anew
"""

import argparse
import csv
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from frame import CLAIMS, LARGEST, LEVELS, FieldError, read_field
from parity_certify.page import COLOURS, draw_badge
from parity_certify.verdict import Kind

FIELD = Path(os.environ.get("PARITY_FIELD", Path(__file__).resolve().parent))
RESULTS = Path("results/field")
ORDER = ("lossy", "certified", "consistent", "inconclusive", "not run")
FILTERS = {"verdict": ORDER, "level": LEVELS, "claim": CLAIMS}
COPIED = "the last `gt_logits`"  # where the fault of a function lies that several projects copied
NOT_SAID = (
    "*Certified* says: on tiny models of four tokens, on CPU kernels, in float32, after these prompts, at these"
    " settings, the total variation between what was drawn and the model's distribution is below the bound, with 95"
    " % confidence. That bound is below the margin of the case: .05, or what its field.yaml names, and at most .1"
    " in every certified row; elsewhere the row says *consistent*, which is less: nothing was found. *Certified*"
    " does not say anything of other settings, lengths, devices, precisions, or of what surrounds a verifier that"
    " was called alone. Faults smaller than the bound are not seen, such as drafts drawn in bfloat16 against"
    " distributions in float32."
)
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222}
td:last-child,td:nth-child(3),.note{white-space:nowrap}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;padding:.4rem .5rem;text-align:left;
vertical-align:top}th{cursor:pointer}pre{background:#f5f5f5;padding:.75rem;overflow:auto;white-space:pre-wrap}
.lossy,.certified{font-weight:600}.note{color:#555}
tr:target{background:#eef4f8}label{margin-right:1rem}label select,label input{font:inherit;margin-left:.3rem}
ul{columns:20rem;list-style:none;padding:0}li{break-inside:avoid;margin-bottom:.4rem}li svg{display:block}
dl{display:grid;grid-template-columns:10rem auto;margin:.5rem 0}dd{margin:0}
"""
STYLE += "".join(f".{kind}{{color:{colour}}}" for kind, colour in COLOURS.items())
STYLE += "".join(
    f"body:has(#{key} option[value='{value}']:checked) tr[data-{key}]:not([data-{key}='{value}']){{display:none}}"
    for key, values in FILTERS.items()
    for value in values
)
SCRIPT = """const find=document.querySelector('#find'),rows=[...document.querySelectorAll('tbody tr')];
const show=()=>{rows.forEach(r=>r.hidden=!r.textContent.toLowerCase().includes(find.value.toLowerCase()));
find.form.querySelector('output').textContent=rows.filter(r=>r.offsetHeight).length+' of '+rows.length+' rows'};
find.parentNode.hidden=false;find.form.oninput=show;find.form.onsubmit=e=>e.preventDefault();show();
document.querySelectorAll('li a').forEach(a=>a.onclick=()=>{find.form.reset();find.value=a.textContent+': ';show()});
document.querySelectorAll('th').forEach((th,i)=>{const sort=()=>{const body=document.querySelector('tbody');
const up=th.dataset.up!=='1';th.dataset.up=up?'1':'0';const of=r=>r.cells[i].dataset.sort||r.cells[i].textContent;
[...body.rows].sort((a,b)=>of(a).localeCompare(of(b),'en',{numeric:true})*(up?1:-1)).forEach(r=>body.append(r))};
th.onclick=sort;th.onkeydown=e=>{if(e.key==='Enter')sort()}})"""


def list_verdict_files(kept_only: bool) -> list[Path]:
    """List the verdict.json of each folder that has one: of a run here, unless `kept_only`, else the one in field/."""
    files = []
    for folder in sorted(f.parent for f in FIELD.glob("*/field.yaml")):
        folders = [folder] if kept_only else [RESULTS / folder.name, folder]
        files += [file for f in folders if (file := f / "verdict.json").is_file()][:1]
    return files


def read_rows(files: list[Path]) -> list[dict[str, Any]]:
    """Read the row of each case, with its folder's data under "of"; faults first. "released" is "" if the verdict is of
    another version than field.yaml's; what is said in words is as there."""
    rows = []
    for file in files:
        one = json.loads(file.read_text(encoding="utf-8"))
        about = read_field(FIELD / one["name"])
        is_same = find_version(one) == find_version(about | {"versions": one["versions"]})
        one |= {"released": str(about["released"] or "") if is_same else ""}
        one |= {key: about[key] for key in ("older", "where", "note", "setup")}
        for row in one["rows"]:
            kind = "not run" if "verdict" not in row else "inconclusive" if row["error"] else row["verdict"]["kind"]
            kind = "consistent" if kind == "certified" and row["verdict"]["bound"] > LARGEST else kind
            rows.append(row | {"of": one, "kind": kind})
    return sorted(
        rows, key=lambda r: (ORDER.index(r["kind"]), r["claim"] != "lossless", r["level"], r["of"]["title"].lower())
    )


def is_fault(row: dict[str, Any]) -> bool:
    """Return whether a row is lossy though it claims to be lossless, in the release as it is."""
    return row["kind"] == "lossy" and row["claim"] == "lossless" and not row["options"].get("mend")


def is_counted(row: dict[str, Any]) -> bool:
    """Return whether a row counts in sentences: of a project as it is, that was run. The rows of a fix, which is ours,
    and of an older version do not."""
    return row["kind"] != "not run" and not row["options"].get("mend") and not row["of"]["older"]


def find_project(row: dict[str, Any]) -> str:
    """Return the project of a row: its address, since one project may have several folders, else its folder's name."""
    return row["of"]["url"] or row["of"]["name"]


def find_version(one: dict[str, Any]) -> str:
    """Return the version of an implementation: its commit, 7 digits, else that of its first package."""
    if one["repository"]:
        return one["commit"][:7]
    name, _, number = (one["packages"] or [""])[0].partition("==")
    return number or one["versions"].get(name.partition("[")[0], "")


def describe_version(one: dict[str, Any]) -> str:
    """Write the version of an implementation and when it was released."""
    return ", ".join(x for x in (find_version(one), one["released"]) if x)


def describe_verdict(row: dict[str, Any]) -> str:
    """Write the verdict of a row in a few words, with its TV or bound."""
    if row["kind"] == "not run":
        return "not run"
    if row["error"]:
        return "inconclusive"
    v = row["verdict"]
    if v["kind"] == "lossy":
        size = (
            ""
            if v["estimate"] is None
            else f", TV {v['estimate']:.3f} ({v['interval'][0]:.3f} to {v['interval'][1]:.3f})"
        )
        return ("lossy by design" if row["claim"] == "lossy" else "lossy") + size
    has_bound = row["kind"] in ("certified", "consistent") and v["bound"] is not None
    bound = f", TV ≤ {v['bound']:.3f}" if has_bound else ""
    return ("certified lossless" if row["kind"] == "certified" else row["kind"]) + bound


def sum_up(rows: list[dict[str, Any]]) -> tuple[Kind, str]:
    """Return the kind of verdict and the words for the badge of one implementation: its faults, else the weakest of the
    rows that claim to be lossless, without fixes."""
    judged = [r for r in rows if r["claim"] == "lossless" and not r["options"].get("mend")]
    lossy = [r for r in rows if r["kind"] == "lossy" and r["claim"] == "lossy"]
    if faults := [r for r in judged if is_fault(r)]:
        return "lossy", f"lossy in {len(faults)} of {len(judged)} setting{'s' * (len(judged) > 1)}"
    if lossy and not judged:
        return "lossy", "lossy by design"
    worst = max(judged or rows, key=lambda r: (ORDER.index(r["kind"]), r.get("verdict", {}).get("bound") or 0))
    words = describe_verdict(worst)
    levels = {r["level"] for r in rows}
    words = words if "sampler" in levels else f"{min(levels)}: {words}"
    return "inconclusive" if worst["kind"] == "not run" else worst["kind"], words


def format_accepted(row: dict[str, Any]) -> str:
    if row.get("drafted") is None:
        return ""
    return f"{row['accepted']:,} of {row['drafted']:,}"


def format_sequences(row: dict[str, Any]) -> str:
    return ", ".join(f"{n:,}" for n in row.get("n") or [])


def write_sentences(rows: list[dict[str, Any]]) -> list[str]:
    """Write sentences that sum up all rows that count."""
    ran = [r for r in rows if is_counted(r)]
    names = {find_project(r) for r in ran}
    right = [r for r in ran if r["kind"] in ("certified", "consistent")]
    faults = [r for r in ran if is_fault(r)]
    design = [r for r in ran if r["kind"] == "lossy" and r["claim"] == "lossy"]
    projects = len({find_project(r) for r in faults})
    parts = []
    for kind in ("certified", "consistent"):
        bounds = [r["verdict"]["bound"] for r in right if r["kind"] == kind]
        known = [bound for bound in bounds if bound is not None]
        ends = f", to within a TV of {min(known):.3f} to {max(known):.3f}" if known else ""
        parts.append(
            f"{len(bounds)} {kind}{ends}" + f" ({len(bounds) - len(known)} without)" * (len(known) < len(bounds))
        )
    result = [
        f"{len(names)} public implementations of fast sampling were run in {len(ran)} settings: in {len(right)} "
        f"nothing was found that tells their samples from the model's distribution ({'; '.join(parts)}); lossy by"
        f" design: {len(design)}. "
        f"{len(rows) - len(ran)} further rows have the faults fixed, by us, are of older versions, or gave no verdict."
    ]
    if faults:
        result.append(
            f"In {len(faults)} settings, of {projects} projects, a function that should be lossless is not; each was "
            "rejected on two seeds at a level of .05, and its reproduce.py shows the fault. An interval may begin at "
            "0: its lower end is conservative, the tests that reject are more sensitive. Nothing in the releases of"
            " EAGLE and LANTERN was found to call theirs."
        )
    else:
        result.append("No implementation that claims to be lossless was found to be lossy.")
    result.append(
        "Nothing here speaks of a model's quality or of speed, and a certified row speaks of its setting alone."
    )
    result.append(
        "They were chosen by no list: we took the speculative samplers that we found and could run without a GPU, of"
        " papers, packages and engines, nearly all for text. Copies of EAGLE's function were looked for once its fault"
        " was known. So the shares are of these implementations, not of the field."
    )
    return result


def count_rows(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Count what README says of the field, by name: implementations, settings, and those that are lossy unawares."""
    ran = [r for r in rows if is_counted(r)]
    faults = [r for r in ran if is_fault(r)]
    copies = [r for r in faults if COPIED in r["of"]["where"]]
    counts = {"implementations": {find_project(r) for r in ran}, "settings": ran, "lossy settings": faults}
    counts |= {"lossy projects": {find_project(r) for r in faults}, "settings of copies": copies}
    counts |= {"projects of copies": {find_project(r) for r in copies}}
    counts |= {"settings without a finding": [r for r in ran if r["kind"] in ("certified", "consistent")]}
    return {name: len(counted) for name, counted in counts.items()}


def list_facts(row: dict[str, Any]) -> list[tuple[str, str]]:
    """List the facts that a row opens to on the page, as pairs of a name and a text that is not empty."""
    one, result = row["of"], []
    options = ", ".join(f"{k} = {v}" for k, v in row["options"].items()) or "defaults"
    result.append(("Setting", options))
    if row.get("error"):
        result += [("Why not", row["error"]), ("Log", row["log"])]
    if "verdict" in row:
        v = row["verdict"]
        result += [("Verdict", v["reason"]), ("Tested", "; ".join(v["tested"]))]
        result += [("Not tested", "; ".join(v["untested"])), ("Sequences", format_sequences(row))]
        result.append(("Seeds", ", ".join(map(str, row["seeds"]))))
        result.append(("Drafts accepted", format_accepted(row) or "not told"))
        if row.get("detectable"):
            result.append(("Would be found", f"a total variation of {row['detectable']:.3f} or more"))
        controls = row["controls"]
        result.append(
            (
                "Controls",
                f"a correct sampler: {controls['right']}; this one, told other distributions: {controls['wrong']}",
            )
        )
    result += [("Minutes", f"{row['minutes']:g}"), ("Run", one["date"]), ("Obtained", ", ".join(one["packages"]))]
    result.append(("Repository", f"{one['repository']} at {one['commit']}" if one["repository"] else ""))
    result += [("Note", one["note"]), ("How it was called", one["setup"])]
    if is_fault(row):
        reproduction = one["reproduction"]
        shows = "shows the fault" if reproduction.get("shows") else "does not show the fault"
        result += [("Where", one["where"])]
        if reproduction:
            result.append(("Reproduction", f"field/{one['name']}/reproduce.py {shows}: {reproduction['prints']}"))
    result.append(("Again", f"snakemake -s field/Snakefile --cores all --config only={one['name']}"))
    return [(k, x) for k, x in result if x]


def format_badge(rows: list[dict[str, Any]], one: dict[str, Any]) -> str:
    """Write the item of one implementation: its name, which leads to its first row, its version and its badge."""
    badge = draw_badge(*sum_up([r for r in rows if r["of"]["name"] == one["name"]]))
    link = f"<a href='#{escape(one['name'])}'>{escape(one['title'])}</a>"
    return f"<li>{link} <span class='note'>{escape(describe_version(one))}</span>{badge}</li>"


def format_filter(key: str, values: tuple[str, ...]) -> str:
    """Write a choice of one value, or of all."""
    choices = "".join(f"<option value='{value}'>{value}</option>" for value in values)
    return f"<label>{key}<select id='{key}'><option value=''>all</option>{choices}</select></label>"


def write_page(rows: list[dict[str, Any]]) -> str:
    """Write the rows as one self-contained page of HTML, which can be filtered, and with JavaScript searched and
    sorted."""
    heads = ("Implementation", "Version", "Released", "Level", "Claim", "Verdict", "Drafts", "Run")
    head_cells = "".join(f"<th tabindex='0'>{h}</th>" for h in heads)
    body, faulty = "", {r["of"]["name"] for r in rows if is_fault(r)}
    badges: dict[str, str] = {}
    for r in rows:
        one = r["of"]
        inner = "".join(f"<dt>{escape(k)}</dt><dd>{escape(x)}</dd>" for k, x in list_facts(r))
        inner = f"<dl>{inner}</dl>"
        if is_fault(r) or one["name"] not in faulty:  # a report on one without a fault answers those who suspect one
            files = [FIELD / one["name"] / name for name in ("reproduce.py", "report.md")]
            inner += "".join(f"<pre>{escape(f.read_text())}</pre>" for f in files if f.is_file())
        title = escape(f"{one['title']}: {r['case']}")
        sort = f"{ORDER.index(r['kind'])}{int(r['claim'] != 'lossless')}"
        place = f" id='{escape(one['name'])}'" if one["name"] not in badges else ""
        badges.setdefault(one["name"], format_badge(rows, one))
        values = {"verdict": r["kind"], "level": r["level"], "claim": r["claim"]}
        data = "".join(f" data-{key}='{escape(value)}'" for key, value in values.items())
        body += f"<tr{place}{data}><td><details><summary>{title}</summary>{inner}</details></td>"
        body += "".join(f"<td>{escape(x)}</td>" for x in (find_version(one), one["released"], r["level"], r["claim"]))
        body += f"<td data-sort='{sort}' class='{r['kind'].replace(' ', '-')}'>{escape(describe_verdict(r))}</td>"
        body += f"<td>{format_accepted(r)}</td><td>{escape(one['date'])}</td></tr>\n"
    intro = "".join(f"<p>{escape(s)}</p>" for s in write_sentences(rows))
    limits = re.sub(r"\*(\w+)\*", r"<em>\1</em>", escape(NOT_SAID))
    head = "<!doctype html><html lang='en'><meta charset='utf-8'><title>The field, judged</title>"
    head += f"<style>{STYLE}</style><h1>Which public implementations draw from the model's distribution?</h1>"
    form = "".join(format_filter(key, values) for key, values in FILTERS.items())
    form += "<label hidden>search<input type='search' id='find'></label><output></output>"
    listed = "".join(badges[name] for name in sorted(badges, key=lambda name: badges[name].lower()))
    listed = f"<h2>Implementations</h2><ul>{listed}</ul><h2>Settings</h2><form>{form}</form>"
    table = f"<table><thead><tr>{head_cells}</tr></thead><tbody>{body}</tbody></table>"
    limits = f"<h2>What “certified” does not say</h2><p>{limits}</p>"
    return f"{head}{intro}{listed}{table}{limits}<script>{SCRIPT}</script></html>\n"


RUN_ON = "Run on two cores (machine not recorded), {first} to {last}; verdicts are kept since commit 7bc9d5aa."
SHOWN = ("implementation", "case", "version, released", "TV, 95 % interval")  # on the page
CALLED = {
    "sampler": "A sampler was called:",
    "verifier": "A verifier was called alone:",
    "design": "A sampler was called, under the certifier's own conditions:",
}
ROW_HEADS = ("implementation", "case", "version", "released", "kind", "verdict", "sequences", "drafts accepted", "run")


def list_cells(row: dict[str, Any]) -> list[str]:
    """List the cells of a row of Markdown, under SHOWN."""
    one = row["of"]
    name = f"[{one['title']}]({one['url']})" if one["url"] else one["title"]
    size = describe_verdict(row).replace("lossy by design, TV", "by design,").replace("lossy, TV ", "")
    return [name, f"`{row['case']}`", describe_version(one), size]


def list_copies(copies: list[dict[str, Any]]) -> list[list[str]]:
    """List the row of the function that several projects copied: their names, and the range of their TVs; [] for no
    copies."""
    if not copies:
        return []
    names = ", ".join(dict.fromkeys(r["of"]["title"] for r in copies))
    sizes = [r["verdict"]["estimate"] for r in copies]
    size = f"{min(sizes):.3f} to {max(sizes):.3f}, without their intervals"
    return [[names, f"[a function of EAGLE](eagle.md), copied, in {len(copies)} settings", "", size]]


def format_rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Format a table of Markdown, a line a row."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return [*lines, *("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows)]


def sum_up_right(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Sum up the settings in which nothing was found: names and versions of the implementations that have the same
    number of settings and the same largest bound, and the two."""
    right = [r for r in rows if r["kind"] in ("certified", "consistent") and is_counted(r)]
    named: dict[tuple[int, str], list[str]] = {}
    for name in dict.fromkeys(r["of"]["name"] for r in right):
        of_name = [r for r in right if r["of"]["name"] == name]
        one = of_name[0]["of"]
        bounds = [r["verdict"]["bound"] for r in of_name if r["verdict"]["bound"] is not None]
        title = f"[{one['title']}]({one['url']})" if one["url"] else one["title"]
        limit = f"{max(bounds):.3f}" if bounds else "none"
        named.setdefault((len(of_name), limit), []).append(f"{title} {find_version(one)}".strip())
    return [[", ".join(names), str(count), limit] for (count, limit), names in named.items()]


def write_rows(rows: list[dict[str, Any]], file: Path) -> None:
    """Write all rows as CSV, under ROW_HEADS: what the page shows, and on which sequences and when."""
    with file.open("w", newline="", encoding="utf-8") as lines:
        table = csv.writer(lines, lineterminator="\n")
        table.writerow(("address", *ROW_HEADS))
        for r in rows:
            one = r["of"]
            cells = [one["url"], one["title"], r["case"], find_version(one), one["released"], r["level"]]
            table.writerow([*cells, describe_verdict(r), format_sequences(r), format_accepted(r), one["date"]])


def write_document(rows: list[dict[str, Any]]) -> str:
    """Write the text of docs/results/field.md."""
    dates = [r["of"]["date"] for r in rows]
    lines = ["# The field, judged", "", "Which public implementations draw from the model's distribution? Written by"]
    lines += ["`python field/page.py` of the verdicts in `field/`; how to add one: `field/README.md`.", ""]
    lines += [RUN_ON.format(first=min(dates), last=max(dates)), ""]
    lines += [f"- {s}" for s in write_sentences(rows)]
    lines += ["", "## Lossy", ""]
    lines += ["All rows, those of older versions too, their sequences, accepted drafts and dates:"]
    lines += ["[field-rows.csv](../figures/field-rows.csv)."]
    copies = [r for r in rows if is_fault(r) and COPIED in r["of"]["where"]]
    kinds = ("lossy", "inconclusive", "not run")
    shown = [r for r in rows if r["kind"] in kinds and not r["of"]["older"] and r not in copies]
    for level in sorted({r["level"] for r in (*shown, *copies)}, key=LEVELS.index):
        cells = [list_cells(r) for r in shown if r["level"] == level]
        cells += list_copies([r for r in copies if r["level"] == level])
        title = CALLED.get(level, f"By `level: {level}` of field/README.md:")
        lines += ["", title, "", *format_rows(SHOWN, cells)]
    lines += ["", "## Nothing found", ""]
    lines += ["Without settings fixed by us and older versions. The bound of each setting is in the CSV file.", ""]
    lines += format_rows(("implementations", "settings of each", "largest bound on the TV"), sum_up_right(rows))
    faults = [r for r in rows if is_fault(r)]
    lines += ["", "## Lossy, where they should be lossless", ""] if faults else []
    if faults:
        lines += [
            "`python field/NAME/reproduce.py` shows a fault in some 30 lines, `field/NAME/report.md` says the fix, and",
            "`field/NAME/field.yaml` its place (`where`) and how it was called (`setup`). With the fix, where there is",
            'one, nothing was found (rows "fixed" of the CSV file). The fault of an older version is its `note`; most',
            "are among [others' bug reports](reports.md), too.",
            "",
        ]
    told = [r for r in faults if COPIED not in r["of"]["where"] and not r["of"]["older"]]
    for name in dict.fromkeys(r["of"]["name"] for r in told):
        one = next(r["of"] for r in faults if r["of"]["name"] == name)
        lines.append(f"- **{one['title']}.** {one['note'] or one['where']}".rstrip())
    silent = [r for r in rows if r["kind"] == "not run" or r["error"]]
    lines += ["", "## What gave no verdict", ""] if silent else []
    lines += [f"- {r['of']['title']}, {r['case']}: {r['error']}" for r in silent]
    lines += ["", '## What "certified" does not say', "", NOT_SAID, "", "## Again", "", "```"]
    lines += ["snakemake -s field/Snakefile --cores all  # everything: hours, and tens of GB of environments"]
    lines += ["snakemake -s field/Snakefile --cores all --config only=mlx-lm  # one of them", "```", ""]
    return "\n".join(lines)


def draw_copies(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw the SVG `file`: the TV that was measured of each copy of EAGLE's `evaluate_posterior` at its temperature,
    with its interval, and the upper bound once the line is fixed."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    copies = [r for r in rows if is_fault(r) and COPIED in r["of"]["where"]]
    fixed = {
        (r["of"]["name"], r["options"].get("part"), r["options"]["temperature"]): r["verdict"]["bound"]
        for r in rows
        if r["options"].get("mend") and r["kind"] == "certified" and "temperature" in r["options"]
    }
    copies.sort(key=lambda r: (r["verdict"]["estimate"], r["of"]["title"].lower()))
    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.3 * len(copies)), layout="constrained")
    labels = []
    for y, r in enumerate(copies):
        v, options = r["verdict"], r["options"]
        axes.plot(v["interval"], [y, y], color=COLOURS["lossy"], linewidth=2)
        axes.plot(v["estimate"], y, "o", color=COLOURS["lossy"], label="" if y else "as released, 95 % interval")
        bound = fixed.get((r["of"]["name"], options.get("part"), options["temperature"]))
        if bound is not None:
            label = "" if "fixed: at most" in axes.get_legend_handles_labels()[1] else "fixed: at most"
            axes.plot(bound, y, "<", color=COLOURS["certified"], label=label)
        part = f", {options['part']}" if "part" in options else ""
        labels.append(f"{r['of']['title']}{part}, temperature {options['temperature']:g}")
    axes.set(yticks=range(len(copies)), yticklabels=labels, xlim=(0, None), xlabel="TV from the target distribution")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    with matplotlib.rc_context({"svg.hashsalt": "eagle"}):
        figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def keep_verdict(name: str) -> None:
    """Copy a verdict that was made here into the folder of the repository."""
    shutil.copyfile(RESULTS / name / "verdict.json", FIELD / name / "verdict.json")


def main() -> None:
    """Write the page, or with --keep copy verdicts and write docs/results/field.md, docs/eagle.svg and the tables
    docs/figures/field*.csv anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the page")
    parser.add_argument("--keep", nargs="*", metavar="NAME", help="verdicts to copy; docs/results/field.md is written")
    a = parser.parse_args()
    if a.keep is not None:
        for name in a.keep:
            keep_verdict(name)
        rows = read_rows(list_verdict_files(kept_only=True))
        docs = FIELD.parent / "docs"
        (docs / "results/field.md").write_text(write_document(rows), encoding="utf-8")
        lines = ["label,count", *(f"{name},{count}" for name, count in count_rows(rows).items())]
        (docs / "figures").mkdir(exist_ok=True)
        draw_copies(rows, docs / "eagle.svg")
        write_rows(rows, docs / "figures/field-rows.csv")
        (docs / "figures/field.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if a.out:
        a.out.parent.mkdir(parents=True, exist_ok=True)
        a.out.write_text(write_page(read_rows(list_verdict_files(kept_only=False))), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except FieldError as error:
        sys.exit(f"error: {error}")
