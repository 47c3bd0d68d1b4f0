"""Trained weights go into the package, with a model card each."""

from pathlib import Path
from typing import Any

from parity.base.digests import sha256
from parity.base.errors import ParityError
from parity.base.files import publish, read_json, sums
from parity.train import format_log
from recipes.runs import DATA, Run, list_runs


def write_model_card(run: Run, record: dict[str, Any]) -> str:
    """Format a model card as Markdown: the weights, their data, and `record`, the JSON that training wrote."""
    hardware = f"threads {record['threads']}" if record.get("device", "cpu") == "cpu" else "on a GPU"
    facts = [
        f"# {run.weights_name}",
        "",
        run.card,
        "",
        f"- data: {DATA[run.data].format(record['examples'])}",
        f"- steps: {record['steps']:,} of batch {record['batch']}; seed {record['seed']}; {hardware}",
        "- licence: that of this repository; made from nothing but its code",
        *(f"- {note}" for note in record.get("notes", [])),
    ]
    return "\n".join([*facts, *format_log(record["log"])])


def install(kind: str, work: Path, out: Path) -> None:
    """Copy the weights of a kind from `work` into `out`, a model card beside each, and write SHA256SUMS last, since the
    workflow reads it. Raises ParityError before anything is written if a recipe has not run."""
    total = sums(out)  # existing entries keep their places, because a revision depends on their order
    for run in list_runs(kind):
        for file in (work / f"{run.name}.safetensors", work / f"{run.name}.json"):
            if not file.exists():
                raise ParityError(f"{file}: no such file; run recipe {run.name} first")
    for run in list_runs(kind):
        file = work / f"{run.name}.safetensors"
        publish(out / f"{run.weights_name}.safetensors", file.read_bytes())
        publish(out / f"{run.weights_name}.md", write_model_card(run, read_json(file.with_suffix(".json"))).encode())
        total[f"{run.weights_name}.safetensors"] = sha256(file)
    publish(out / "SHA256SUMS", "".join(f"{digest}  {name}\n" for name, digest in total.items()).encode())
