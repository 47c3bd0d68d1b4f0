"""Runs of Snakemake, each in a process forked from one that has imported it: its start is most of a dry run's time.

    python forked.py        reads requests from its stdin, a line of JSON each; answers each with the run's exit code

Nothing of the package is imported before the fork: a run finds what lies in its own copy of the project, as a fresh
process does. Fresh processes are what tests/workflow/test_elsewhere.py, the killed runs and CI start.
"""

import json
import os
import signal
import sys
import traceback

import pandas  # noqa: F401  this and the next two: what runs import after that
import pydantic  # noqa: F401
import smart_open  # noqa: F401
from snakemake.cli import get_argument_parser, main


def child(asked: dict) -> None:
    """As `python -m snakemake` in the folder, environment and files that were asked for."""
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    silent = os.open(os.devnull, os.O_RDONLY)
    files = [os.open(asked[name], os.O_WRONLY) for name in ("stdout", "stderr")]
    for number, file in enumerate((silent, *files)):
        os.dup2(file, number)
        os.close(file)
    sys.argv, sys.path[0] = ["snakemake", *asked["arguments"]], asked["cwd"]
    signal.alarm(asked["timeout"])
    try:
        main(asked["arguments"])
    except SystemExit:
        raise
    except BaseException:  # as Python does, and not as the loop below would
        traceback.print_exc()
        sys.exit(1)


def serve() -> None:
    get_argument_parser()  # imports the plugins of this environment
    assert not any(name.partition(".")[0] == "parity" for name in sys.modules)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            child(json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
