"""Trained weights into the package: a copy of each with its model card, and the digests that the workflow reads."""

from pathlib import Path
from typing import Any

from parity.base.errors import ParityError
from parity.base.files import publish, read_json, sums
from parity.base.weights import sha256
from parity.training.runs import SAID_OF_DATA, Run, of_kind


def log_table(log: list[dict[str, float]]) -> list[str]:
    """Lines of Markdown: what was measured at the end, then about eight rows of the log."""
    rows = [r for r in log if "step" in r]
    shown = [r for i, r in enumerate(rows) if i % max(1, len(rows) // 8) == 0 or i == len(rows) - 1]
    columns = list(dict.fromkeys(k for r in rows for k in r))
    table = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    table += ["| " + " | ".join(f"{r[c]:.4g}" if c in r else "" for c in columns) + " |" for r in shown]
    results = [f"- {k}: {v:.4g}" for r in log if "step" not in r for k, v in r.items()]
    return [*results, "", *table, ""]


def card(run: Run, made: dict[str, Any]) -> str:
    """A model card in Markdown: what it is, the data, and what the run recorded."""
    facts = [
        f"# {run.installed}",
        "",
        run.card,
        "",
        f"- data: {SAID_OF_DATA[run.data].format(made['examples'])}",
        f"- steps: {made['steps']:,} of batch {made['batch']}; seed {made['seed']}; threads {made['threads']}",
        "- licence: that of this repository; made from nothing but its code",
        *(f"- {note}" for note in made.get("notes", [])),
    ]
    return "\n".join([*facts, *log_table(made["log"])])


def install(kind: str, work: Path, out: Path) -> None:
    """Copy the weights of a kind into `out`, a card beside each; SHA256SUMS last, for it is what the workflow reads.

    ParityError before anything is written if a recipe has not run.
    """
    total = sums(out)  # keeps the order that revisions were made of
    for run in of_kind(kind):
        for file in (work / f"{run.name}.safetensors", work / f"{run.name}.json"):
            if not file.exists():
                raise ParityError(f"{file}: no such file; run recipe {run.name} first")
    for run in of_kind(kind):
        file = work / f"{run.name}.safetensors"
        publish(out / f"{run.installed}.safetensors", file.read_bytes())
        publish(out / f"{run.installed}.md", card(run, read_json(file.with_suffix(".json"))).encode())
        total[f"{run.installed}.safetensors"] = sha256(file)
    publish(out / "SHA256SUMS", "".join(f"{digest}  {name}\n" for name, digest in total.items()).encode())
