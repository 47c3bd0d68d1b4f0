"""The console script `parity STAGE ...`: the commands `python -m parity.<stage>` under one name.

parity certify transformers --target DIR --assistant DIR -- num_assistant_tokens=4
parity equality exact --kind discrete --method sjd --out rows.json
"""

import runpy
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
HELP = "usage: parity COMMAND ...\n\ncommands (each has --help):\n"


def list_commands() -> dict[str, str]:
    """List the packages that are commands, each with a description: the first line of its docstring."""
    stages = {}
    for file in sorted(PACKAGE.glob("*/__main__.py")):
        first = file.read_text(encoding="utf-8").lstrip('"').partition("\n")[0].strip().strip('"')
        stages[file.parent.name] = first.partition(": ")[2] if first.startswith("python -m") else first
    return stages


def main() -> None:
    """Run the command named by the first argument; print all commands for --help; exit with 2 for an unknown name."""
    stages = list_commands()
    name = (sys.argv[1:2] or [""])[0]
    if name in stages:
        sys.argv = [f"parity {name}", *sys.argv[2:]]
        runpy.run_module(f"parity.{name}", run_name="__main__")
    elif name in ("-h", "--help"):
        print(HELP + "".join(f"  {name:<10} {description}\n" for name, description in stages.items()), end="")
    else:
        print(f"error: command {name!r}: allowed: {', '.join(stages)}", file=sys.stderr)
        raise SystemExit(2)
