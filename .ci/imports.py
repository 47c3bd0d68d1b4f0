"""Whether every job of a finished run imported only what its rule's `code` parameter digests.

    python .ci/imports.py PROJECT

A module that a job imports and its rule does not know would leave yesterday's result standing after an edit.
"""

import base64
import json
import sys
from pathlib import Path

from parity.experiment import code_digest


def roots(metadata: Path) -> dict[str, list[str]]:
    """By output file the modules that its rule names."""
    found = {}
    for file in (p for p in metadata.rglob("*") if p.is_file()):
        said = json.loads(file.read_text())
        name = base64.b64decode("".join(file.relative_to(metadata).parts).replace("@", "")).decode(errors="replace")
        words = " ".join(map(str, said.get("params") or [])).replace("'", " ").split()
        found[name] = sorted(
            {w for w in words if w.startswith(("parity.", "parity_decoders.")) and code_digest.find_file(w)}
        )
    return found


def main(project: Path) -> int:
    known, wrong, seen = roots(project / ".snakemake/metadata"), [], 0
    for file in sorted((project / "imported").glob("*.json")):
        said = json.loads(file.read_text())
        given = said["arguments"]
        flag = next((f for f in ("--out", "--cell") if f in given), "")  # a file, or the folder that it is written to
        out = given[given.index(flag) + 1] if flag else ""
        outputs = [name for name, modules in known.items() if modules and out in (name, str(Path(name).parent))]
        for output in outputs[:1]:
            seen += 1
            imported = {m for m in said["modules"] if code_digest.find_file(m)}  # a folder alone has no code
            extra = imported - set(code_digest.list_closure(*known[output]))
            wrong += [f"{output}: imports {', '.join(sorted(extra))}, which its rule does not name"] if extra else []
    print("\n".join(wrong) or f"{seen} jobs imported what their rules name and nothing else")
    return bool(wrong) or not seen


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
