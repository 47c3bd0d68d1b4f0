"""Run a command of the workflow: `python -m parity.job measure WORDS` does what `python -m parity.measure WORDS` does.

If the run has a server that forks (`parity.base.fork_server`), the command runs in a copy of it and starts sooner.
"""

import sys

from parity.base.fork_server import Command, ask


def main() -> None:
    """Run the command that the first word names, with the words after it."""
    command = Command(f"parity.{sys.argv[1]}", sys.argv[2:])
    code = ask(*command)
    if code is None:
        command.run()
    else:
        raise SystemExit(code)


if __name__ == "__main__":
    main()
