"""The console script `parity STAGE ...`: the commands `python -m parity.<stage>` under one name.

parity certify transformers --target DIR --assistant DIR -- num_assistant_tokens=4
parity equality exact --kind discrete --method sjd --out rows.json
"""

import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
HELP = "usage: parity COMMAND ...\n\ncommands (each has --help):\n"


def commands() -> dict[str, str]:
    """Stages that are commands, with the first line of what they say of themselves."""
    stages = {}
    for file in sorted(PACKAGE.glob("*/__main__.py")):
        first = file.read_text(encoding="utf-8").lstrip('"').partition("\n")[0].strip().strip('"')
        stages[file.parent.name] = first.partition(": ")[2] if first.startswith("python -m") else first
    return stages


def main() -> None:
    known, given = commands(), sys.argv[1:2]
    if given and given[0] in known:
        sys.argv = [f"parity {given[0]}", *sys.argv[2:]]
        file = PACKAGE / given[0] / "__main__.py"  # by file: pytest, whose plugin we are, loads our modules its own way
        exec(compile(file.read_text(encoding="utf-8"), file, "exec"), {"__name__": "__main__", "__file__": str(file)})
        return
    listing = HELP + "".join(f"  {name:<10} {what}\n" for name, what in known.items())
    if given and given[0] in ("-h", "--help"):
        print(listing, end="")
        return
    print(f"error: command {given[0] if given else ''!r}: allowed: {', '.join(known)}", file=sys.stderr)
    raise SystemExit(2)
