"""What is shown of a run: its jobs, by Snakemake's records, and the progress that each job writes itself."""

import re
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from logging import WARNING, Handler, LogRecord
from pathlib import Path
from typing import Any, TextIO

TAIL = 12  # this many lines of a failed job's log are printed
SHOWN = 8  # this many running jobs at most are shown on a terminal
EVERY = 60.0  # elsewhere a few of them are printed every this many seconds
LONGEST = 3  # this many of them, those that have run longest
GATHER = ("all", "equality", "image", "text", "continuous")  # these rules only gather files and take no time
STOPPED = ("KeyboardInterrupt", "stopped")  # a job that Ctrl-C ended has one of these as its last line
STOPPING = "Terminating processes on user request"  # Snakemake prints this on Ctrl-C
ENDING = "Will exit after finishing currently running jobs"  # Snakemake prints this on SIGTERM, perhaps more than once
KILLED = "died with <Signals.SIGTERM"  # Snakemake prints this of a job that got the signal too
OF_A_JOB = ("RuleException", "At least one job did not complete successfully")  # our own lines say the same


def format_clock(seconds: float) -> str:
    """Write seconds as "4 s", "3:07" or "1:02:03"."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    hours, rest = divmod(total, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def read_text(file: Path) -> str:
    """Read a file as text; "" if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclass
class Job:
    rule: str
    name: str  # the rule's message: what the job does
    logs: list[str]
    began: float = field(default_factory=time.monotonic)

    def read_progress(self) -> str:
        """Read what the job does now, 80 characters at most: '16 of 64 done, pass 12', of the file beside its log, or
        without one the last line of its log."""
        for log in self.logs:
            lines = (read_text(Path(f"{log}.now")) or read_text(Path(log))).strip().splitlines()
            if lines:
                return lines[-1][:80].strip()
        return ""

    def describe(self) -> str:
        """Describe the running job in a line: its name, what it does now, how long it has run."""
        return "  ".join(filter(None, (self.name, self.read_progress(), format_clock(time.monotonic() - self.began))))

    def share(self) -> float:
        """Compute how much of the job is done, 0 to 1, from its progress; 0 if it reports none."""
        counts = re.match(r"([\d.]+) of (\d+)", self.read_progress())
        return min(1.0, float(counts[1]) / int(counts[2])) if counts and int(counts[2]) else 0.0

    def read_error(self) -> tuple[str, list[str]]:
        """Read the line that tells why a job failed, and the end of its log, [] if the line begins with "error:"."""
        lines = [line for log in self.logs for line in read_text(Path(log)).splitlines()]
        lines = [line for line in lines if line.strip() and not line.startswith("cost:")]
        ours = [line for line in lines if line.startswith("error:")]
        return (ours or lines or ["its log is empty"])[-1], [] if ours else lines[-TAIL:]


