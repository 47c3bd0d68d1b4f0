"""Write what is generated from the code: the reference pages, docs/reference/*.md, and the JSON schema of config.yaml,
for editors. With --check only name the first that is out of date.

python docs/reference.py [--check]
"""

import argparse
import csv
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from parity.base.console import PACKAGE, list_commands
from parity.experiment import made, papers
from parity.experiment.module_metadata import read_outline
from parity.experiment.options import KINDS, declaration, find_plain_method, make_option_schema, methods
from parity.experiment.schema import Config, ModelSpec
from parity.experiment.study import list_speeds, metrics
from parity.experiment.tuned import AUTO
from parity.report.account import make_account
from parity.report.settings import explain_decoder

FOLDER = Path(__file__).parent / "reference"
MADE = "No decoder: tokens of the images, [made elsewhere](../howto/made-elsewhere.md)."
SCHEMA = Path(__file__).parents[1] / "workflow/schemas/config.schema.json"
EXPERIMENTS = Path(__file__).resolve().parents[1] / "workflow/experiments"
PUBLISHED = EXPERIMENTS.parent / "published"
TRIALS = Path(__file__).parent / "figures/trials.csv"
SETTINGS = EXPERIMENTS.parent / "settings"
TITLES = {"discrete": "Image tokens", "anysubset": "Text in any order", "continuous": "Vectors"}


