"""The page: complete, self-contained, safe with other people's text, and honest about what was not run."""

import base64
import gzip
import hashlib
import json
import re
import shlex
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import yaml

from parity.base.errors import ParityError
from parity.base.files import write_json
from parity.experiment.checks import make_config
from parity.experiment.schema import FigureSpec
from parity.report import blocks, collect, images, page, shared_sections, summary_page
from parity.report.blocks import Section, cut_caption, escape_controls
from parity.report.collect import gather
from parity.report.figures import Extra
from tests.report import made
from tests.report.conftest import leave_undrawn

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}} {% include '/etc/passwd' %}",
    "</style><style>*{display:none}",
    "$\\frac$",
]


class Page(HTMLParser):
    """Parse a page: its tags, addresses, handlers of events, visible text, sections, packed data and table rows."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.links, self.handlers, self.text = [], [], [], []
        self.feed(html)
        self.sections = re.findall(r'<section id="(.*?)"', html)
        self.packed = [unpack(data) for data in re.findall(r"<template>(.*?)</template>", html, re.S)]
        lines = re.findall(r'<tr(?: class="(.*?)")?[^>]*>(.*?)</tr>', html, re.S)
        self.rows = [(style, re.findall(r"<t[dh] [^>]*>(.*?)</t[dh]>", line, re.S)) for style, line in lines]

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "srcset", "action", "data", "poster", "formaction")]
        self.handlers += [k for k, _ in attrs if k.startswith("on")]

    def handle_data(self, data):
        self.text.append(data)


def unpack(data):
    """Read the data that a page holds as base64 of gzipped JSON."""
    return json.loads(gzip.decompress(base64.b64decode(data)))


def build_html(gathered):
    return page.build_page(gathered.settings.experiment, page.list_sections(gathered))


def build_separate(gathered, name):
    """Build the page that holds a single section, and refers to report.html; return its HTML."""
    return page.build_page(gathered.settings.experiment, page.list_sections(gathered), "report.html", only=[name])[0]


@pytest.fixture(scope="module")
def built(shared_gathered):
    with pytest.MonkeyPatch.context() as patch:
        leave_undrawn(patch)
        return build_html(shared_gathered)


def split_sections(html):
    return {section.partition('"')[0]: section for section in html.split('<section id="')[1:]}


def test_the_contents_lead_to_every_section_the_verdicts_first(built):
    html = Page(built[0])
    assert sorted(x[1:] for x in html.links if x.startswith("#")) == sorted(html.sections)
    assert "published.html#published" in html.links
    assert "published" not in html.sections
    kinds = [next(i for i, s in enumerate(html.sections) if s.startswith(k)) for k in ("image", "text", "continuous")]
    assert html.sections[:2] == ["verdicts", "study"]
    assert kinds == sorted(kinds)
    assert html.sections[-1] == "files"
    assert len(re.findall(r'<p class="shows">[A-Z].{20,}[.?]</p>', built[0])) == len(html.sections)
    assert built[0].count('<details class="expert">') == 4


LEADS = r"#|data:image/(svg\+xml|webp);base64,|figures/[a-z0-9-]+\.csv$|\w+\.(csv|parquet|html#\w+)$"


def test_the_page_is_self_contained_and_runs_one_pinned_script(built):
    html = Page(built[0])
    assert all(re.match(LEADS, x) for x in html.links)
    assert not html.handlers
    assert not {"link", "iframe", "object", "embed", "form", "base"} & set(html.tags)
    assert "default-src 'none'" in built[0]
    assert "url(" not in built[0]
    assert "@import" not in built[0]
    [policy] = re.findall(r"script-src ([^;]*);", built[0])
    [script] = re.findall(r"<script>(.*?)</script>", built[0], re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"'sha256-{digest}'"
    assert "unsafe" not in policy
    assert "trusted-types" in built[0]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", script)


def test_nothing_is_blank_and_no_p_is_nought(built):
    html = Page(built[0])
    entries = [entry for _, row in html.rows for entry in row]
    assert len(entries) > 100
    assert all("<img" in entry or re.sub("<.*?>", "", entry).strip() for entry in entries)
    words = " ".join(html.text)
    assert not {"nan", "None", "<NA>"} & set(words.split())
    assert "< 1e-300" in words


def test_a_false_claim_is_marked_and_a_lossy_one_is_not(built):
    marked = [row[0] for style, row in Page(built[0]).rows if style == "mismatch"]
    assert marked and all(">jacobi</span>" in name for name in marked)
    assert "not borne out" in built[0]
    assert "better than claimed" not in built[0]


@pytest.mark.long
def test_hostile_text_is_shown_and_never_acted_on(gathered, undrawn, monkeypatch):
    evil = HOSTILE[0] + HOSTILE[1] + HOSTILE[2]
    g = gathered
    read_records = g.files.read_records
    monkeypatch.setattr(g.files, "read_records", lambda cell: read_records(cell).assign(text=evil))
    for frame, names in ((g.summary, ("label", "device", "note")), (g.equality, ("note", "model"))):
        for name in names:
            frame[name] = [HOSTILE[i % len(HOSTILE)] + str(i) for i in range(len(frame))]
    g.equality.loc[g.equality["layer"] == "exact", "test"] = evil
    g.verdicts["label"] = g.verdicts["verdict"] = g.verdicts["note"] = evil
    g.published["paper"] = g.published["model"] = evil
    g.environment = {evil: {evil: evil}}
    g.extras = [Extra("evil", evil, evil, pd.DataFrame({"value": [1.0, 2.0], "label": evil}), "histogram", x=evil)]
    figure = FigureSpec(title=evil, x="method", y=["fid"], paper=evil.replace(",", ""), reading=evil)
    image = g.settings.image.model_copy(update={"study": [figure]})
    g.settings = g.settings.model_copy(update={"experiment": evil, "image": image})
    monkeypatch.setattr(g.files, "read_features", replace_captions(g.files.read_features, np.array([evil] * 12)))
    htmls = (build_html(g)[0], build_separate(g, "published"), build_separate(g, "observations"))
    pages = [Page(html) for html in htmls]
    for html in pages:
        assert html.tags.count("script") == 1
        assert not html.handlers
        assert html.tags.count("style") == 1
        assert all(re.match(LEADS + r"|report\.html#", x) for x in html.links)
    html = pages[0]
    assert all(re.match(LEADS, x) for x in html.links)
    text = "".join(html.text)
    assert all(h in text for h in HOSTILE[:4])  # hostile words are text, and braces are not evaluated
    assert all(evil in json.dumps(data).replace('\\"', '"') for data in html.packed)
    assert len(html.packed) == 2


def replace_captions(read, captions):
    """Make a function that reads a cell's features as `read` does, with other captions."""

    def features(cell):
        values = read(cell)
        return values | ({"captions": captions} if "captions" in values else {})

    return features


