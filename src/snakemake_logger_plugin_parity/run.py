"""What is shown of a run: its jobs, as Snakemake's records tell of them, and the progress that each writes itself."""

import re
import time
from collections import defaultdict
from dataclasses import dataclass, field
from logging import WARNING, Handler, LogRecord
from pathlib import Path
from typing import Any, TextIO

TAIL = 12  # lines of a failed job's log
SHOWN = 8  # running jobs at most
GATHER = ("all", "equality", "image", "text", "continuous")  # targets, which take no time
ALONE = re.compile(r", part 0.of.1$")  # of a job that has no other part
ALWAYS = ("Nothing to be done",)
STOPPED = ("KeyboardInterrupt", "stopped")  # last lines of a job that Ctrl-C ended
STOPPING = "Terminating processes on user request"  # Snakemake's own, to Ctrl-C
OF_A_JOB = ("RuleException", "At least one job did not complete successfully")  # what FAILED and the last line say


def clock(seconds: float) -> str:
    """4 s, 3:07, 1:02:03."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


@dataclass
class Job:
    rule: str
    name: str  # what it does, in the words of the rule's message
    logs: list[str]
    began: float = field(default_factory=time.monotonic)

    def notes(self) -> list[Path]:
        return [Path(f"{log}.now") for log in self.logs]

    def progress(self) -> str:
        """What the job says of itself, in the file beside its log: '32 of 64 images, 512 passes'."""
        for note in self.notes():
            try:
                return note.read_text(encoding="utf-8")[:80].strip()
            except (OSError, UnicodeDecodeError):
                continue
        return ""

    def share(self) -> float:
        """How much of it is done, 0 to 1, where it says so."""
        found = re.match(r"([\d.]+) of (\d+)", self.progress())
        return min(1.0, float(found[1]) / int(found[2])) if found and int(found[2]) else 0.0

    def error(self) -> tuple[str, list[str]]:
        """The line that a failed job ended with, and the end of its log."""
        lines = []
        for log in self.logs:
            try:
                lines += Path(log).read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
        said = [line for line in lines if line.strip() and not line.startswith("cost:")]
        ours = [line for line in said if line.startswith("error:")]
        return (ours or said or ["its log is empty"])[-1], [] if ours else said[-TAIL:]


class Run:
    """The jobs of a run, and where what is said of them goes."""

    def __init__(self, stream: TextIO, live: bool, print_as: Handler):
        self.stream, self.is_live, self.print_as = stream, live, print_as
        self.jobs: dict[int, Job] = {}
        self.left: dict[str, int] = {}  # jobs that wait or run, by rule
        self.took: dict[str, list[float]] = defaultdict(list)
        self.total = self.done = self.beside = 0
        self.failed: set[int] = set()  # numbers of jobs whose last try failed
        self.stopped = False  # by Ctrl-C
        self.began, self.started = time.monotonic(), False
        self.live: Any = None
        self.last: list[str] = []

    # What happens

    def take(self, record: LogRecord) -> None:
        event = getattr(record, "event", None)
        known = getattr(self, f"on_{event}", None) if event else None
        if getattr(record, "result", False):
            self.last.append(record.getMessage())
        elif known is not None:
            known(vars(record))
        elif STOPPING in str(record.msg):
            self.stopped = True
        elif any(text in record.getMessage() for text in OF_A_JOB) and (self.stopped or self.failed or self.jobs):
            return
        elif record.levelno >= WARNING or (event is None and self.wanted(str(record.msg))):
            self.through(record)

    def wanted(self, text: str) -> bool:
        """Before the jobs everything, for it may be what was asked for; then what a reader must know."""
        from snakemake_logger_plugin_parity import NOISE

        return text.startswith(ALWAYS) or not (self.started or text.startswith(NOISE))

    def on_workflow_started(self, said: dict[str, Any]) -> None:
        self.started = True

    def on_run_info(self, said: dict[str, Any]) -> None:
        counts = dict(said.get("stats") or {})
        self.total = counts.pop("total", 0)
        self.left = {rule: n for rule, n in counts.items() if rule not in GATHER}
        self.say(f"{self.total} jobs: " + ", ".join(f"{n} {rule}" for rule, n in counts.items()))

    def on_job_info(self, said: dict[str, Any]) -> None:
        wild = said.get("wildcards") or {}
        told = said.get("told") or " ".join([said["rule_name"], *map(str, wild.values())])
        if not said.get("output"):  # it only gathers others
            return
        told = ALONE.sub("", told)
        self.jobs[said["jobid"]] = Job(said["rule_name"], told, list(said.get("log") or []))
        self.beside = max(self.beside, len(self.jobs))
        self.show()

    def on_job_finished(self, said: dict[str, Any]) -> None:
        job = self.jobs.pop(said["job_id"], None)
        self.done += 1
        self.failed.discard(said["job_id"])
        if job is None:
            return
        seconds = time.monotonic() - job.began
        self.took[job.rule].append(seconds)
        self.left[job.rule] = self.left.get(job.rule, 1) - 1
        self.forget(job)
        width = len(str(self.total))
        self.say(f"[{self.done:{width}}/{self.total}] {job.name}: {clock(seconds)}")

    def on_job_error(self, said: dict[str, Any]) -> None:
        job = self.jobs.pop(said["jobid"], None) or Job(said["rule_name"], said["rule_name"], said.get("log") or [])
        self.forget(job)
        line, tail = job.error()
        self.stopped = self.stopped or line in STOPPED
        if self.stopped:
            return
        self.failed.add(said["jobid"])
        self.say(f"FAILED {job.name}\n  {line}")
        for text in tail:
            self.say(f"  | {text}")
        self.say("".join(f"  log: {log}\n" for log in job.logs).rstrip() or "  it has no log")

    def on_progress(self, said: dict[str, Any]) -> None:
        self.total = said["total"]

    def on_shellcmd(self, said: dict[str, Any]) -> None: ...

    def on_job_started(self, said: dict[str, Any]) -> None: ...

    def on_resources_info(self, said: dict[str, Any]) -> None: ...

    def on_debug_dag(self, said: dict[str, Any]) -> None: ...

    # What is shown

    def forget(self, job: Job) -> None:
        for note in job.notes():
            note.unlink(missing_ok=True)

    def remaining(self) -> float | None:
        """Seconds that are left: of a running job by its progress, of others from what jobs of the same rule took. None
        while too little is known."""
        if self.done * 20 < self.total or not self.took:
            return None
        every = [s for took in self.took.values() for s in took]
        mean = {rule: sum(took) / len(took) for rule, took in self.took.items()}
        waiting, whole = dict(self.left), 0.0
        for job in self.jobs.values():
            spent, share = time.monotonic() - job.began, job.share()
            whole += spent * (1 - share) / share if share else max(0.0, mean.get(job.rule, 0.0) - spent)
            waiting[job.rule] = waiting.get(job.rule, 1) - 1
        whole += sum(max(0, n) * mean.get(rule, sum(every) / len(every)) for rule, n in waiting.items())
        return whole / max(1, self.beside) or None

    def view(self) -> Any:
        """The moving lines: one a running job, one for the whole."""
        from rich.text import Text

        now, lines = time.monotonic(), []
        for job in sorted(self.jobs.values(), key=lambda job: job.began)[:SHOWN]:
            lines.append("  ".join(filter(None, (job.name, job.progress(), clock(now - job.began)))))
        if len(self.jobs) > SHOWN:
            lines.append(f"... and {len(self.jobs) - SHOWN} more")
        left = self.remaining()
        lines.append(
            f"{self.done} of {self.total} jobs, {clock(now - self.began)}"
            + (f", about {clock(left)} left" if left is not None else "")
            + (f", {len(self.failed)} failed" if self.failed else "")
        )
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")

    def show(self) -> None:
        if not self.is_live or self.live is not None:
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self.stream, force_terminal=True, markup=False, highlight=False, emoji=False)
        self.live = Live(get_renderable=self.view, console=console, refresh_per_second=2, transient=True)
        self.live.start()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.live is not None:
            self.live.console.print(text, soft_wrap=True)
        else:
            print(text, file=self.stream, flush=True)

    def through(self, record: LogRecord) -> None:
        """A record as Snakemake prints it."""
        if self.live is not None:
            self.live.stop()
            self.live = None
        self.print_as.handle(record)

    def end(self) -> None:
        """The whole in a line, and the result last."""
        if self.live is not None:
            self.live.stop()
            self.live = None
        for job in self.jobs.values():
            self.forget(job)
        self.jobs.clear()
        if self.stopped:
            self.say("stopped; the same command continues")
        elif self.done or self.failed:
            wrong = f", {len(self.failed)} failed" if self.failed else ""
            self.say(f"{self.done} of {self.total} jobs in {clock(time.monotonic() - self.began)}{wrong}")
        for text in self.last:
            self.say(text)
        self.done, self.failed, self.stopped, self.last = 0, set(), False, []
