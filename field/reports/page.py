"""The recall table: public reports of samplers with a wrong distribution, and what one default command finds of each.

    snakemake -s field/Snakefile reports    runs them all (only=NAME: one), and writes results/field/reports/reports.md
    python field/reports/page.py --keep results/field/reports/NAME/verdict.json ...
                                        keeps verdicts here, and writes docs/results/reports.md of all that are kept

`reports.yaml` lists the reports; the folder of one that was run has field.yaml and adapter.py, as those of field/. The
case `default` is the report's version; any other is a correct control, on a second seed where its name ends so.
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from frame import LARGEST  # noqa: E402

PAGE = HERE.parents[1] / "docs/results/reports.md"
COUNTS = HERE.parents[1] / "docs/figures/reports.csv"  # that other pages cite
KEPT = ("case", "verdict", "controls", "seconds", "n", "drafted", "accepted", "error")
AGAIN = ", second seed"


def keep_verdict(file: Path) -> None:
    """Copy what the page needs of a verdict.json into the report's folder."""
    verdict = json.loads(file.read_text(encoding="utf-8"))
    kept = {key: verdict[key] for key in ("name", "date", "packages", "repository", "commit")}
    kept["name"] = Path(verdict["name"]).name
    kept["rows"] = [{key: row.get(key) for key in KEPT} for row in verdict["rows"]]
    text = json.dumps(kept, indent=1, sort_keys=True) + "\n"
    (HERE / kept["name"] / "verdict.json").write_text(text, encoding="utf-8")


def read_reports(results: Path) -> list[dict[str, Any]]:
    """Read the reports, each with the rows of its verdict.json in a folder ([] for one that was not run), which say
    whether field.yaml sets their sequences, why it was not run, and whether the function was called outside of its
    package (`borrowed`)."""
    reports = yaml.safe_load((HERE / "reports.yaml").read_text(encoding="utf-8"))
    for one in reports:
        file = results / one["name"] / "verdict.json"
        one["rows"] = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
        if one["rows"] and (error := one["rows"][0].get("error")):
            one |= {"rows": [], "why": error.partition(";")[0]}
        one.setdefault("expect", "lossy")
        adapter = HERE / one["name"] / "adapter.py"
        one["lifted"] = adapter.exists() and "import borrowed\n" in adapter.read_text(encoding="utf-8")
        about = HERE / one["name"] / "field.yaml"
        cases = yaml.safe_load(about.read_text(encoding="utf-8"))["cases"] if one["rows"] else {}
        for row in one["rows"]:
            row["is_set"] = "n" in (cases[row["case"]] or {})
    return reports


def is_found(row: dict[str, Any]) -> bool:
    """Return whether a row is lossy."""
    return not row.get("error") and row["verdict"]["kind"] == "lossy"