IMAGES = {"prompts": {"file": "prompts.txt", "shards": 1}, "methods": {"ar": [{}], "sjd": [{}]}}
TEXTS = {"methods": {"sequential": [{}], "assd": [{}]}, "tasks": {"infilling": [{"rows": 2, "length": 24}]}}
VECTORS = {"methods": {"mar": [{}], "cspd": [{}]}, "images": 2}


@pytest.mark.parametrize(("section", "method"), [("image", "ar"), ("text", "sequential"), ("continuous", "mar")])
def test_what_is_missing_is_said_to_be_missing(tmp_path, undrawn, section, method):
    """Plain decoding alone, of one image or few rows, and no published numbers."""
    content = {"image": IMAGES | {"prompts": IMAGES["prompts"] | {"limit": 1}}, "text": TEXTS, "continuous": VECTORS}
    raw = {"experiment": "least", section: content[section] | {"methods": {method: [{}]}}}
    g = gather(made.write_results(tmp_path, raw), [], root=tmp_path)
    html, _ = build_html(g)
    assert "no method but plain decoding" in html
    assert "reproduces no published table" in build_separate(g, "published")
    assert 'class="stand-in"' not in html
    g.settings = g.settings.model_copy(update={"stand_in": True})
    page.write_page(g, tmp_path / "report.html")
    for name in ("report.html", "index.html"):
        written = (tmp_path / name).read_text()
        assert 'class="stand-in"' in written
        assert "No figure here says anything of the models" in written


