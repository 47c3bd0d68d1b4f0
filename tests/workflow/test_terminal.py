"""What a run prints: a line a finished job, a live line a running one, the error of a failed one, the result last."""

import io
import logging
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from parity.base import command
from snakemake_logger_plugin_parity import LogHandler, LogHandlerSettings
from snakemake_logger_plugin_parity.run import Run

SETTINGS = SimpleNamespace(
    dryrun=False, printshellcmds=False, nocolor=True, quiet=None, debug_dag=False, verbose=False,
    show_failed_logs=True, stdout=False,
)  # fmt: skip
UNFINISHED = "WorkflowError:\nAt least one job did not complete successfully."


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


def make_record(event=None, level=logging.INFO, text="", **fields):
    """Make a record as Snakemake logs it: an event with its fields, or a text at a level."""
    record = logging.LogRecord("snakemake", level, "", 0, text, (), None)
    vars(record).update({"event": event, **fields} if event else fields)
    return record


def make_job(number, log):
    fields = {"rule_name": "decode", "rule_msg": f"decode m/sjd-{number}, part 0 of 1", "log": [str(log)]}
    return make_record(LogEvent.JOB_INFO, jobid=number, wildcards={}, output=["x"], **fields)


def make_failure(number, log):
    return make_record(LogEvent.JOB_ERROR, logging.ERROR, jobid=number, rule_name="decode", log=[str(log)])


def print_run(stream, tmp_path, live=False):
    """Feed the logger two jobs, one failing, and records that only Snakemake wants; return the lines that it prints."""
    log = tmp_path / "0.log"
    run = Run(stream, live, logging.StreamHandler(stream))
    log.write_text("a line before\nerror: image.methods.sjd: no\ncost: 1 CPU-seconds, 2 MiB\n")
    for record in (
        make_record(LogEvent.WORKFLOW_STARTED, text="Workflow has started!"),
        make_record(text="Building DAG of jobs..."),
        make_record(level=logging.ERROR, text="Failed to setup log file: [Errno 30] Read-only file system: 'x'"),
        make_record(LogEvent.RUN_INFO, stats={"decode": 2, "all": 1, "total": 3}, text="Job stats"),
        make_job(1, log),
        make_job(2, log),
        make_record(LogEvent.SHELLCMD, shellcmd="python -m parity.decode"),
        make_record(LogEvent.JOB_FINISHED, job_id=1),
        make_failure(2, log),
        make_record(text="Report: /somewhere/report.html", result=True),
        make_record(text="Complete log(s): /somewhere/log"),
    ):
        LogHandler.emit(SimpleNamespace(run=run, plain=None), record)
    run.end()
    run.end()  # twice, as Snakemake closes its handlers
    return stream.getvalue().splitlines()


def test_a_file_gets_a_line_a_finished_job_and_the_result_last(tmp_path):
    lines = print_run(io.StringIO(), tmp_path)
    assert lines == [
        "3 jobs: 2 decode, 1 all",
        "[1/3] decode m/sjd-1: 0 s",
        "FAILED decode m/sjd-2",
        "  error: image.methods.sjd: no",
        f"  log: {tmp_path / '0.log'}",
        lines[-2],
        "Report: /somewhere/report.html",
    ]
    assert lines[-2].startswith("1 of 3 jobs in 0 s, 1 failed")


def test_a_terminal_shows_the_progress_of_running_jobs(tmp_path):
    log = tmp_path / "0.log"
    run = Run(Terminal(), False, logging.NullHandler())
    run.take(make_record(LogEvent.RUN_INFO, stats={"decode": 4, "total": 4}))
    for number in (1, 2):
        run.on_job_info(vars(make_job(number, log)))
    run.take(make_record(LogEvent.JOB_FINISHED, job_id=1))
    (tmp_path / "0.log.now").write_text("16 of 64 done, pass 12")
    lines = run.view().plain.splitlines()
    assert "16 of 64 done, pass 12" in lines[0]
    assert lines[-1].startswith("1 of 4 jobs")
    assert next(iter(run.jobs.values())).share() == 0.25
    run.take(make_record(LogEvent.JOB_FINISHED, job_id=2))
    assert not (tmp_path / "0.log.now").exists()
    assert len(run.view().plain.splitlines()) == 1
    text = "\n".join(print_run(Terminal(), tmp_path, live=True))
    assert "\x1b[" in text
    assert text.rstrip().endswith("Report: /somewhere/report.html")


def test_a_job_writes_its_progress_beside_its_log(tmp_path, monkeypatch):
    log = tmp_path / "0.log"
    monkeypatch.setattr(command.os, "readlink", lambda path: str(log))
    command.find_progress_file.cache_clear()
    command.note("1 of 2 done, pass 3", interval=0)
    assert (tmp_path / "0.log.now").read_text() == "1 of 2 done, pass 3"
    command.note("2 of 2 done, pass 3", interval=1000)  # not written, as it comes too soon after the last
    assert (tmp_path / "0.log.now").read_text() == "1 of 2 done, pass 3"
    monkeypatch.setattr(command.os, "readlink", lambda path: "/dev/pts/0")
    command.find_progress_file.cache_clear()
    command.note("nobody reads this", interval=0)
    assert [p.name for p in tmp_path.iterdir()] == ["0.log.now"]
    command.find_progress_file.cache_clear()


def test_plain_style_leaves_printing_to_snakemake():
    for style, changes in (("plain", {}), ("auto", {"quiet": {"rules"}}), ("auto", {"dryrun": True})):
        assert LogHandler(SimpleNamespace(**vars(SETTINGS) | changes), LogHandlerSettings(style=style)).run is None
    assert LogHandler(SETTINGS, LogHandlerSettings()).run is not None
    with pytest.raises(ValueError, match="allowed: auto, live, lines, plain"):
        LogHandler(SETTINGS, LogHandlerSettings(style="pretty"))


def test_a_run_ended_by_sigterm_is_stopped_and_not_failed(tmp_path):
    """Whether its jobs get the signal, too, or end by themselves."""
    for signalled in (True, False):
        stream = io.StringIO()
        log = tmp_path / "0.log"
        run = Run(stream, False, logging.StreamHandler(stream))
        log.write_text("")
        run.take(make_record(LogEvent.RUN_INFO, stats={"decode": 2, "total": 2}))
        run.take(make_job(1, log))
        for _ in range(2):
            run.take(make_record(text="Will exit after finishing currently running jobs (scheduler)."))
        if signalled:
            run.take(make_record(level=logging.ERROR, text="RuleException:\n... died with <Signals.SIGTERM: 15>."))
            run.take(make_failure(1, log))
        else:
            run.take(make_record(LogEvent.JOB_FINISHED, job_id=1))
        run.take(make_record(level=logging.ERROR, text=UNFINISHED))
        run.end()
        lines = stream.getvalue().splitlines()[1:]
        assert lines[0] == "stopping when the running jobs have ended"
        assert len(lines) == 3 - signalled
        assert lines[-1] == "stopped; the same command continues"
