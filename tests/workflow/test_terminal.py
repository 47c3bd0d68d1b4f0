"""What a run prints: a line a finished job, a live line a running one, the error of a failed one, the result last."""

import io
import logging
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from parity.base import command
from snakemake_logger_plugin_parity import LogHandler, LogHandlerSettings
from snakemake_logger_plugin_parity.run import Run

SAID = SimpleNamespace(
    dryrun=False, printshellcmds=False, nocolor=True, quiet=None, debug_dag=False, verbose=False,
    show_failed_logs=True, stdout=False,
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(event=None, level=logging.INFO, text="", **more):
    made = logging.LogRecord("snakemake", level, "", 0, text, (), None)
    vars(made).update({"event": event, **more} if event else more)
    return made


def job(number, log):
    about = {"rule_name": "decode", "rule_msg": f"decode m/sjd-{number}, part 0 of 1", "log": [str(log)]}
    return record(LogEvent.JOB_INFO, jobid=number, wildcards={}, output=["x"], **about)


def failed(number, log):
    return record(LogEvent.JOB_ERROR, logging.ERROR, jobid=number, rule_name="decode", log=[str(log)])


def lines_of(stream, tmp_path, live=False):
    """Two jobs, one of which fails; and what only Snakemake wants to know."""
    run, log = Run(stream, live, logging.StreamHandler(stream)), tmp_path / "0.log"
    log.write_text("a line before\nerror: image.methods.sjd: no\ncost: 1 CPU-seconds, 2 MiB\n")
    for one in (
        record(LogEvent.WORKFLOW_STARTED, text="Workflow has started!"),
        record(text="Building DAG of jobs..."),
        record(level=logging.ERROR, text="Failed to setup log file: [Errno 30] Read-only file system: 'x'"),
        record(LogEvent.RUN_INFO, stats={"decode": 2, "all": 1, "total": 3}, text="Job stats"),
        job(1, log),
        job(2, log),
        record(LogEvent.SHELLCMD, shellcmd="python -m parity.decode"),
        record(LogEvent.JOB_FINISHED, job_id=1),
        failed(2, log),
        record(text="Report: /somewhere/report.html", result=True),
        record(text="Complete log(s): /somewhere/log"),
    ):
        LogHandler.emit(SimpleNamespace(run=run, plain=None), one)
    run.end()
    run.end()  # Snakemake closes its handlers twice
    return stream.getvalue().splitlines()


def test_not_a_terminal_one_line_a_finished_job_and_the_result_last(tmp_path):
    said = lines_of(io.StringIO(), tmp_path)
    assert said == [
        "3 jobs: 2 decode, 1 all",
        "[1/3] decode m/sjd-1: 0 s",
        "FAILED decode m/sjd-2",
        "  error: image.methods.sjd: no",
        f"  log: {tmp_path / '0.log'}",
        said[-2],
        "Report: /somewhere/report.html",
    ]
    assert said[-2].startswith("1 of 3 jobs in 0 s, 1 failed")


def test_a_terminal_has_a_line_that_moves_with_the_progress_of_a_job(tmp_path):
    log = tmp_path / "0.log"
    run = Run(Terminal(), False, logging.NullHandler())
    run.take(record(LogEvent.RUN_INFO, stats={"decode": 4, "total": 4}))
    for number in (1, 2):
        run.on_job_info(vars(job(number, log)))
    run.take(record(LogEvent.JOB_FINISHED, job_id=1))
    (tmp_path / "0.log.now").write_text("16 of 64 done, pass 12")
    shown = run.view().plain.splitlines()
    assert "16 of 64 done, pass 12" in shown[0] and shown[-1].startswith("1 of 4 jobs")
    assert next(iter(run.jobs.values())).share() == 0.25
    run.take(record(LogEvent.JOB_FINISHED, job_id=2))
    assert not (tmp_path / "0.log.now").exists() and len(run.view().plain.splitlines()) == 1
    said = "\n".join(lines_of(Terminal(), tmp_path, live=True))
    assert "\x1b[" in said and said.rstrip().endswith("Report: /somewhere/report.html")


def test_a_job_says_how_far_it_is_beside_its_log_and_clears_up(tmp_path, monkeypatch):
    log = tmp_path / "0.log"
    monkeypatch.setattr(command.os, "readlink", lambda path: str(log))
    command.find_progress_file.cache_clear()
    command.note("1 of 2 done, pass 3", interval=0)
    assert (tmp_path / "0.log.now").read_text() == "1 of 2 done, pass 3"
    command.note("2 of 2 done, pass 3", interval=1000)  # too soon
    assert (tmp_path / "0.log.now").read_text() == "1 of 2 done, pass 3"
    monkeypatch.setattr(command.os, "readlink", lambda path: "/dev/pts/0")
    command.find_progress_file.cache_clear()
    command.note("nobody reads this", interval=0)
    assert [p.name for p in tmp_path.iterdir()] == ["0.log.now"]
    command.find_progress_file.cache_clear()


def test_plain_is_what_snakemake_prints():
    for style, said in (("plain", {}), ("auto", {"quiet": {"rules"}}), ("auto", {"dryrun": True})):
        assert LogHandler(SimpleNamespace(**vars(SAID) | said), LogHandlerSettings(style=style)).run is None
    assert LogHandler(SAID, LogHandlerSettings()).run is not None
    with pytest.raises(ValueError, match="allowed: auto, live, lines, plain"):
        LogHandler(SAID, LogHandlerSettings(style="pretty"))


def test_a_run_that_is_stopped_is_one_line(tmp_path):
    stream, log = io.StringIO(), tmp_path / "0.log"
    run = Run(stream, False, logging.StreamHandler(stream))
    run.take(record(LogEvent.RUN_INFO, stats={"decode": 2, "total": 2}))
    for number, last in ((1, "KeyboardInterrupt"), (2, "stopped")):
        log.write_text(f"Traceback (most recent call last):\n  File x\n{last}\n")
        run.take(job(number, log))
        run.take(record(level=logging.ERROR, text="RuleException:\nCalledProcessError in file x: a command"))
        run.take(failed(number, log))
    run.take(record(level=logging.ERROR, text="WorkflowError:\nAt least one job did not complete successfully."))
    run.end()
    assert stream.getvalue().splitlines()[1:] == ["stopped; the same command continues"]


def test_a_run_that_is_ended_by_sigterm_is_stopped_and_not_failed(tmp_path):
    """Whether its jobs get the signal, too, or end by themselves."""
    for killed in (True, False):
        stream, log = io.StringIO(), tmp_path / "0.log"
        run = Run(stream, False, logging.StreamHandler(stream))
        log.write_text("")
        run.take(record(LogEvent.RUN_INFO, stats={"decode": 2, "total": 2}))
        run.take(job(1, log))
        for _ in range(2):
            run.take(record(text="Will exit after finishing currently running jobs (scheduler)."))
        if killed:
            run.take(record(level=logging.ERROR, text="RuleException:\n... died with <Signals.SIGTERM: 15>."))
            run.take(failed(1, log))
        else:
            run.take(record(LogEvent.JOB_FINISHED, job_id=1))
        run.take(record(level=logging.ERROR, text="WorkflowError:\nAt least one job did not complete successfully."))
        run.end()
        said = stream.getvalue().splitlines()[1:]
        assert said[0] == "stopping when the running jobs have ended" and len(said) == 3 - killed
        assert said[-1] == "stopped; the same command continues"


def test_a_job_that_is_tried_again_counts_once(tmp_path):
    stream, log = io.StringIO(), tmp_path / "0.log"
    run = Run(stream, False, logging.StreamHandler(stream))
    log.write_text("error: no such file\n")
    run.take(record(LogEvent.RUN_INFO, stats={"decode": 2, "total": 2}))
    for number in (1, 1, 1, 2):
        run.take(job(number, log))
        run.take(failed(number, log))
    run.take(job(2, log))
    run.take(record(LogEvent.JOB_FINISHED, job_id=2))
    run.end()
    assert "1 of 2 jobs" in stream.getvalue() and ", 1 failed" in stream.getvalue()
