"""The section on self-tests, which ship with their result (`parity.equality.self_tests`)."""

from collections.abc import Mapping
from typing import Any

from parity.equality.self_tests import SelfTests
from parity.metrics.estimates import PERCENT, Estimate
from parity.report import tables
from parity.report.blocks import Details, Entry, Section, Words, format_text
from parity.report.tables import Column, format_p_value, show_chip, show_estimate, show_table, show_text

CALIBRATED = "Can the tests be trusted: do they find what is wrong, and seldom reject what is right?"
RAN = (
    "They test the code of Parity alone, so they are no part of this experiment: they ran on {date}, took {minutes:.0f}"
    " minutes of a core, and ship with their result."
)
CHANGED = (
    "The code of the tests or of the decoders has changed since the self-tests ran on {date}. `snakemake self_tests`"
    " runs them again."
)
FAULTS = (
    "Decoders with a planted fault, which the tests must find in every sample; then correct decoders, which they must"
    " not reject in all samples. They are not methods of this experiment. An error as small as a missed fault would"
    " escape the tests of this report."
)


def describe_outcome(row: Mapping[str, Any]) -> str:
    """Say in how many samples a decoder of the self-tests, faulty or correct, was rejected."""
    hits, samples, required = row["hits"], row["samples"], row["as_required"]
    if not row["fault"]:
        explanation = "by chance, and not again on the other seed" if required else "a false alarm"
        return f"correct, rejected in {hits} of {samples} samples{f': {explanation}' * bool(hits)}"
    return f"found in {hits} of {samples} samples{': too few sequences for it' * (required is None)}"


def warn_of_failures(tests: SelfTests) -> str:
    """Write the sentence on faults that were not found and correct decoders that were rejected; "" if all went well."""
    wrong = [f"{row['decoder']} ({describe_outcome(row)})" for row in tests.failures]
    if not wrong:
        return ""
    count = f"{len(wrong)} self-test{'s' * (len(wrong) > 1)} failed"
    return f"{count}, so verdicts of the same layers are in doubt: {'; '.join(wrong)}."


def show_self_tests(tests: SelfTests) -> Section:
    """Make the section on which planted faults were found, and how often each test rejects true hypotheses."""
    faulty_first = sorted(tests.faults, key=lambda row: not row["fault"])
    about = {"date": tests.date, "minutes": tests.seconds / 60}
    body: list[Any] = [RAN.format(**about)]
    body += [] if tests.is_current() else [Words(CHANGED.format(**about), "warning")]
    body += [Words("Can the tests fail?", "heading"), show_table(faulty_first, PLANTED, FAULTS)]
    sizes = show_table(tests.sizes, SIZES, "Share of true null hypotheses rejected at the nominal level 0.05.")
    body += [Words("Are the p-values honest?", "heading"), Details("Measured size of each test", [sizes])]
    return Section("self-tests", "Tests of the tests", CALIBRATED, *body, folded=True)


PLANTED = [
    Column("Decoder", show_text("decoder"), "a decoder of the test harness, or a method with a change to it"),
    Column("Fault", lambda r: Entry(format_text(r["fault"]) or "correct decoder", style="text")),
    Column("n", "n", "sequences or tokens of a sample"),
    Column("Outcome", lambda r: Entry(describe_outcome(r), "", "wrong" if r["as_required"] is False else "text")),
    Column(
        "Largest p",
        lambda r: Entry(format_p_value(r["largest_p"]), format_text(r["model"])),
        "of all samples, and its model",
    ),
    Column("Effect", tables.show_effect, "in that sample, and its unit"),
]
SIZES = [
    Column("Test", show_text("test")),
    Column("Replicates", "n"),
    Column(
        "Rejected", lambda r: show_estimate(Estimate(r["effect"], None, r["low"], r["high"])), f"{PERCENT} interval"
    ),
    Column("Verdict", lambda r: show_chip(r["verdict"])),
]