def test_a_page_of_some_kinds_reads_no_files_of_the_others(tmp_path, undrawn):
    settings = made.write_results(tmp_path)
    for folder in ("cells/discrete", "cells/continuous"):
        (tmp_path / "results" / folder).rename(tmp_path / folder.replace("/", "-"))
    g = gather(settings, [], only=["anysubset"], root=tmp_path)
    html = Page(build_html(g)[0])
    assert any(s.startswith("text") for s in html.sections)
    assert not [s for s in html.sections if s.startswith(("image", "continuous"))]
    assert set(g.summary["kind"]) == {"anysubset"}


def test_an_experiment_that_only_asks_its_models_makes_a_page(tmp_path, undrawn):
    """It has no cell; two models of equal weights are asked both."""
    asked = {"infilling": [], "last_word": [{"rows": 5}], "choice": [{"rows": 5}]}
    models = {name: {"family": "xlnet"} for name in ("one", "other")}
    text = {"methods": {"sequential": [{}]}, "tasks": asked}
    g = gather(made.write_results(tmp_path, {"experiment": "asks", "models": models, "text": text}), [], root=tmp_path)
    html = Page(build_html(g)[0])
    assert "text-accuracy" in html.sections
    assert not [s for s in html.sections if s.startswith(("image", "continuous"))]
    assert {(a["task_kind"], a["model"]) for a in g.accuracy} == {
        (kind, name) for kind in ("last_word", "choice") for name in models
    }
    g.files.join_records(tmp_path / "records.parquet")
    assert len(pd.read_parquet(tmp_path / "records.parquet")) == 0


