"""Runs of Snakemake, each in a process forked from one that has imported it: its start is most of a dry run's time.

    python forked.py        reads requests from its stdin, a line of JSON each; answers each with the run's exit code

Nothing of the package is imported before the fork: a run finds what lies in its own copy of the project, as a fresh
process does. Fresh processes are what the runs of tests/workflow/test_runs.py and CI start.
"""

import json
import os
import sys
import traceback

import pandas  # noqa: F401  imported here, like the next two, because each run needs it
import pydantic  # noqa: F401
import smart_open  # noqa: F401
from snakemake.cli import get_argument_parser, main


def run_snakemake(request: dict) -> None:
    """Run snakemake here as `python -m snakemake` does, in the folder, environment and files of the request."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    files = [os.open(os.devnull, os.O_RDONLY)]
    files += [os.open(request[name], os.O_WRONLY) for name in ("stdout", "stderr")]
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["snakemake", *request["arguments"]]
    sys.path[0] = request["cwd"]
    try:
        main(request["arguments"])
    except SystemExit:
        raise
    except BaseException:  # an error ends this process as it ends Python
        traceback.print_exc()
        sys.exit(1)


def serve() -> None:
    """Fork a run for each request on stdin and print its exit code."""
    get_argument_parser()  # called because it imports Snakemake's plugins
    assert not any(name.partition(".")[0] == "parity" for name in sys.modules)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            run_snakemake(json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
