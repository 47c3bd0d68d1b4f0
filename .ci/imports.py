"""Check that every job of a finished run imported only what its rule's `code` parameter digests.

    python .ci/imports.py PROJECT

A module that a job imports and its rule does not know would leave yesterday's result standing after an edit.
"""

import base64
import json
import sys
from pathlib import Path

from parity.experiment import code_digest


def map_rule_modules(metadata: Path) -> dict[str, list[str]]:
    """Map each output file in Snakemake's metadata to the modules that its rule's parameters name."""
    modules_of = {}
    for file in (p for p in metadata.rglob("*") if p.is_file()):
        record = json.loads(file.read_text())
        name = base64.b64decode("".join(file.relative_to(metadata).parts).replace("@", "")).decode(errors="replace")
        words = " ".join(map(str, record.get("params") or [])).replace("'", " ").split()
        modules_of[name] = sorted(
            {w for w in words if w.startswith(("parity.", "parity_decoders.")) and code_digest.find_file(w)}
        )
    return modules_of


def main(project: Path) -> int:
    """Compare each job's imports in PROJECT/imported with its rule's modules; print the problems. Returns 1 if there
    are any, or no job at all."""
    modules_of = map_rule_modules(project / ".snakemake/metadata")
    problems = []
    n_jobs = 0
    for file in sorted((project / "imported").glob("*.json")):
        record = json.loads(file.read_text())
        arguments = record["arguments"]
        flag = next(
            (f for f in ("--out", "--cell") if f in arguments), ""
        )  # its value is a file, or the folder of the file
        out = arguments[arguments.index(flag) + 1] if flag else ""
        outputs = [name for name, modules in modules_of.items() if modules and out in (name, str(Path(name).parent))]
        for output in outputs[:1]:
            n_jobs += 1
            imported = {m for m in record["modules"] if code_digest.find_file(m)}  # a mere folder has no code
            extra = imported - set(code_digest.list_closure(*modules_of[output]))
            problems += [f"{output}: imports {', '.join(sorted(extra))}, which its rule does not name"] if extra else []
    print("\n".join(problems) or f"{n_jobs} jobs imported what their rules name and nothing else")
    return bool(problems) or not n_jobs


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