class Run:
    """The jobs of a run, and where its lines go: `stream`, or `print_as` for records that Snakemake is to print."""

    def __init__(self, stream: TextIO, live: bool, print_as: Handler, every: float = EVERY):
        self.stream, self.is_live, self.print_as, self.every = stream, live, print_as, every
        self.jobs: dict[int, Job] = {}
        self.left: dict[str, int] = {}  # how many jobs wait or run, by rule
        self.took: dict[str, list[float]] = defaultdict(list)
        self.total = self.done = self.at_once = 0
        self.failed: set[int] = set()  # numbers of jobs whose last try failed
        self.stopped = False  # whether Ctrl-C or SIGTERM stopped the run
        self.began, self.started = time.monotonic(), False
        self.live: Any = None
        self.ended: threading.Event | None = None  # set it to end the thread that prints now and then
        self.last: list[str] = []

    # These methods handle Snakemake's records.

    def take(self, record: LogRecord) -> None:
        """Handle a record of Snakemake's: store the result, count a job's event, print what a reader must know."""
        from snakemake_logger_plugin_parity import NOISE

        event, text = getattr(record, "event", None), record.getMessage()
        on_event = getattr(self, f"on_{event}", None) if event else None
        if getattr(record, "result", False):
            self.last.append(text)
        elif on_event is not None:
            on_event(vars(record))
        elif STOPPING in text or KILLED in text:
            self.stopped = True
        elif ENDING in text:
            if not self.stopped:
                self.say("stopping when the running jobs have ended")
            self.stopped = True
        elif any(phrase in text for phrase in OF_A_JOB) and (self.stopped or self.failed or self.jobs):
            return
        elif record.levelno >= WARNING or (
            # before the first job every message is shown, as it may be what was asked for
            event is None and (text.startswith("Nothing to be done") or not (self.started or text.startswith(NOISE)))
        ):
            self.stop_live()
            self.print_as.handle(record)

    def on_workflow_started(self, event: dict[str, Any]) -> None:
        """Note that jobs begin, so messages are filtered from now on."""
        self.started = True

    def on_run_info(self, event: dict[str, Any]) -> None:
        """Store how many jobs there are by rule, and print them."""
        counts = dict(event.get("stats") or {})
        self.total = counts.pop("total", 0)
        self.left = {rule: n for rule, n in counts.items() if rule not in GATHER}
        self.say(f"{self.total} jobs: " + ", ".join(f"{n} {rule}" for rule, n in counts.items()))

    def on_job_info(self, event: dict[str, Any]) -> None:
        """Add a job that begins, unless it has no output and only gathers others."""
        if not event.get("output"):  # the job only gathers others' files
            return
        wildcards = event.get("wildcards") or {}
        name = event.get("title") or " ".join([event["rule_name"], *map(str, wildcards.values())])
        name = name.removesuffix(", part 0 of 1")
        self.jobs[event["jobid"]] = Job(event["rule_name"], name, list(event.get("log") or []))
        self.at_once = max(self.at_once, len(self.jobs))
        self.start_showing()

    def on_job_finished(self, event: dict[str, Any]) -> None:
        """Count a finished job, remember its time by rule, and print a line."""
        job = self.jobs.pop(event["job_id"], None)
        self.done += 1
        self.failed.discard(event["job_id"])
        if job is None:
            return
        seconds = time.monotonic() - job.began
        self.took[job.rule].append(seconds)
        self.left[job.rule] = self.left.get(job.rule, 1) - 1
        self.forget(job)
        self.say(f"[{self.done:{len(str(self.total))}}/{self.total}] {job.name}: {format_clock(seconds)}")

    def on_job_error(self, event: dict[str, Any]) -> None:
        """Print a failed job's error, end of log and logs; nothing if it was stopped with the run."""
        job = self.jobs.pop(event["jobid"], None) or Job(event["rule_name"], event["rule_name"], event.get("log") or [])
        self.forget(job)
        reason, tail = job.read_error()
        self.stopped = self.stopped or reason in STOPPED
        if self.stopped:
            return
        self.failed.add(event["jobid"])
        logs = [f"log: {log}" for log in job.logs] or ["it has no log"]
        self.say("\n  ".join([f"FAILED {job.name}", reason, *(f"| {text}" for text in tail), *logs]))

    def on_progress(self, event: dict[str, Any]) -> None:
        """Update how many jobs there are."""
        self.total = event["total"]

    def ignore(self, event: dict[str, Any]) -> None: ...

    on_shellcmd = on_job_started = on_resources_info = on_debug_dag = ignore

    # These methods print the run's state.

    def forget(self, job: Job) -> None:
        """Delete the files of a job's progress."""
        for log in job.logs:
            Path(f"{log}.now").unlink(missing_ok=True)

    def estimate_remaining(self) -> float | None:
        """Estimate the remaining seconds: of running jobs by their progress, of others by what jobs of the same rule
        took. None while fewer than 5% are done."""
        if self.done * 20 < self.total or not self.took:
            return None
        mean = {rule: sum(took) / len(took) for rule, took in self.took.items()}
        any_job = sum(map(sum, self.took.values())) / sum(map(len, self.took.values()))
        waiting = dict(self.left)
        seconds = 0.0
        for job in self.jobs.values():
            spent = time.monotonic() - job.began
            share = job.share()
            seconds += spent * (1 - share) / share if share else max(0.0, mean.get(job.rule, 0.0) - spent)
            waiting[job.rule] = waiting.get(job.rule, 1) - 1
        seconds += sum(max(0, n) * mean.get(rule, any_job) for rule, n in waiting.items())
        return seconds / max(1, self.at_once) or None

    def view(self) -> Any:
        """Make the text of the moving lines: one a running job, SHOWN at most, and one for the whole."""
        from rich.text import Text

        now = time.monotonic()
        jobs = sorted(self.jobs.values(), key=lambda job: job.began)
        lines = [job.describe() for job in jobs[:SHOWN]]
        lines += [f"... and {len(jobs) - SHOWN} more"] if len(jobs) > SHOWN else []
        remaining = self.estimate_remaining()
        summary = f"{self.done} of {self.total} jobs, {format_clock(now - self.began)}"
        summary += f", about {format_clock(remaining)} left" if remaining is not None else ""
        summary += f", {len(self.failed)} failed" if self.failed else ""
        return Text("\n".join([*lines, summary]), no_wrap=True, overflow="ellipsis")

    def say_running(self) -> None:
        """Print a line for each of the LONGEST jobs that have run longest."""
        for job in sorted(self.jobs.values(), key=lambda job: job.began)[:LONGEST]:
            self.say(f"...  {job.describe()}")

    def start_showing(self) -> None:
        """Start to show running jobs, unless that has begun: by moving lines, or else by a thread that prints lines now
        and then, because Snakemake sends no record while a job runs."""
        if self.is_live:
            self.start_live()
        elif self.ended is None:
            ended = self.ended = threading.Event()

            def print_now_and_then() -> None:
                while not ended.wait(self.every):
                    self.say_running()

            threading.Thread(target=print_now_and_then, daemon=True).start()

    def start_live(self) -> None:
        """Start the moving lines, unless they move."""
        if self.live is not None:
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self.stream, force_terminal=True, markup=False, highlight=False, emoji=False)
        self.live = Live(get_renderable=self.view, console=console, refresh_per_second=2, transient=True)
        self.live.start()

    def stop_live(self) -> None:
        """Stop the moving lines if they move."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def say(self, text: str) -> None:
        """Print a line that stays, above the moving lines if there are any."""
        if self.live is not None:
            self.live.console.print(text, soft_wrap=True)
        else:
            print(f"{text}\n", end="", file=self.stream, flush=True)  # in one write, as two threads print

    def end(self) -> None:
        """Stop showing jobs, print the whole in a line, then the results; delete files of progress, clear all."""
        self.stop_live()
        if self.ended is not None:
            self.ended.set()
            self.ended = None
        for job in self.jobs.values():
            self.forget(job)
        self.jobs.clear()
        if self.stopped:
            self.say("stopped; the same command continues")
        elif self.done or self.failed:
            wrong = f", {len(self.failed)} failed" if self.failed else ""
            self.say(f"{self.done} of {self.total} jobs in {format_clock(time.monotonic() - self.began)}{wrong}")
        for text in self.last:
            self.say(text)
        self.done, self.failed, self.stopped, self.last = 0, set(), False, []
