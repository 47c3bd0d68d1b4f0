"""Files of a certification: report.html, certificate.json, junit.xml, badge.svg, and a line for a README."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from parity_certify.certificate import Certificate
from parity_certify.files import publish, write_json
from parity_certify.verdict import Kind

COLOURS: dict[Kind, str] = {  # of every badge, page and figure; they differ under every common kind of colour blindness
    "certified": "#0072b2", "consistent": "#4c6a7d", "lossy": "#b34700", "inconclusive": "#6b7280",
}  # fmt: skip
COLUMNS = ("model", "seed", "repeat", "test", "n", "statistic", "p_value", "effect", "verdict", "note")
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ddd;padding:.25rem .5rem;text-align:left}
td.n{text-align:right}
pre{background:#f5f5f5;padding:.75rem;overflow:auto}h1{border-left:.5rem solid;padding-left:.75rem}
"""


def draw_badge(kind: Kind, words: str) -> str:
    """Draw a badge, "parity" and words in the colour of a kind of verdict, as SVG text."""
    a = 52
    b = 14 + round(6.6 * len(words))
    text = '<text x="{}" y="14" fill="#fff" font-family="Verdana,sans-serif" font-size="11">{}</text>'
    boxes = f'<rect width="{a}" height="20" fill="#444"/>'
    boxes += f'<rect x="{a}" width="{b}" height="20" fill="{COLOURS[kind]}"/>'
    words = text.format(7, "parity") + text.format(a + 7, escape(words))
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{a + b}" height="20">{boxes}{words}</svg>\n'


def format_badge_line(c: Certificate, folder: Path) -> str:
    """Write the line of Markdown that shows a folder's badge.svg in a README."""
    return f"![parity: {c.verdict.pill}]({folder}/badge.svg)"


def format_table(rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> str:
    """Write rows as an HTML table; all text is escaped."""

    def format_cell(value: Any) -> str:
        """Write a cell: a float with four digits, None as empty."""
        if isinstance(value, float):
            return f'<td class="n">{value:.4g}</td>'
        return f"<td>{escape('' if value is None else str(value))}</td>"

    head = "".join(f"<th>{escape(c.replace('_', ' '))}</th>" for c in columns)
    body = "".join(f"<tr>{''.join(map(format_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def format_page(c: Certificate, folder: Path, about: dict[str, Any]) -> str:
    """Write a certificate as an HTML page that needs no other file. about: what was sampled, and the "command"."""
    v, details = c.verdict, c.details
    blocks = [f"<h1 style='border-color:{COLOURS[c.verdict.kind]}'>{escape(c.name)}: {escape(v.words)}</h1>"]
    blocks.append(f"<p>{escape(v.reason)}.</p>")
    blocks.append(f"<p>{escape(c.drafts.capitalize())}.</p>")
    blocks += [f"<p>Hardly tested: {escape(text)}.</p>" for text in c.warnings]
    if "diagnosis" in details:
        blocks.append(f"<h2>Diagnosis</h2><p>{escape(details['diagnosis']['says'])}.</p>")
    if v.untested:
        blocks.append(f"<p>Tested: {escape('; '.join(v.tested))}.</p>")
        blocks.append(f"<p>Not tested, so still possible: {escape('; '.join(v.untested))}.</p>")
    if c.where:
        blocks.append(f"<h2>Where</h2><p>{escape(c.where)}.</p>")
    if about.get("command"):
        blocks.append(f"<h2>Again</h2><pre>{escape(about['command'])}</pre>")
    sampled = [(key, value) for key, value in about.items() if key != "command"]
    blocks.append("<h2>What was sampled</h2>" + format_table(sampled, ("what", "value")))
    blocks.append("<h2>Rows</h2>" + format_table([[row.get(c) for c in COLUMNS] for row in c.rows], COLUMNS))
    blocks.append(f"<h2>Badge for a README</h2><pre>{escape(format_badge_line(c, folder))}</pre>")
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(c.name)}</title>"
    return f"{head}<style>{STYLE}</style>{''.join(blocks)}</html>\n"


def make_printable(text: str) -> str:
    """Escape the characters of a text that XML cannot hold."""
    return "".join(x if x.isprintable() else ascii(x)[1:-1] for x in text)


def format_junit(c: Certificate) -> bytes:
    """Write JUnit XML with one test case: lossy is a failure, what is not decided an error, anything else passes."""
    v = c.verdict
    lines = [v.sentence, f"tested: {'; '.join(v.tested)}", f"not tested: {'; '.join(v.untested)}"]
    return format_suite(c.name, v.exit_code, v.outcome, v.kind, c.details.get("seconds") or 0.0, lines)


def format_suite(
    name: str, exit_code: int, message: str, kind: str, seconds: float = 0.0, lines: Sequence[str] = ()
) -> bytes:
    """Write JUnit XML with one test case of this name and exit code: 1 is a failure, 2 and 3 are errors; message, kind:
    of the failure or error; lines: of its output."""
    totals = {"tests": "1", "failures": str(int(exit_code == 1)), "errors": str(int(exit_code > 1))}
    suite = ET.Element("testsuite", {"name": "parity-certify", **totals})
    case = ET.SubElement(suite, "testcase", {"classname": "parity_certify", "name": make_printable(name)})
    case.set("time", f"{seconds:.3f}")
    if exit_code:
        element = "failure" if exit_code == 1 else "error"
        ET.SubElement(case, element, {"message": make_printable(message), "type": kind})
    ET.SubElement(case, "system-out").text = "\n".join(map(make_printable, lines))
    return ET.tostring(suite, encoding="utf-8", xml_declaration=True)


def write_files(c: Certificate, folder: Path, about: dict[str, Any]) -> None:
    """Write report.html, junit.xml, badge.svg and certificate.json to a folder. about: see `format_page`."""
    publish(folder / "report.html", format_page(c, folder, about).encode())
    publish(folder / "junit.xml", format_junit(c))
    publish(folder / "badge.svg", draw_badge(c.verdict.kind, c.verdict.pill).encode())
    content: dict[str, Any] = {"sampler": c.name, "claim": c.claim, "verdict": c.verdict.json(), "rows": c.rows}
    content |= {"beside": c.details, "about": about, "exit_code": c.exit_code, "badge": format_badge_line(c, folder)}
    write_json(folder / "certificate.json", content)
