"""The page in a browser: nothing overflows at any width, light or dark; no script fails; nothing is fetched; a screen
reader finds its way; what other people wrote stays text, whatever the script does with it."""

import importlib.resources
import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest

from parity.report import page
from tests.report.browser import CHROMIUM, Browser
from tests.report.test_page import HOSTILE, with_captions

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
WIDTHS = (1400, 1100, 1000, 420)
OUTSIDE = """(() => {
  const wide = document.documentElement.clientWidth, found = [];
  for (const node of document.querySelectorAll("body *")) {
    const box = node.getBoundingClientRect(), style = getComputedStyle(node);
    if (!box.width || wide < 760 && node.closest(".data thead")) continue; // headings of cards are for screen readers
    const given = node.matches("input, select");
    const cut = style.overflowX !== "visible" && node.scrollWidth > node.clientWidth + 1 && !given;
    if (box.right > wide + 1 || box.left < -1 || cut) found.push(node.tagName + "." + node.className + " " +
      node.textContent.slice(0, 40) + " " + Math.round(box.right));
  }
  return found.slice(0, 8);
})()"""
SERIOUS = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
  .filter((v) => ["serious", "critical"].includes(v.impact))
  .map((v) => v.id + ": " + v.nodes.length + " " + v.nodes[0].html.slice(0, 200) + v.nodes[0].failureSummary))"""


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def written(once, tmp_path_factory):
    """A page whose captions, labels and notes are hostile."""
    evil = "".join(HOSTILE)
    g = replace(once, summary=once.summary.copy(), equality=once.equality.copy())
    g.equality.loc[g.equality["layer"] == "exact", "note"] = evil
    g.summary.loc[g.summary["method"] == "gsd", ["label", "note"]] = evil
    read, g.files.features = g.files.features, with_captions(g.files.features, np.array([evil] * 12))
    try:
        page.write(g, tmp_path_factory.mktemp("page") / "report.html")
    finally:
        g.files.features = read
    return next(tmp_path_factory.getbasetemp().glob("page*/report.html"))


def quiet(browser):
    """What the browser complained of, and what it asked for beside the file itself."""
    asked = [e["request"]["url"] for e in browser.said("Network.requestWillBeSent")]
    complaints = [e["entry"]["text"] for e in browser.said("Log.entryAdded")]
    return browser.said("Runtime.exceptionThrown"), complaints, [u for u in asked if not u.startswith("data:")][1:]


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_overflows_fails_or_is_fetched(browser, written, dark):
    for name in ("report.html", "index.html"):
        for width in WIDTHS[::3] if dark else WIDTHS:
            browser.open(written.with_name(name), width, dark)
            browser.ask("document.querySelectorAll('details').forEach((one) => (one.open = true))")
            assert browser.ask(OUTSIDE) == [] and browser.ask("document.documentElement.scrollWidth") <= width
            assert quiet(browser) == ([], [], [])
    browser.ask("document.body.append(Object.assign(document.createElement('p'), {style: 'width: 9999px'}))")
    assert browser.ask(OUTSIDE)  # the measure sees what does overflow


def test_without_scripts_the_page_reads_whole_and_on_paper_nothing_overflows(browser, written):
    browser.open(written, 420, scripts=False)
    assert browser.ask("document.querySelectorAll('.instead:not([hidden])').length") == 2
    assert browser.ask("document.querySelectorAll('table.grid img').length") > 8 and browser.ask(OUTSIDE) == []
    browser.open(written, 1000)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.ask(OUTSIDE) == []


def test_the_script_sorts_filters_and_replays_and_leaves_text_as_text(browser, written):
    def change(control, value):
        event = "change" if "select" in control else "input"
        browser.ask(f"(() => {{ {control}.value = {value}; {control}.dispatchEvent(new Event('{event}')); }})()")

    browser.open(written)
    text = "document.querySelector('.packed select').innerText + document.body.innerText"
    assert "<script>alert(1)" in browser.ask(text)
    assert browser.ask("document.querySelectorAll('script, img[onerror], style').length") == 2
    table = "document.querySelectorAll('.front')[0]"
    browser.ask(f"{table}.tHead.querySelectorAll('button')[2].click()")
    column = browser.ask(f"[...{table}.tBodies[0].rows].map((row) => parseFloat(row.cells[2].innerText))")
    assert column == sorted(column) and len(column) > 2
    rows = "document.querySelectorAll('[data-view=tests] tbody tr').length"
    many = browser.ask(rows)
    change("document.querySelectorAll('[data-view=tests] select')[3]", 1)
    assert 0 < browser.ask(rows) <= many
    shown = "[...document.querySelectorAll('tr[data-method=sjd]')].filter((row) => !row.hidden).length"
    assert browser.ask(shown)
    browser.ask("document.querySelector('#choice input[value=sjd]').click()")
    assert browser.ask(shown) == 0
    status = "document.querySelectorAll('.replay p')[1].innerText"
    begun = browser.ask(status)
    change("document.querySelector('input[type=range]')", "1e9")
    assert "256 of 256 tokens final" in browser.ask(status) and browser.ask(status) != begun
    browser.ask("location.hash = '#equality'")
    browser.ask("new Promise((done) => setTimeout(done, 50))")
    assert browser.ask("document.querySelector('#equality > .expert').open") and quiet(browser)[:2] == ([], [])


@pytest.mark.parametrize("dark", [False, True])
def test_a_screen_reader_finds_its_way(browser, written, dark):
    if importlib.util.find_spec("axe_core_python") is None:
        pytest.skip("axe-core-python is not installed (dependency group dev)")
    axe = (importlib.resources.files("axe_core_python") / "axe.min.js").read_text()
    browser.open(written, 1400, dark)
    more_of_the_same = "document.querySelectorAll('tbody tr:nth-child(n+5)')"
    browser.ask(f"{more_of_the_same}.forEach((row) => row.remove())")
    browser.call("Runtime.evaluate", expression=axe)
    only = "runOnly: ['color-contrast'], resultTypes" if dark else "resultTypes"  # the rest hangs on no colour
    assert browser.ask(SERIOUS.replace("resultTypes", only)) == []
    browser.ask(f"document.querySelector('.lead').style.color = '{'#555' if dark else '#aaa'}'")
    found = browser.ask(SERIOUS.replace("document,", "document.querySelector('.lead'),"))
    assert "color-contrast" in json.dumps(found)  # the measure sees what cannot be read
