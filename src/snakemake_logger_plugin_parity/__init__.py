"""A logger plugin of Snakemake: one line a running job with what it has done, one a finished job, the result last.

    snakemake --logger parity ...                                  (the profile of this workflow says so)
    snakemake --logger parity --logger-parity-style plain ...      what Snakemake prints itself

On a terminal the lines of running jobs move, with the images and passes a job has done and the time left. Elsewhere, in
a file or a pipe, a finished job is one line, and so is each minute of the jobs that have run longest. A failed job
shows the error that it ended with and the end of its log. A dry run, `--verbose` and everything that runs no job are
printed as Snakemake does."""

import sys
from dataclasses import dataclass, field
from logging import LogRecord
from typing import Literal

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

STYLES = ("auto", "live", "lines", "plain")
NOISE = ("Assuming unrestricted shared", "Config file ", "Using profile")
NO_LOG_FILE = "Failed to setup log file"  # a warning of Snakemake's that is not shown: the run ends in a line of ours


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    style: Literal["auto", "live", "lines", "plain"] = field(
        default="auto",
        metadata={"help": f"What is printed: {', '.join(STYLES)}. auto is live on a terminal, lines elsewhere."},
    )


class LogHandler(LogHandlerBase):
    """Gives Snakemake's records to one of three: as Snakemake prints them, as lines, or live."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Choose what prints: Snakemake's own handler, and a `Run` unless no job runs or Snakemake shall print all."""
        from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter

        settings, stream = self.common_settings, sys.stdout if self.common_settings.stdout else sys.stderr
        style = getattr(self.settings, "style", None) or "auto"
        if style not in STYLES:
            raise ValueError(f"--logger-parity-style {style}: allowed: {', '.join(STYLES)}")
        quiet = set(settings.quiet or ())
        self.plain = ColorizingTextHandler(
            nocolor=settings.nocolor,
            stream=stream,
            formatter=DefaultFormatter(quiet, settings.show_failed_logs),
            filter=DefaultFilter(quiet, settings.debug_dag, settings.verbose, settings.dryrun, settings.printshellcmds),  # type: ignore[arg-type]
        )
        self.run = None
        if style != "plain" and not (settings.dryrun or settings.verbose or settings.debug_dag or quiet):
            from snakemake_logger_plugin_parity.run import Run

            self.run = Run(stream, live=style == "live" or (style == "auto" and stream.isatty()), print_as=self.plain)

    def emit(self, record: LogRecord) -> None:
        """Give a record to the run, or else to Snakemake's handler without what is noise."""
        if getattr(record, "event", None) == "job_info":  # without a message Snakemake prints rule, input and output
            fields = vars(record)
            fields["title"], fields["rule_msg"] = fields.get("rule_msg"), None
        if str(record.msg).startswith(NO_LOG_FILE):
            return
        if self.run is not None:
            self.run.take(record)
        elif not str(record.msg).startswith(NOISE):
            self.plain.handle(record)

    def close(self) -> None:
        """Print the run's last lines."""
        if self.run is not None:
            self.run.end()
        super().close()