def make_schema() -> dict[str, Any]:
    """Make the JSON schema of config.yaml, each method's options included."""
    top = Config.model_json_schema()
    for kind, section in KINDS.items():
        variants = {}
        for method in methods(kind):
            variant = make_option_schema(kind, method).model_json_schema()
            variant["description"] = read_outline(f"decoders/{kind}", method).doc
            variants[method] = {"type": "array", "items": variant, "minItems": 1}
        if kind == made.KIND:
            variant = make_option_schema(kind, made.MADE).model_json_schema()
            variants[made.MADE] = {"type": "array", "items": variant, "minItems": 1}
        variants[AUTO] = {"const": [{}], "description": "the fastest lossless method, as `parity tune` found it"}
        top["$defs"][f"{section.capitalize()}Section"]["properties"]["methods"] = {
            "type": "object", "properties": variants, "additionalProperties": False,
            "patternProperties": {r"\.py:": {"type": "array", "items": {"type": "object"}, "minItems": 1}},
            "required": [find_plain_method(kind)],
        }  # fmt: skip
    top["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return top


def format_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Write a Markdown table; "|" in cells is escaped."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines) + "\n"


def describe_allowed(p: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Describe the type and bounds of a property of a JSON schema in words."""
    if "$ref" in p:
        name = p["$ref"].rpartition("/")[2]
        named = definitions[name]
        return describe_allowed(named, definitions) if "enum" in named else f"[{name}](#{name.lower()})"
    if "anyOf" in p:
        return " or ".join(describe_allowed(one, definitions) for one in p["anyOf"])
    if "const" in p:
        return f"`{p['const']}`"
    if "enum" in p:
        return ", ".join(f"`{one}`" for one in p["enum"])
    if p.get("type") == "array" and "items" in p:
        return f"list of {describe_allowed(p['items'], definitions)}"
    if p.get("type") == "object" and isinstance(p.get("additionalProperties"), dict):
        return f"mapping of names to {describe_allowed(p['additionalProperties'], definitions)}"
    words = {
        "integer": "integer",
        "number": "number",
        "boolean": "true or false",
        "string": "text",
        "object": "mapping",
    }
    bounds = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    kind = words.get(p.get("type", ""), str(p.get("type", "any")))
    return " ".join([kind, *(f"{sign} {p[key]}" for key, sign in bounds if key in p)])


def describe_default(p: dict[str, Any]) -> str:
    """Write the default of a property of a JSON schema: "required" if it has none, and no value that is long."""
    if "default" not in p:
        return "required"
    short = json.dumps(p["default"], ensure_ascii=False)
    return f"`{short}`" if len(short) < 30 else "see its own table"


def write_configuration() -> str:
    """Write every key of a configuration, a table a level."""
    top = make_schema()
    definitions = top["$defs"] | {"ModelSpec": ModelSpec.model_json_schema()}
    top["properties"]["models"]["additionalProperties"] = {"$ref": "#/$defs/ModelSpec"}

    def keys(level: dict[str, Any]) -> str:
        """Write the table of one level's keys."""
        rows = [
            (
                f"`{name}`", "see [decoders](decoders.md)" if name == "methods" else describe_allowed(p, definitions),
                describe_default(p), " ".join(p.get("description", "").split()),
            )
            for name, p in level["properties"].items()
        ]  # fmt: skip
        return format_table(("key", "allowed", "default", "meaning"), rows)

    text = "# Configuration\n\nEvery key of an experiment file. A wrong key or value stops the run before any job.\n\n"
    text += keys(top)
    for name, level in definitions.items():
        if "properties" in level:
            text += f"\n## {name}\n\n{' '.join(level.get('description', '').split())}\n\n{keys(level)}"
    return text


def write_decoders() -> str:
    """Write every decoder with its claim, source and options."""
    top = make_schema()
    text = "# Decoders\n\n"
    text += "Claim: what is said of the distribution, and by whom. What was measured is on the page of a run.\n"
    for kind, section in KINDS.items():
        variants = top["$defs"][f"{section.capitalize()}Section"]["properties"]["methods"]["properties"]
        text += f"\n## {TITLES[kind]}: section `{section}`\n"
        for method in methods(kind):
            declared = declaration(kind, method)
            about = read_outline(f"decoders/{kind}", method).doc
            steps, meanings = explain_decoder(kind, method)
            properties = variants[method]["items"].get("properties", {})
            claim = declared.CLAIM + "".join(f", if `{k}: {json.dumps(v)}`" for k, v in declared.EXACT_WITH.items())
            of = {"paper": "", "account": "others' account of the paper", "project": "ours"}[declared.ORIGIN]
            claim += f" ({declared.MARK or of})" * bool(declared.MARK or of)
            needs = f" Needs: `{declared.NEEDS}`." if declared.NEEDS else ""
            text += f"\n### `{method}`\n\nClaim: {claim}. Source: {declared.SOURCE or 'this project'}.{needs}\n"
            text += f"\n{about}\n\n{steps}\n"
            rows = [
                (f"`{name}`", describe_allowed(p, top["$defs"]), describe_default(p), meanings.get(name, ""))
                for name, p in properties.items()
            ]
            text += f"\n{format_table(('option', 'allowed', 'default', 'meaning'), rows)}" if rows else ""
        if kind == made.KIND:
            of = variants[made.MADE]["items"]
            rows = [
                (f"`{name}`", describe_allowed(p, {}), describe_default(p), p.get("description", ""))
                for name, p in of["properties"].items()
            ]
            text += (
                f"\n### `{made.MADE}`\n\n{MADE}\n\n{format_table(('option', 'allowed', 'default', 'meaning'), rows)}"
            )
    return text


def write_metrics() -> str:
    """Write every metric with its column."""
    text = (
        "# Metrics\n\nEach is a column of `summary.csv`. `_se`, `_low` and `_high` are its standard error and interval"
    )
    text += " (95%); `_why` says why it is missing.\n"
    for kind, title in TITLES.items():
        rows = [
            (
                f"`{name}`",
                label,
                unit,
                {"up": "higher", "down": "lower"}.get(better, better.replace("none", "")),
                module,
            )
            for module, figures in {**metrics(kind), "`parity.tune.speed`": list_speeds(kind)}.items()
            for name, (label, unit, better) in figures.items()
        ]
        text += f"\n## {title}\n\n{format_table(('column', 'metric', 'unit', 'better', 'module'), rows)}"
    return text


def write_commands() -> str:
    """Write every command, from the first lines of its module."""
    text = "# Command line\n\n`parity COMMAND --help` lists the flags of a command. Snakemake's targets:\n\n"
    text += format_table(("command", "makes"), list_targets())
    for name in list_commands():
        source = (PACKAGE / name / "__main__.py").read_text(encoding="utf-8")
        about = inspect.cleandoc(source.split('"""')[1])
        text += f"\n## parity {name}\n\n```text\n{about}\n```\n"
    return text


def list_targets() -> list[tuple[str, ...]]:
    """List the commands in the head of the Snakefile, with what each makes."""
    head = (Path(__file__).parents[1] / "Snakefile").read_text(encoding="utf-8")
    return [(f"`{one[1]}`", one[2]) for one in re.finditer(r"^ {4}(snakemake .+?) {2,}(.+)$", head, re.MULTILINE)]


def map_tables() -> str:
    """Map each table and figure of a paper to the experiment files that make it, from the heads of the files."""
    experiments = sorted(papers.list_experiments(EXPERIMENTS), key=lambda one: one.file.stem)
    text = "# Tables and figures of the papers\n\nThe file of `workflow/experiments` that makes each ([how to run"
    text += " one](../howto/tables.md)).\n"
    for paper, title in papers.PAPERS.values():
        files_of: dict[str, tuple[list[str], list[str]]] = {}
        for one in (one for one in experiments if one.paper == paper):
            for reference in one.references:
                files_of.setdefault(reference, ([], []))[one.is_published].append(f"`{one.file.stem}`")
        rows = sorted(files_of.items(), key=lambda row: papers.make_natural_key(row[0]))
        cells = [(reference, ", ".join(small), ", ".join(published)) for reference, (small, published) in rows]
        text += f"\n## {title}\n\n{format_table(('', 'on the embedded models', 'on the networks of the paper'), cells)}"
    rest = [(f"`{one.file.stem}`", one.summary) for one in experiments if not one.paper]
    return text + f"\n## Of no paper\n\n{format_table(('file', 'runs'), rest)}"


def read_settings(folder: Path = SETTINGS) -> list[dict[str, str]]:
    """Read the rows of the tables of settings, workflow/settings/*.csv, the papers in the order of `papers.PAPERS`.

    paper, section, words   what a paper says, or of what it says nothing
    file                    names of experiment files, with * and [] as in a shell, separated by spaces
    key, value              the key of their configurations, defaults filled in, and its value as YAML. A * in the key
                            stands for every part of a list or mapping; of several values the distinct ones are a list
    equal                   yes, no, or unprinted; then `why` gives the reason
    """
    tables = (csv.DictReader(file.open(encoding="utf-8", newline="")) for file in sorted(folder.glob("*.csv")))
    return sorted((row for table in tables for row in table), key=lambda row: list(papers.PAPERS).index(row["paper"]))


def write_settings() -> str:
    """Write each setting of the papers beside ours, a table a paper."""
    text = (
        "# Settings of the papers\n\nWhat a paper says, the key and value of the files that repeat it, and, where they"
    )
    text += " are not equal or the paper prints nothing, why. A test compares each row with its files.\n"
    rows = read_settings()
    for paper, (_, title) in papers.PAPERS.items():
        cells = [
            (row["section"], row["words"], ", ".join(f"`{name}`" for name in row["file"].split()),
             f"`{row['key']}: {row['value']}`", ". ".join(filter(None, (row["equal"], row["why"]))))
            for row in rows if row["paper"] == paper
        ]  # fmt: skip
        if cells:
            text += f"\n## {title}\n\n{format_table(('where', 'the paper', 'files', 'ours', 'equal'), cells)}"
    return text


def write_account(made: Any) -> str:
    """Write which files make the printed numbers of each table, the reasons of those that none makes, and of how many
    the last trials had a number of ours."""
    text = (
        "# Printed numbers\n\nEach number in `workflow/published`, with the experiment file that makes it or the reason"
    )
    text += (
        " that none does: [account.csv](account.csv). It is made from what the files plan; nothing is run for it. [One"
    )
    text += " command](../howto/tables.md) makes all numbers of a paper, on one page.\n"
    trials, source = pd.read_csv(TRIALS, keep_default_na=False), json.loads(TRIALS.with_suffix(".json").read_text())
    count = f"{(trials['reason'] == '').sum()} of {len(trials)} printed numbers had one of ours beside them"
    text += f"\nIn the last trials of these files ({source['cpu']}, {source['date']}), {count}:"
    text += f" [trials.csv](../figures/{TRIALS.name}), by `python benchmarks/trials.py results`."
    text += " Networks were small and random (for SJD-SV the embedded one), so the values say nothing of the models."
    text += " Options above a network's length were capped there, and the capped cell stands for the printed one.\n"
    for paper, own in made.groupby("paper", sort=False):
        rows = []
        for table, numbers in own.groupby("table", sort=False):
            makers = ", ".join(f"`{name}`" for name in numbers.loc[numbers["reason"] == "", "experiment"].unique())
            counts = numbers.loc[numbers["reason"] != "", "reason"].value_counts()
            rows.append((table, str(len(numbers)), makers, "; ".join(f"{n}: {why}" for why, n in counts.items())))
        text += f"\n## {paper}\n\n{format_table(('', 'numbers', 'made by', 'not made'), rows)}"
    return text


PAGES = {
    "configuration": write_configuration,
    "decoders": write_decoders,
    "metrics": write_metrics,
    "commands": write_commands,
    "tables": map_tables,
    "settings": write_settings,
}


def main() -> None:
    """Write all pages and the schema, or with --check exit with an error at the first that differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    a = parser.parse_args()
    texts = {FOLDER / f"{name}.md": write() for name, write in PAGES.items()}
    made = make_account(sorted(PUBLISHED.glob("*.csv")), EXPERIMENTS)
    texts |= {FOLDER / "account.csv": made.to_csv(index=False), FOLDER / "account.md": write_account(made)}
    texts[SCHEMA] = json.dumps(make_schema(), sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    for file, text in texts.items():
        if not a.check:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            sys.exit(f"error: {file}: out of date; run `python docs/reference.py`")


if __name__ == "__main__":
    main()
