"""The recall table: public reports of samplers with a wrong distribution, and what one default command finds of each.

    PARITY_FIELD=field/reports python field/frame.py environment NAME --out results/reports/NAME/environment.json
    PARITY_FIELD=field/reports python field/frame.py judge NAME --environment results/reports/NAME/environment.json \
        --out results/reports/NAME/verdict.json
    python field/reports/page.py --keep results/reports/NAME/verdict.json     writes the page anew

`reports.yaml` lists the reports; the folder of one that was run has field.yaml and adapter.py, as those of field/, with
cases of level `design`. The case `default` is the report's version; any other is a correct control. The models are made
by `python field/frame.py models`. The page is docs/results/reports.md.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/results/reports.md"
KEPT = ("case", "verdict", "controls", "seconds", "n", "drafted", "accepted", "error")


def keep_verdict(file: Path) -> None:
    """Copy what the page needs of a verdict.json into the report's folder."""
    verdict = json.loads(file.read_text(encoding="utf-8"))
    kept = {key: verdict[key] for key in ("name", "date", "packages", "repository", "commit")}
    kept["rows"] = [{key: row.get(key) for key in KEPT} for row in verdict["rows"]]
    text = json.dumps(kept, indent=1, sort_keys=True) + "\n"
    (HERE / verdict["name"] / "verdict.json").write_text(text, encoding="utf-8")


def read_reports() -> list[dict[str, Any]]:
    """Read the reports, each with the rows of its verdict.json ([] for one that was not run)."""
    reports = yaml.safe_load((HERE / "reports.yaml").read_text(encoding="utf-8"))
    for one in reports:
        file = HERE / one["name"] / "verdict.json"
        one["rows"] = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
        one.setdefault("expect", "lossy")
    return reports


def describe_row(row: dict[str, Any]) -> tuple[str, str, str]:
    """Describe a row's verdict, its condition, and its sequences on each seed."""
    if row["error"]:
        return "none", row["error"].partition(";")[0], ""
    v = row["verdict"]
    condition = v["where"].partition(", prompt [")[0] if v["kind"] == "lossy" else ""
    return v["words"], condition, " + ".join(map(str, row["n"]))


def is_found(row: dict[str, Any]) -> bool:
    """Return whether a row is lossy, by a harness whose controls came out as they must."""
    return not row["error"] and row["verdict"]["kind"] == "lossy"


def write_document(reports: list[dict[str, Any]]) -> str:
    """Write the text of docs/results/reports.md."""
    run = [one for one in reports if one["rows"]]
    faults = [one for one in run if one["expect"] == "lossy"]
    found = [one for one in faults if is_found(one["rows"][0])]
    controls = [row for one in run for row in one["rows"][1:]]
    rejected = sum(is_found(row) for row in controls)
    missed = ", ".join(one["name"] for one in faults if one not in found) or "none"
    lines = [
        "# Others' bug reports",
        "",
        "Public reports that a fast sampler draws from the wrong distribution, at the",
    ]
    lines += ["version that had the fault, put to one default command with no condition named. Written by"]
    lines += ["`python field/reports/page.py` of `field/reports/`.", ""]
    lines += [f"- Found: {len(found)} of {len(faults)} that were run. Missed: {missed}."]
    lines += [
        f"- Correct controls rejected: {rejected} of {len(controls)}: the same engine without drafts, or with fewer."
    ]
    lines += ["- All were known while the conditions were chosen: this is no recall on reports that nobody has seen."]
    lines += ["- A control with few sequences ran on a busy machine, whose time was used up: it says little."]
    lines += [f"- Of {len(reports)} reports listed, {len(reports) - len(run)} were not run.", ""]
    lines += ["| report | version | fault | verdict | where it differs | sequences |", "|---|---|---|---|---|---|"]
    for one in run:
        for row in one["rows"]:
            words, condition, n = describe_row(row)
            case = "" if row["case"] == "default" else f", {row['case'].removeprefix('default, ')}"
            kind = one["kind"] if not case else "control"
            link = f"[{one['name']}]({one['report']}){case}"
            lines.append(f"| {link} | {one['version']} | {kind} | {words} | {condition} | {n} |")
    lines += ["", "## Not run", "", "| report | version | fault | why |", "|---|---|---|---|"]
    for one in reports:
        if not one["rows"]:
            lines.append(
                f"| [{one['name']}]({one['report']}) | {one['version']} | {one['kind']} | {one.get('why', 'not yet')} |"
            )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", nargs="*", type=Path, default=[], metavar="FILE")
    for file in parser.parse_args().keep:
        keep_verdict(file)
    PAGE.write_text(write_document(read_reports()), encoding="utf-8")