@pytest.mark.long
def test_the_command_writes_the_same_page_and_every_file(results, built, undrawn, tmp_path, monkeypatch):
    """Every section is the other page's, figures and all, but those that name the command and its further figure."""
    from parity.report.__main__ import main

    root, settings, papers = results
    extra = {"name": "alike", "title": "Alike", "caption": "c", "kind": "histogram"}
    write_json(tmp_path / "extra.json", extra | {"data": [{"value": 1}, {"value": 2}]})
    monkeypatch.chdir(root)
    command = ["report", "--config", settings.model_dump_json(exclude_unset=True), "--published", str(papers)]
    monkeypatch.setattr("sys.argv", [*command, "--extra", str(tmp_path / "extra.json"), "--out", str(tmp_path / "out")])
    main()
    out = tmp_path / "out"
    assert (out / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (out / "figures/alike.csv").exists()
    own_sections, built_sections = split_sections((out / "report.html").read_text()), split_sections(built[0])
    assert "Alike" in (out / "observations.html").read_text()
    assert list(own_sections) == list(built_sections)
    assert "Big" in (out / "published.html").read_text()
    differ = {name for name in own_sections if own_sections[name] != built_sections[name]}
    assert differ <= {"environment", "files"}, differ
    assert own_sections["study"].count("data:image/svg")
    summary = pd.read_csv(out / "summary.csv")
    assert summary.columns[0] == "kind"
    assert set(summary["kind"]) == {"discrete", "anysubset", "continuous"}
    assert len(pd.read_parquet(out / "records.parquet")) == summary["n"].sum()
    assert {"equality.csv", "published.csv"} <= {p.name for p in out.iterdir()}
    assert not list(out.rglob("*.part"))


def test_settings_of_the_page_are_those_given(gathered):
    """The configuration on the page can be run again: it is read back as what was asked for."""
    code = next(b for b in shared_sections.make_environment_section(gathered).body if getattr(b, "form", "") == "code")
    assert make_config(yaml.safe_load(code.text)) == gathered.settings


def test_the_command_of_a_row_keeps_its_configuration():
    typed = "snakemake --cores 2 --configfile a.yaml 'b c.yaml' --config scale=0.1 -n all"
    command = shlex.split(summary_page.make_command(typed, "x/y.json"))
    assert command[:5] == ["uv", "run", "snakemake", "--cores", "all"]
    assert command[5:] == ["--configfile", "a.yaml", "b c.yaml", "--config", "scale=0.1", "--", "x/y.json"]
    assert shlex.split(summary_page.make_command("", "x"))[-2:] == ["--", "x"]


def test_images_that_no_network_judged_are_shown_all_the_same(gathered, monkeypatch):
    read_features = type(gathered.files).read_features
    without = lambda self, cell: {k: v for k, v in read_features(self, cell).items() if k != "cosine"}  # noqa: E731
    monkeypatch.setattr(type(gathered.files), "read_features", without)
    caption, *views, grid = images.show_images(gathered)
    assert "worst" not in caption + views[0].instead  # no image is the worst without a score
    assert grid.rows
    assert all(note == "" for _, note, _ in grid.rows)
    assert all(re.fullmatch(r"[\d, ]+ passes", below) for *_, row in grid.rows for _, _, below in row)
    assert views and np.isnan(grid.data["worst_difference"]).all()
    columns = unpack(views[0].data)["columns"]
    assert all(value is None for column in columns for value in column["cosine"])


@pytest.mark.parametrize("count", [1, 3])
def test_few_images_and_texts_make_a_page(tmp_path, undrawn, count):
    image = IMAGES | {"prompts": IMAGES["prompts"] | {"limit": count}}
    settings = made.write_results(tmp_path, {"experiment": "few", "image": image, "text": TEXTS, "continuous": VECTORS})
    g = gather(settings, [], root=tmp_path)
    html = page.build_page("few", page.list_sections(g))[0]
    assert "too few images" in html
    row = g.select_rows("discrete").set_index("label").loc["sjd"]
    assert ("gain_se" in row and row["gain_se"] >= 0) == (count > 1)


def test_a_baseline_without_tests_makes_a_page(tmp_path, undrawn):
    settings = {"experiment": "few", "continuous": VECTORS | {"methods": {"mar": [{"iterations": 8}]}}}
    g = gather(made.write_results(tmp_path, settings), [], root=tmp_path)
    g.equality = collect.tabulate_tests([])
    assert "no equality test" in build_html(g)[0]


def test_control_characters_are_escaped_and_captions_cut():
    hostile = "red\x1b[31m\x00\u202etext\ud800"
    html, _ = page.build_page(hostile, [Section("one", hostile, hostile, blocks.Words(hostile, "note"))])
    assert not set("\x1b\x00\u202e\ud800") & set(html)
    assert html.count("\\u001b[31m\\u0000\\u202etext\\ud800") >= 3
    assert len(cut_caption("x" * 20_000)) < 350
    assert cut_caption(hostile) == escape_controls(hostile)
    html.encode()


def test_inputs_that_changed_after_planning_are_one_line(results, tmp_path, monkeypatch):
    """A folder that has got a tokenizer, another prompt: what a report then looks for was never made."""
    from parity.report.__main__ import main

    root, settings, papers = results
    (tmp_path / "results").symlink_to(root / "results")
    words = (root / "prompts.txt").read_text().splitlines()
    (tmp_path / "prompts.txt").write_text("\n".join([*words[1:], words[0]]))
    monkeypatch.chdir(tmp_path)
    command = ["report", "--config", settings.model_dump_json(exclude_unset=True), "--published", str(papers)]
    monkeypatch.setattr("sys.argv", [*command, "--out", str(tmp_path / "out")])
    with pytest.raises(ParityError, match=r"no such file; a model's folder, prompts .* changed after the run was plan"):
        main()
