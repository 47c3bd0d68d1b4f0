"""Any-subset text: verdicts, what each method cost and wrote, t-tests beside the tests of the distribution."""

from collections.abc import Iterator
from typing import Any

from parity.metrics.estimates import Estimate
from parity.report import shared_sections as shared
from parity.report import tables
from parity.report.blocks import Details, Entry, Section, Terms, Words
from parity.report.collect import Gathered
from parity.report.settings import parse_settings
from parity.report.tables import NONE, Column, show_estimate, show_p_values, show_table, show_value

KIND = "anysubset"
PAPER, PANELS = "Guo & Ermon 2025 (ASSD), Table", ["nfe_per_token", "speedup", "perplexity_ratio"]
# A figure is drawn over each of these settings that takes three values: its measures, and the paper's table.
SWEPT = {"k": (PANELS, f"{PAPER} 5"), "length": (PANELS, f"{PAPER} 6"), "tolerance": (PANELS, f"{PAPER} 8")}
COLUMNS = [
    Column("Perplexity", "perplexity", "of the whole text under the judge"),
    Column("Entropy", "entropy", "of the words of a row, in bits"),
    Column("log p", "logp", "log-probability of the filled-in tokens under the any-subset model, in nats"),
    Column("Passes", "nfe", "evaluations of the network that a row needed"),
    Column("Drafter calls", "aux"),
    Column("Passes per token", show_value("nfe_per_token", 3)),
    Column("Tokens per loop", show_value("tokens_per_loop", 3)),
    Column(
        "p, perplexity", show_p_values("p_perplexity"), "t-tests against plain decoding: Welch's, and paired by prompt"
    ),
    Column("p, entropy", show_p_values("p_entropy"), "the same for entropy"),
    Column("p, log p", show_p_values("p_logp"), "the same for log p"),
]
TASK_COLUMNS = {
    "stories": [Column(f"ROUGE-{n}", f"rouge{n}", "F-measure against the hidden sentences") for n in ("1", "2", "L")],
    "code": [Column("pass@1", "passed", "share of completions that pass their unit tests")],
}
SHOWN = {"perplexity", "entropy", "logp", "nfe", "aux", "nfe_per_token", "tokens_per_loop", "passed", "speedup"}
SHOWN |= {"rouge1", "rouge2", "rougeL", "speedup_single", "network_share"}


def describe_task(task: str, settings: dict[str, Any]) -> str:
    """Describe a text task in words: rows, what is hidden, attempts, data file."""
    n, tries = settings["rows"], settings.get("attempts", 1)
    source = f", {tries} attempts each" * (tries > 1) + (f", from {settings['data']}" if settings.get("data") else "")
    if task == "infilling":
        layout = "scattered" if settings["prompt"] == "scattered" else "all but the beginning"
        hidden = f"{100 * settings['masked']:g} % of them hidden ({layout})"
        return f"{n} texts of {settings['length']} tokens, {hidden}{source}"
    if task == "stories":
        hidden = "the third" if settings["missing"] == 1 else "the three in the middle"
        return f"{n} stories of five sentences, {hidden} hidden{source}"
    return f"{n} functions, a line of each hidden{source}"


def make_sections(g: Gathered) -> Iterator[Section]:
    yield Section("text", "Text: methods", TEXT, shared.show_verdicts(g, KIND, VERDICTS), READING, *show_tasks(g))
    if plots := shared.draw_sweep_plots(g, KIND, SWEPT):
        yield Section("text-sweeps", "Text: by setting", SWEEPS, *plots)


def make_accuracy_sections(g: Gathered) -> Iterator[Section]:
    """Yield the section on the accuracy of the text models themselves, if they were asked."""
    if g.accuracy:
        table = show_table(g.accuracy, ACCURACY, HELD_OUT)
        yield Section("text-accuracy", "Text: last word and multiple choice", LIKELIEST, table)


def show_tasks(g: Gathered) -> Iterator[Any]:
    """Yield for each task and its settings a table of what the methods cost and wrote, and each method's first text."""
    cells = {c.key: c for c in g.files.cells}
    for (task, settings), task_rows in g.select_rows(KIND).groupby(["task", "settings"], sort=False):
        yield Words(str(task).capitalize(), "heading")
        not_run = task_rows["passed_why"].dropna().unique() if "passed_why" in task_rows else ()
        yield from (f"pass@1 not run: {reason}." for reason in not_run)
        rows, task_columns = shared.label_rows(task_rows), [] if len(not_run) else TASK_COLUMNS.get(str(task), [])
        columns = [tables.METHOD, *tables.COST, *tables.CLOCK, *task_columns, *COLUMNS]
        yield show_table(rows, columns, describe_task(str(task), parse_settings(settings)))
        yield from shared.show_other_figures(KIND, rows, SHOWN)
        shown = [row for row in rows if row["role"] != "control"]
        texts = Terms([(row["label"], g.files.read_records(cells[row["key"]])["text"].iloc[0]) for row in shown])
        yield Details("What the methods wrote for the first row", [texts])


ACCURACY = [
    Column("Task", lambda row: Entry(row["task_kind"].replace("_", " "), row["model"], "name")),
    Column("Questions", "n"),
    Column("Accuracy", lambda row: show_estimate(Estimate(row["accuracy"], row["error"]))),
    Column("of pairs seen in training", show_value("accuracy_known_pairs", 3, NONE)),
    Column("of pairs held out", show_value("accuracy_held_out_pairs", 3, NONE)),
]
TEXT = "For each method on text its verdict, and for each task what it cost and how likely its words are."
SWEEPS = "How cost and quality change with one setting of a method."
LIKELIEST = "How often the text model itself answers correctly, without sampling."
VERDICTS = (
    "Verdicts rest on tests of the distribution alone: on small models that are known exactly, with at most three"
    " drafts a loop, on long ones, and teacher-forced on the text model. The t-tests below are what the paper reports;"
    " a method may pass them and still be wrong."
)
READING = "Mean and standard error over rows. Plain decoding ran twice: the difference of its two rows is chance."
HELD_OUT = (
    "The answer is the likeliest last word, or the likeliest of four endings. Held out: pairs of an event and a thing"
    " that never occurred together in training."
)
