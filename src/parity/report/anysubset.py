"""Any-subset text: verdicts, what each method cost and wrote, t-tests beside the tests of the law."""

from collections.abc import Iterator
from typing import Any

from parity.metrics.estimates import Estimate
from parity.report import shared_sections, tables
from parity.report.blocks import Details, Entry, Section, Table, Terms, Words, estimated, missing, plain
from parity.report.collect import Gathered
from parity.report.settings import read
from parity.report.tables import NONE, Column, mark, measured, show, two_p, value

KIND = "anysubset"
TASKS = {"infilling": "Infilling", "stories": "Stories", "code": "Code"}
PAPER, PANELS = "Guo & Ermon 2025 (ASSD), Table", ["nfe_per_token", "speedup", "perplexity_ratio"]
# Settings that a figure is drawn over where they take three values: its measures, and the paper's table.
SWEPT = {"k": (PANELS, f"{PAPER} 5"), "length": (PANELS, f"{PAPER} 6"), "tolerance": (PANELS, f"{PAPER} 8")}
COLUMNS = [
    Column("Perplexity", measured("perplexity"), "of the whole text under the judge"),
    Column("Entropy", measured("entropy"), "of a row's words, bits"),
    Column("log p", measured("logp"), "of what was filled in, under the any-subset model, nats"),
    Column("Passes", measured("nfe"), "evaluations of the network that a row needed"),
    Column("Drafter calls", measured("aux")),
    Column("Passes per token", value("nfe_per_token", 3)),
    Column("Tokens per loop", value("tokens_per_loop", 3)),
    Column("p, perplexity", two_p("p_perplexity"), "t-tests against plain decoding: Welch's, and paired by prompt"),
    Column("p, entropy", two_p("p_entropy"), "likewise"),
    Column("p, log p", two_p("p_logp"), "likewise"),
]
OF_TASK = {
    "stories": [Column(f"ROUGE-{n}", measured(f"rouge{n}"), "F-measure with what was hidden") for n in ("1", "2", "L")],
    "code": [Column("pass@1", measured("passed"), "share of completions that pass their unit tests")],
}
SHOWN = {"perplexity", "entropy", "logp", "nfe", "aux", "nfe_per_token", "tokens_per_loop", "passed", "speedup"}
SHOWN |= {"rouge1", "rouge2", "rougeL", "speedup_single", "network_share"}


def describe_task(task: str, settings: dict[str, Any]) -> str:
    """A task's settings in words."""
    n, tries = settings["rows"], settings.get("attempts", 1)
    often = f", {tries} attempts each" * (tries > 1) + (f", from {settings['data']}" if settings.get("data") else "")
    if task == "infilling":
        where = "scattered" if settings["prompt"] == "scattered" else "all but the beginning"
        return (
            f"{n} texts of {settings['length']} tokens, {100 * settings['masked']:g} % of them hidden ({where}){often}"
        )
    if task == "stories":
        hidden = "the third" if settings["missing"] == 1 else "the three in the middle"
        return f"{n} stories of five sentences, {hidden} hidden{often}"
    return f"{n} functions, a line of each hidden{often}"


def sections(g: Gathered) -> Iterator[Section]:
    yield Section("text", "Text", shared_sections.verdict_table(g, KIND, VERDICTS), READING, *tasks(g))
    if plots := shared_sections.sweep_plots(g, KIND, SWEPT):
        yield Section("text-sweeps", "Text: by setting", *plots)
    if g.accuracy:
        yield Section("text-accuracy", "Text: last word and multiple choice", accuracy_table(g.accuracy))


def tasks(g: Gathered) -> Iterator[Any]:
    """For each task what the methods cost and wrote."""
    for (task, given), own in g.rows(KIND).groupby(["task", "settings"], sort=False):
        yield Words(TASKS[str(task)], "heading")
        not_run = own["code_not_run"].dropna().unique() if "code_not_run" in own else ()
        yield from (f"pass@1 not run: {why}." for why in not_run)
        of_task = [] if len(not_run) else OF_TASK.get(str(task), [])
        rows, first = (
            shared_sections.relabelled(own),
            g.records.sort_values("id", kind="stable").groupby("key")["text"].first(),
        )
        columns = [tables.METHOD, *tables.COST, *tables.CLOCK, *of_task, *COLUMNS]
        yield show(rows, columns, describe_task(str(task), read(given)), mark)
        yield from shared_sections.other_figures(KIND, rows, SHOWN)
        wrote = Terms([(row["label"], first[row["key"]]) for row in rows if row["role"] != "control"])
        yield Details("What the methods wrote for the first row", [wrote])


def accuracy_table(accuracy: list[dict[str, Any]]) -> Table:
    def share(heading: str, name: str) -> Column:
        return Column(heading, lambda row: NONE if missing(row.get(name)) else plain(row[name], 3))

    columns = [
        Column("Task", lambda row: Entry(row["task_kind"].replace("_", " "), style="name")),
        Column("Questions", value("n")),
        Column("Accuracy", lambda row: estimated(Estimate(row["accuracy"], row["error"]))),
        share("of pairs seen in training", "accuracy_known_pairs"),
        share("of pairs held out", "accuracy_held_out_pairs"),
    ]
    return show(accuracy, columns, ACCURACY)


VERDICTS = (
    "Verdicts rest on tests of the law alone: on small models whose law is known, with at most three drafts a loop, on"
    " long ones, and teacher-forced on the text model. The t-tests below are what the paper reports; a method may pass"
    " them and still be wrong."
)
READING = "Mean and standard error over rows. Plain decoding ran twice; the difference of these two rows is chance."
ACCURACY = (
    "Accuracy of the model itself, without sampling: the likeliest last word, and the likeliest of four ends. Held out:"
    " pairs of an event and a thing that never occurred together in training."
)
