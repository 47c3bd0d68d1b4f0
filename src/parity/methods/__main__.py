"""List all decoders, ours and others': their kind, what they claim, what they need, and where they are.

    parity methods
    parity methods path/to/mine.py:mine --kind discrete

Others are those of installed packages (entry points `parity.decoders`), and of the files that are named here. A name
below stands in a configuration under the section's `methods`, or after `--method`.
"""

import argparse
import sys

from parity.base.command import run_command
from parity.base.errors import ConfigError
from parity.experiment.decoder_sources import find_source, list_decoders, list_installed
from parity.experiment.options import KINDS, check_decoder, declaration, trains_draft

HEADS = ("method", "kind", "claim", "needs", "from")


def describe_claim(kind: str, method: str) -> str:
    """Describe what a decoder claims, and with which options."""
    declared = declaration(kind, method)
    conditions = ", ".join(f"{name}: {value}" for name, value in declared.EXACT_WITH.items())
    return declared.CLAIM + (f", with {conditions}" if conditions else "")


def describe_needs(kind: str, method: str) -> str:
    """Describe which network a decoder needs beside the target."""
    declared = declaration(kind, method)
    own = f"its own {declared.DRAFT}" + (", trained" if trains_draft(kind, method) else "") if declared.DRAFT else ""
    return ", ".join(filter(None, (declared.NEEDS, own))) or "-"


def make_row(kind: str, method: str) -> tuple[str, ...]:
    """Make the row of a decoder. Raises ConfigError for one that cannot be run."""
    check_decoder(kind, method)
    owner = find_source(kind, method).owner
    return method, kind, describe_claim(kind, method), describe_needs(kind, method), owner


def list_rows(files: list[str], kinds: list[str]) -> tuple[list[tuple[str, ...]], list[str]]:
    """List the rows of all decoders of some kinds, and a line for each of an installed package, or of `files`, that
    cannot be run."""
    rows, problems, shown = [], [], set()
    for kind in kinds:
        for method in list_decoders(kind):
            shown.add(method)
            try:
                rows.append(make_row(kind, method))
            except ConfigError as error:
                problems.append(f"{method}: {error}")
    others = [*files, *(name for name in list_installed() if name not in shown and len(kinds) == len(KINDS))]
    for method in others:
        found = []
        for kind in kinds:
            try:
                rows.append(make_row(kind, method))
                break
            except ConfigError as error:
                found.append(f"{method}: {error}")
        else:
            problems.append(found[0])
    return rows, problems


def main() -> None:
    """Print the table; exit with 1 if a decoder cannot be run."""
    parser = argparse.ArgumentParser(
        prog="parity methods", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="*", metavar="FILE.py:FUNCTION", help="decoders of files")
    parser.add_argument("--kind", choices=list(KINDS), help="of model (all)")
    a = parser.parse_args()
    rows, problems = list_rows(a.file, [a.kind] if a.kind else list(KINDS))
    widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
    for row in (HEADS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    run_command(main)