def list_controls(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the rows of controls, which must not be rejected."""
    return [row for one in reports if one["expect"] == "lossy" for row in one["rows"][1:]]


def split_remade(reports: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split the reports into those that were run as they were published, and those that were remade in our own code."""
    return [one for one in reports if not one.get("remade")], [one for one in reports if one.get("remade")]


def count_distinct(controls: list[dict[str, Any]]) -> int:
    """Count the samples of controls: two that have the same bound, to twelve digits, and as many sequences are one
    sample, which the same generator and seed drew."""
    verdicts = [row["verdict"] for row in controls if not row.get("error")]
    return len({(f"{verdict['bound'] or math.nan:.12f}", str(verdict.get("n"))) for verdict in verdicts})


def bound_rate(rejected: int, n: int) -> float:
    """Bound the rate of rejections from above with 95 % confidence (Clopper-Pearson), given `rejected` of n."""
    return float(stats.beta.ppf(0.95, rejected + 1, n - rejected)) if rejected < n else 1.0


def list_faults(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the reports of faults, not mistaken ones, that were run."""
    return [one for one in reports if one["rows"] and one["expect"] == "lossy"]


def count_lifted(reports: list[dict[str, Any]]) -> int:
    """Count the faults of which the reported function alone was run."""
    return sum(bool(one.get("lifted")) for one in list_faults(reports))


def list_missed(reports: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """List the faults that were not found when they were run for the first time, and count those that were run: a
    report that says why it was `missed` stays so."""
    faults = list_faults(reports)
    return [one for one in faults if "missed" in one or not is_found(one["rows"][0])], len(faults)


def count_found(reports: list[dict[str, Any]]) -> str:
    """Say how many of the reports that were run were found, and which were not, and why."""
    missed, run = list_missed(reports)
    names = [f"{one['name']} ({one.get('missed', 'unknown why')})" for one in missed]
    return f"{run - len(missed)} of {run} that were run. Missed: {', '.join(names) or 'none'}."


def write_counts(reports: list[dict[str, Any]]) -> str:
    """Write what other pages cite as CSV: of reports that we had not read while conditions were chosen, and of
    controls."""
    reports, remade = split_remade(reports)
    unseen = [one for one in reports if one.get("unseen")]
    missed, run = list_missed(unseen)
    remade_missed, remade_run = list_missed(remade)
    controls = list_controls(reports)
    rejected, distinct = sum(map(is_found, controls)), count_distinct(controls)
    counts = {
        "unseen run": run,
        "unseen found": run - len(missed),
        "unseen run as a function alone": count_lifted(unseen),
        "unseen not run": sum(not one["rows"] for one in unseen),
        "controls rejected": rejected,
        "distinct controls": distinct,
        "percent of controls at most": math.ceil(1000 * bound_rate(rejected, distinct)) / 10,
        "remade run": remade_run,
        "remade found": remade_run - len(remade_missed),
    }
    return "".join(f"{label},{count}\n" for label, count in [("label", "count"), *counts.items()])


def write_summary(reports: list[dict[str, Any]]) -> list[str]:
    """Write the figures above the tables."""
    seen, unseen = ([one for one in reports if bool(one.get("unseen")) == asked] for asked in (False, True))
    controls = list_controls(reports)
    distinct, rejected = count_distinct(controls), sum(map(is_found, controls))
    most = math.ceil(1000 * bound_rate(rejected, distinct)) / 10
    n_left_out = sum(not one["rows"] for one in unseen)
    again = [row for row in controls if row["case"].endswith(AGAIN)]
    mistaken = [one for one in reports if one["rows"] and one["expect"] != "lossy"]
    rightly = sum(not any(map(is_found, one["rows"])) for one in mistaken)
    return [
        f"- Known while the conditions were chosen: {count_found(seen)}",
        f"- Not read by us before, and listed before any was run: {count_found(unseen)} Not run: {n_left_out}.",
        f"  Of {count_lifted(unseen)} of them the reported function alone was run.",
        f"- Correct controls rejected: {rejected} of {distinct} distinct samples, so at most {most} %",
        f"  (95 % confidence): {len(controls)} runs of {len(controls) - len(again)} controls, {len(again)} on 2 seeds.",
        "  Runs with the same bound to twelve digits drew the same sequences. A control is that code without drafts,",
        "  or without the fault. Its second seed is left out below unless it was rejected. One with a large bound had",
        "  few sequences, by its field.yaml or because a busy machine's time was used up: it says little.",
        f"- Mistaken reports that were not rejected: {rightly} of {len(mistaken)}.",
        "- Reports known before, mlx-lm-1109, vllm-ascend-13470, sglang-jax-1563 and flash-attention-2779 were judged",
        "  without the condition that was added.",
        "- (set): its field.yaml names the sequences, since a call is slow. Others: `field/reports/NAME/verdict.json`.",
    ]


def round_up(bound: float) -> str:
    """Write a bound with three decimals, never a smaller one."""
    return f"{math.ceil(1000 * bound) / 1000:.3f}"


def is_shown(row: dict[str, Any]) -> bool:
    """Return whether a row is in the tables: the second seed of a control is not, unless it is rejected."""
    return bool(row.get("error")) or is_found(row) or not row["case"].endswith(AGAIN)


def describe_verdict(row: dict[str, Any]) -> tuple[str, str]:
    """Return a row's verdict in words, and the condition in which it differs."""
    if error := row.get("error"):
        return "none", error.partition(";")[0]
    v = row["verdict"]
    words, condition = v["words"].replace(": TV = ", ", TV "), ""
    if v["kind"] == "lossy":
        condition = re.sub(r"(, length \d+)?, prompt .*", "", v["where"])
    if v["kind"] == "lossy" and v["estimate"] is None and not v.get("dependent"):  # distributions were compared
        words, condition = "lossy", v["reason"]
    elif v["kind"] == "certified" and v["bound"] > LARGEST:
        words = "consistent"
    if v["kind"] != "lossy" and v["bound"] is not None:
        words += f", TV ≤ {round_up(v['bound'])}"
    return words.replace("certified lossless", "certified"), condition


def describe_row(one: dict[str, Any]) -> str:
    """Write the line of a report: its fault, the verdict and condition, and its controls."""
    row, *controls = one["rows"]
    words, condition = describe_verdict(row)
    words += " (set)" * bool(row.get("is_set"))
    kind = one["kind"] + (" (mistaken)" if one["expect"] != "lossy" else "")
    shown = [
        f"{c['case'].removeprefix('default, ')}: {describe_verdict(c)[0]}" + " (set)" * bool(c.get("is_set"))
        for c in controls
        if is_shown(c)
    ]
    named = f"[{one['name']}]({one['report']}), {one['version']}"
    cells = [named, kind, words, condition, "; ".join(shown)]
    return f"| {' | '.join(cells)} |"


def describe_remade(one: dict[str, Any]) -> str:
    """Write the line of a remade report: its verdict, and the verdict on it without the fault."""
    row, *fixed = one["rows"]
    kind = one["kind"] + (" (mistaken)" if one["expect"] != "lossy" else "")
    words, where = describe_verdict(row)
    correct = ", ".join(describe_verdict(one)[0] for one in fixed)
    cells = [f"[{one['name']}]({one['report']})", kind, words, where, correct]
    return f"| {' | '.join(cells)} |"


def write_remade(remade: list[dict[str, Any]]) -> list[str]:
    """Write the section of the reports that were remade in our own code; [] if there are none."""
    if not remade:
        return []
    missed, run = list_missed(remade)
    mistaken = [one for one in remade if one["rows"] and one["expect"] != "lossy"]
    rightly = sum(not any(map(is_found, one["rows"])) for one in mistaken)
    lines = ["", "## Engines' speculative code, remade", ""]
    lines += [
        "EAGLE and MTP code of engines, on GPUs, on Apple's chips or in Rust, whose reports were read as summaries and",
        "remade in numpy (`field/remade.py`): this says whether such a fault is found, nothing of the engine. The",
        "rule that chose ten is in reports.yaml; listed at commit a36e435f, remade at 9d5aa980 and run once, by",
        "default, on 2026-11-29 on one core of a busy machine with two (AMD EPYC). One of those found,",
        "sglang-36173, has the fault for which a condition was added after mlx-lm-388 was missed (0758d151).",
        "",
        f"- Found: {run - len(missed)} of {run}. Mistaken reports not rejected: {rightly} of {len(mistaken)}.",
        *[f"- Missed: {one['name']}: {one.get('missed', 'unknown why')}." for one in missed],
        "",
        "| report | fault | verdict | where it differs | without the fault |",
        "|---|---|---|---|---|",
    ]
    return lines + [describe_remade(one) for one in remade if one["rows"]]


def write_document(reports: list[dict[str, Any]]) -> str:
    """Write the text of the page."""
    reports, remade = split_remade(reports)
    lines = [
        "# Others' bug reports",
        "",
        "Public reports that a sampler draws from the wrong distribution, at the",
        "version that had the fault, mostly as functions lifted out of it, tested at default settings. Written by",
        "`python field/reports/page.py` of `field/reports/`. Run on 2026-11-27 on two cores,",
        "machine not recorded, after the reports were listed at commits 9c884ae7 and 8b32feec.",
        "",
        *write_summary(reports),
    ]
    head = [
        "",
        "| report, version | fault | verdict | where it differs | correct control |",
        "|---|---|---|---|---|",
    ]
    for title, asked in (("Known while the conditions were chosen", False), ("Not read by us before", True)):
        asked_for = [one for one in reports if bool(one.get("unseen")) == asked]
        rows = [describe_row(one) for one in asked_for if one["rows"]]
        lines += ["", f"## {title}", *head, *rows]
    lines += write_remade(remade)
    lines += ["", "## Not run", ""]
    reasons: dict[str, list[str]] = {}
    for one in reports:
        if not one["rows"]:
            named = f"[{one['name']}]({one['report']}) ({one['kind']})"
            reasons.setdefault(one.get("why", "not yet"), []).append(named)
    lines += [f"- {'; '.join(named)}: {why}." for why, named in reasons.items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", nargs="*", type=Path, default=[], metavar="FILE")
    parser.add_argument("--results", type=Path, default=HERE, help="the folder of the verdicts; default: those kept")
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    for file in arguments.keep:
        keep_verdict(file)
    reports = read_reports(arguments.results)
    arguments.out.write_text(write_document(reports), encoding="utf-8")
    if arguments.out == PAGE:
        COUNTS.write_text(write_counts(reports), encoding="utf-8")
