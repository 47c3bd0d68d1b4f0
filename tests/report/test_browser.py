"""The page in a browser: no script fails; nothing is fetched; a screen reader finds its way; what other people wrote
stays text, whatever the script does with it."""

import copy
import importlib.resources
import importlib.util
import json
import shutil

import numpy as np
import pytest

from parity.report import page as report_page
from tests.report.test_page import HOSTILE, replace_captions

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
SHOWN = "() => !document.querySelector('.packed > .instead:not([hidden])')"  # true once packed data are shown
HOUR = 3_600_000  # milliseconds after which a page that shows nothing fails
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
SERIOUS = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
  .filter((v) => ["serious", "critical"].includes(v.impact))
  .map((v) => v.id + ": " + v.nodes.length + " " + v.nodes[0].html.slice(0, 200) + v.nodes[0].failureSummary))"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (dependency group dev)")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS, timeout=HOUR)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser):
    contexts = []

    def open_page(file, dark=False):
        settings = {"viewport": {"width": 1400, "height": 900}, "color_scheme": "dark" if dark else "light"}
        contexts.append(browser.new_context(**settings))
        contexts[-1].set_default_timeout(HOUR)
        page = contexts[-1].new_page()
        page.complaints, page.requests = [], []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(file.absolute().as_uri())
        page.requests[:] = [url for url in page.requests[1:] if not url.startswith("data:")]
        page.wait_for_function(SHOWN)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def written(shared_gathered, tmp_path_factory):
    """The report page of the made-up results, with hostile captions, labels and notes."""
    evil = "".join(HOSTILE)
    g = copy.deepcopy(shared_gathered)
    g.equality.loc[g.equality["layer"] == "exact", "note"] = evil
    g.summary.loc[g.summary["method"] == "gsd", ["label", "note"]] = evil
    g.files.read_features = replace_captions(g.files.read_features, np.array([evil] * 12))
    report_page.write_page(g, tmp_path_factory.mktemp("page") / "report.html")
    return next(tmp_path_factory.getbasetemp().glob("page*/report.html"))


def test_no_script_fails_and_nothing_is_fetched(open_page, written):
    for name in ("report.html", "index.html"):
        page = open_page(written.with_name(name))
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        assert page.complaints == []
        assert page.requests == []
    with page.expect_console_message():  # the test does see what is fetched
        page.evaluate("document.body.append(Object.assign(new Image(), {src: 'https://localhost/picture.png'}))")
    assert page.complaints


def test_the_script_sorts_filters_replays_and_keeps_text(open_page, written):
    def change(control, value):
        event = "change" if "select" in control else "input"
        page.evaluate(f"(() => {{ {control}.value = {value}; {control}.dispatchEvent(new Event('{event}')); }})()")

    page = open_page(written)
    text = "document.querySelector('.packed select').innerText + document.body.innerText"
    assert "<script>alert(1)" in page.evaluate(text)
    assert page.evaluate("document.querySelectorAll('script, img[onerror], style').length") == 2
    table = "document.querySelectorAll('.front')[0]"
    page.evaluate(f"{table}.tHead.querySelectorAll('button')[2].click()")
    column = page.evaluate(f"[...{table}.tBodies[0].rows].map((row) => parseFloat(row.cells[2].innerText))")
    assert column == sorted(column)
    assert len(column) > 2
    rows = "document.querySelectorAll('[data-view=tests] tbody tr').length"
    n_rows = page.evaluate(rows)
    change("document.querySelectorAll('[data-view=tests] select')[3]", 1)
    assert 0 < page.evaluate(rows) <= n_rows
    shown = "[...document.querySelectorAll('tr[data-method=sjd]')].filter((row) => !row.hidden).length"
    assert page.evaluate(shown)
    page.evaluate("document.querySelector('#choice input[value=sjd]').click()")
    assert page.evaluate(shown) == 0
    status = "document.querySelectorAll('.replay p')[1].innerText"
    first_status = page.evaluate(status)
    change("document.querySelector('input[type=range]')", "1e9")
    assert "256 of 256 tokens final" in page.evaluate(status)
    assert page.evaluate(status) != first_status
    page.evaluate("location.hash = '#equality'")
    page.evaluate("new Promise((done) => setTimeout(done, 50))")
    assert page.evaluate("document.querySelector('#equality > .expert').open")
    assert page.complaints == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_screen_reader_finds_its_way(open_page, written, dark):
    if importlib.util.find_spec("axe_core_python") is None:
        pytest.skip("axe-core-python is not installed (dependency group dev)")
    axe = (importlib.resources.files("axe_core_python") / "axe.min.js").read_text()
    page = open_page(written, dark)
    more_of_the_same = "document.querySelectorAll('tbody tr:nth-child(n+5)')"
    page.evaluate(f"{more_of_the_same}.forEach((row) => row.remove())")
    page.evaluate(axe)
    only = "runOnly: ['color-contrast'], resultTypes" if dark else "resultTypes"  # only contrast depends on the colours
    assert page.evaluate(SERIOUS.replace("resultTypes", only)) == []
    page.evaluate(f"document.querySelector('.lead').style.color = '{'#555' if dark else '#aaa'}'")
    violations = page.evaluate(SERIOUS.replace("document,", "document.querySelector('.lead'),"))
    assert "color-contrast" in json.dumps(violations)  # the test does see what cannot be read
