"""The page: complete, self-contained, safe with other people's text, and honest about what was not run."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.embedded import scenes
from parity.experiment.config import FigureSpec
from parity.report import figures
from parity.report import format as words
from parity.report.figures import Acceptance
from parity.report.page import Report, baseline_of, build, mismatch, with_certificates, write
from parity.report.sweeps import Extra
from parity.report.thumbnails import Column, thumbnail, worst_first

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}} {% include '/etc/passwd' %}",
    "</style><style>*{display:none}",
    "$\\frac$",
]
SECTIONS = [
    "verdicts",
    "study",
    "speed-quality",
    "published",
    "equality",
    "acceptance",
    "pictures",
    "latency",
    "environment",
]


def steps(rng: np.random.Generator, n: int, speed: float, length: int = 256) -> np.ndarray:
    """[n, L] passes of a decoder that keeps about `speed` tokens a pass, more in the middle of a line."""
    ease = 1 + (speed - 1) * (0.6 + 0.8 * np.exp(-(((np.arange(length) % 16) - 8) ** 2) / 18))
    jump = rng.random((n, length)) < 1 / ease
    jump[:, 0] = True
    return jump.cumsum(1).astype(np.int16)


def synthetic(n: int = 24, captions: list[str] | None = None) -> Report:
    """Made-up cells around real Scenes pictures: two seeds of ar, two variants of sjd, jacobi, and a lossy method with little run."""
    rng = np.random.default_rng(0)
    plan = [
        ("ar", {}, 0, "lossless", "baseline", 1.0),
        ("ar", {}, 1, "lossless", "equal within margin", 1.0),
        ("jacobi", {"window": 16}, 2, "lossless", "different", 1.1),
        ("sjd", {"window": 16, "init": "random"}, 2, "lossless", "equal within margin", 1.6),
        ("sjd", {"window": 16, "init": "sample_above"}, 2, "lossless", "inconclusive", 1.9),
        ("gsd", {"groups": 8}, 2, "lossy", "different", 2.4),
    ]
    rows, acceptance, equality = [], {}, []
    for i, (method, options, seed, claim, verdict, speed) in enumerate(plan):
        key = f"{i:08x}"
        acceptance[key] = Acceptance(
            np.tile(np.arange(1, 257, dtype=np.int16), (n, 1)) if method == "ar" else steps(rng, n, speed), 16
        )
        nfe = acceptance[key].step.max(1)
        gsd, n_root = method == "gsd", n**0.5
        row = {
            "model": "scenes", "method": method, "options": json.dumps(options), "key": key, "seed": seed, "claim": claim,
            "verdict": verdict, "n": n, "nfe": nfe.mean(), "nfe_se": nfe.std() / n_root, "step_compression": (256 / nfe).mean(),
            "step_compression_low": (256 / nfe).mean() - 0.05, "step_compression_high": (256 / nfe).mean() + 0.05,
            "seconds_per_image": 0.5 / speed**0.5, "seconds_per_image_se": 0.01, "ms_per_forward": 62.5 * speed**0.5,
            "ms_per_forward_q1": 60.0, "ms_per_forward_median": 62.1 * speed**0.5, "ms_per_forward_q3": 90.0,
            "tokens_per_second": 512 * speed**0.5, "tokens_per_second_se": 9.0, "device": "cpu", "dtype": "float32", "batch": 32,
            "batches": 2,
            "nodes_per_pass": 1.0 if method == "ar" else 15.1, "nodes_per_pass_se": 0.02, "nodes_per_token": 15.1 / speed,
            "nodes_per_token_se": 0.1, "fid": 12 + rng.normal() * 0.4 + 3 * gsd, "fid_se": 0.4, "kid": 0.001 + 0.004 * gsd,
            "kid_se": 0.0011,
            "clip_score": 0.71 + rng.normal() * 0.004, "clip_score_se": 0.004, "precision": 0.66, "precision_se": 0.03, "recall": 0.61,
            "recall_se": 0.03, "perplexity": 41.2 + rng.normal(), "perplexity_se": 0.8, "excluded": 0.012 * gsd,
        }  # fmt: skip
        if gsd:
            row |= {"recall": None, "recall_se": None, "perplexity": np.nan}
        rows.append(row)
        shared = {
            "model": "random-0 3x5",
            "method": method,
            "key": key,
            "seed": 11,
            "repeat": 0,
            "note": "",
            "n": 200_000,
        }
        shared |= {"statistic": 0.0041, "effect": 0.0041, "minimum_detectable_effect": 0.0028}
        p = {"different": 1e-300, "baseline": None}.get(verdict, float(rng.uniform(0.05, 1)))
        said = "not run" if p is None else "rejected" if p < 0.05 else "not rejected"
        equality += [
            shared
            | {"layer": "exact", "test": "all four", "p_value": p, "p_holm": p, "verdict": said, "decides": True},
            shared
            | {
                "layer": "exact",
                "test": "TV certificate",
                "effect": 0.012,
                "verdict": "TV <= 0.0120 (95 %)",
                "decides": False,
            },
            shared
            | {
                "layer": "pictures",
                "model": "scenes",
                "test": "MMD, swaps within prompts",
                "n": n,
                "p_value": 0.002,
                "p_holm": 0.004,
            }
            | {
                "minimum_detectable_effect": None,
                "verdict": "rejected",
                "decides": True,
                "repeat": i % 2,
                "note": "a note" * (i == 1),
            },
        ]
    drawn = [scenes.example(seed) for seed in range(n)]
    captions = captions or [c for c, _ in drawn]
    columns = [
        Column(
            label,
            np.stack([scenes.ground_truth(c, k) for c, _ in drawn]),
            0.7 + 0.05 * rng.standard_normal(n),
            baseline=k < 2,
        )
        for k, label in enumerate(
            ["ar, seed 0", "ar, seed 1", "jacobi", "sjd init=random", "sjd init=sample_above", "gsd"]
        )
    ]
    published = pd.DataFrame(
        [
            {
                "paper": "SJD",
                "table": "1",
                "model": "LlamaGen",
                "metric": "step compression",
                "method": "sjd",
                "options": "{}",
                "conditions": "{}",
                "value": 1.63,
                "ours": None,
                "difference": None,
            }
        ]
    )
    printed = {"paper": "SJD", "table": "Table 1", "model": "LlamaGen", "method": "sjd", "conditions": "{}"}
    papers = [
        {"options": json.dumps({"init": i}), "metric": m, "value": v}
        for i, m, v in (("random", "step_compression", 1.63), ("random", "fid", 29.0))
    ]
    study = {
        "title": "By initialisation",
        "x": "init",
        "y": ["step_compression", "fid", "clip_score"],
        "paper": "SJD, Table 1",
    }
    measures = {
        "title": "Recall against speed",
        "x": "step_compression",
        "y": ["recall"],
        "reading": "Further right is faster.",
    }
    extra = pd.DataFrame({"value": rng.random(200), "label": np.repeat(["fresh", "stale"], 100)})
    return Report(
        experiment="synthetic",
        summary=pd.DataFrame(rows),
        equality=pd.DataFrame(equality),
        environment={
            "device": "cpu", "cores": 2, "versions": {"torch": "2.15.0"}, "weights": {"transformer": "ab" * 32},
            "seconds": {"generate": 61.25}, "seeds": [0, 1, 2], "commit": None,
        },
        config="experiment: synthetic\nmethods:\n  ar: [{}]\n",
        records=pd.DataFrame({"id": [f"{i}/0" for i in range(n)]}),
        acceptance=acceptance,
        pictures=columns,
        captions=captions,
        mutants=pd.DataFrame([{"fault": "bonus token from q", "total_variation": 0.049, "p_value": 1e-12, "caught": True}]),
        null=pd.DataFrame({"test": np.repeat(["G", "pairs", "MMD"], 100), "p_value": rng.random(300)}),
        published=published,
        study=[FigureSpec(**study), FigureSpec(**measures)],
        papers=pd.DataFrame([printed | p for p in papers]),
        extras=[Extra("path-similarity", "Similarity of drafted paths", "Right is alike.", extra, "histogram", x="cosine")],
        top1={key: rng.random((n, 256)) for key in acceptance},
        rows_of_pictures=6,
    )  # fmt: skip


class Page(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, html: str):
        super().__init__()
        self.ids, self.tags, self.links, self.handlers, self.text = [], [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "srcset", "action", "data", "poster", "formaction"):
                self.links.append(value)
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def built() -> tuple[str, dict[str, pd.DataFrame]]:
    return build(synthetic())


def test_every_section_stands_in_its_order_and_in_the_contents(built):
    page = Page(built[0])
    assert page.ids == SECTIONS
    assert [x[1:] for x in page.links if x.startswith("#")] == SECTIONS


def test_the_page_is_self_contained_and_runs_nothing(built):
    html = built[0]
    page = Page(html)
    assert all(x.startswith(("#", "data:image/")) for x in page.links)
    assert not page.handlers and not {"script", "link", "iframe", "object", "embed", "form", "base"} & set(page.tags)
    assert "default-src 'none'" in html and "url(" not in html and "@import" not in html


def test_every_figure_has_its_data(built):
    html, data = built
    names = set(re.findall(r"figures/([a-z0-9-]+)\.csv", html))
    wanted = {
        "summary",
        "equality",
        "speed-quality",
        "qq",
        "acceptance",
        "step-compression",
        "accepted-by-pass",
        "pictures",
    }
    wanted |= {"study-by-initialisation", "study-recall-against-speed", "path-similarity", "top-1", "top-1-share"}
    assert names == set(data) >= wanted
    assert all(len(frame) for frame in data.values())


def test_the_same_data_give_the_same_page(built):
    assert build(synthetic())[0] == built[0]


def test_nothing_is_blank_and_no_p_is_nought(built):
    html = built[0]
    cells = re.findall(r"<td[^>]*>(?:<span>)?(.*?)(?:</span>|</td>)", html)
    assert len(cells) > 100 and all(c.strip() for c in cells)
    assert (
        "not run" in html
        and "nan" not in " ".join(Page(html).text).lower().split()
        and "None" not in "".join(Page(html).text)
    )
    assert "&lt; 1e-300" in html


def test_a_false_claim_is_marked_and_a_lossy_one_is_not(built):
    report = synthetic()
    marked = [mismatch(r) for _, r in report.summary.iterrows()]
    assert marked == [False, False, True, False, False, False]
    assert built[0].count('class="mismatch"') == 1 and "not borne out" in built[0]


def test_hostile_text_is_shown_and_never_acted_on():
    report = synthetic(captions=[HOSTILE[i % len(HOSTILE)] for i in range(24)])
    evil = HOSTILE[0] + HOSTILE[1] + HOSTILE[2]
    report.experiment = report.config = evil
    report.environment = {evil: evil}
    report.summary["method"] = ["ar", "ar", *HOSTILE[:2], HOSTILE[3], HOSTILE[4]]
    report.summary["options"] = json.dumps({"x": evil})
    report.summary.loc[2, "verdict"] = evil
    report.equality["note"] = report.equality["test"] = evil
    report.published["paper"] = evil
    report.study = [FigureSpec(title=evil, x="method", y=["fid"], paper=evil.replace(",", ""), reading=evil)]
    report.extras = [Extra("evil", evil, evil, report.extras[0].data.assign(label=evil), "histogram", x=evil)]
    report.mutants["fault"] = evil
    report.pictures[2] = Column(evil, report.pictures[2].pixels, report.pictures[2].cosine)
    html, _ = build(report)
    page = Page(html)
    assert "script" not in page.tags and not page.handlers and page.tags.count("style") == 1
    assert all(x.startswith(("#", "data:image/")) for x in page.links)
    text = "".join(page.text)
    assert all(h in text for h in HOSTILE[:4])  # as text, braces not evaluated


def test_what_is_missing_is_said_to_be_missing():
    """The least that a page can be built from."""
    summary = pd.DataFrame(
        [
            {"model": "scenes", "method": "ar", "options": "{}", "key": "0"},
            {"model": "scenes", "method": "sjd", "options": "{}", "key": "1"},
        ]
    )
    html, data = build(Report("least", summary, pd.DataFrame(), {}))
    assert Page(html).ids == SECTIONS
    assert html.count("<b>not run</b>") >= 8
    assert set(data) == {"summary", "equality"}
    with pytest.raises(ValueError, match="summary: no rows"):
        build(Report("none", pd.DataFrame(), pd.DataFrame(), {}))


def test_files_are_written_beside_the_page(tmp_path):
    write(synthetic(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert len(pd.read_csv(tmp_path / "figures" / "summary.csv")) == 6
    assert not list(tmp_path.rglob("*.part"))


def test_pictures_are_ranked_by_the_worst_decoder_not_by_the_second_seed():
    pixels = np.zeros((3, 8, 8, 3), dtype=np.uint8)
    base = Column("ar", pixels, np.array([0.5, 0.5, 0.5]), baseline=True)
    again = Column("ar again", pixels, np.array([-0.9, 0.5, 0.5]), baseline=True)
    decoder = Column("sjd", pixels, np.array([0.6, 0.1, 0.4]))
    order, worst = worst_first([base, again, decoder])
    assert order.tolist() == [1, 2, 0] and worst == pytest.approx([-0.4, -0.1, 0.1])


def test_pictures_of_a_model_are_compared_with_its_own_plain_sampling():
    """Cosines of a small model and of a large one lie apart; the difference that counts is within a model."""
    pixels, cosines = np.zeros((2, 8, 8, 3), dtype=np.uint8), ([0.9, 0.9], [0.9, 0.7], [0.2, 0.2], [0.1, 0.2])
    names = (("ar", True, "large"), ("sjd", False, "large"), ("ar", True, "small"), ("sjd", False, "small"))
    columns = [Column(n, pixels, np.array(c), b, m) for (n, b, m), c in zip(names, cosines, strict=True)]
    order, worst = worst_first(columns)
    assert order.tolist() == [1, 0] and worst == pytest.approx([-0.2, -0.1])


def test_thumbnails_are_small_and_exact_when_the_picture_is():
    assert thumbnail(scenes.example(0)[1]).startswith("data:image/png")
    large = thumbnail(np.random.default_rng(0).integers(0, 255, (1024, 1024, 3), dtype=np.uint8))
    assert large.startswith("data:image/jpeg") and len(large) < 150_000


def test_labels_tell_rows_apart():
    summary = synthetic().summary
    names = words.labels(summary)
    assert len(set(names)) == len(names)
    assert names[0] == "ar, seed 0" and "init=random" in names[3] and "window" not in names[3]


def test_certificates_come_from_the_worst_enumerable_model():
    report = synthetic()
    again = report.equality.iloc[[10]].assign(effect=0.2, model="disjoint 3x4")
    report.equality = pd.concat([report.equality, again], ignore_index=True)
    key = again["key"].item()
    found = with_certificates(report.summary, report.equality)
    assert found.set_index("key")["tv_bound"][key] == 0.2
    assert found["tv_bound"].notna().all()
    assert baseline_of(found, found.iloc[3])["key"] == "00000000"


def test_tests_of_the_tests_have_tables_of_their_own():
    """Rows of the layers "mutants" and "calibration" are summed up, and are no decoder's tests."""
    report = synthetic()
    shared = {
        "model": "random-0 3x4",
        "method": "speculative",
        "key": "bonus from q",
        "n": 2000,
        "effect": 0.049,
        "decides": True,
    }
    shared |= {"layer": "mutants", "test": "all four", "verdict": "rejected"}
    size = {
        "layer": "calibration",
        "test": "joint G",
        "n": 400,
        "effect": 0.052,
        "low": 0.03,
        "high": 0.08,
        "verdict": "size ok",
    }
    extra = [
        shared | {"p_value": 0.001, "repeat": 0},
        shared | {"p_value": 0.2, "repeat": 1},
        size | {"decides": False},
    ]
    report.equality = pd.concat([report.equality, pd.DataFrame(extra)], ignore_index=True)
    report.mutants = pd.DataFrame()
    html, data = build(report)
    assert data["mutants"].to_dict("records") == [
        {
            "fault": "bonus from q",
            "decoder": "speculative",
            "n": 2000,
            "total_variation": 0.049,
            "caught": "1 of 2",
            "largest_p": 0.2,
        }
    ]
    assert data["sizes"]["rejection_rate"].tolist() == [0.052]
    assert html.count("bonus from q") == 1 and html.count("joint G") == 1


def test_the_test_furthest_from_uniform_is_named_among_many():
    rng = np.random.default_rng(0)
    null = pd.DataFrame({"test": np.repeat([f"t{i}" for i in range(12)], 500), "p_value": rng.random(6000)})
    null.loc[null["test"] == "t7", "p_value"] **= 2
    drawn = figures.p_value_qq(null)
    assert drawn is not None and len(drawn[1]) == 12 * 200
    assert "t7" in set(drawn[1]["group"]) and "the other 7 tests" in set(drawn[1]["group"])


def test_run_lengths_count_the_tokens_of_a_pass():
    step = np.array([[1, 1, 2, 3, 3, 3], [0, 1, 2, 2, 3, 4]])
    expected = [[2, 2, 1, 3, 3, 3], [np.nan, 1, 2, 2, 1, 1]]
    assert np.array_equal(figures.run_lengths(step), expected, equal_nan=True)


def test_the_noise_band_is_wider_than_an_interval_by_root_two():
    band = figures.noise_band(pd.DataFrame({"fid": [10.0, 12.0], "fid_se": [1.0, 1.0]}), "fid")
    assert band == pytest.approx((11 - 1.96 * 2**0.5, 11 + 1.96 * 2**0.5))
    assert figures.noise_band(pd.DataFrame({"fid": [10.0]}), "fid") is None


@given(st.floats(min_value=0, max_value=1))
def test_a_p_value_never_reads_as_nought(p):
    text = words.p_value(p)
    assert float(text.lstrip("< ")) > 0


@given(
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12),
    st.floats(min_value=1e-9, max_value=1e6),
)
def test_a_figure_is_never_rounded_by_more_than_its_error(value, error):
    shown = float(words.plus_minus(value, error).text.replace(",", ""))
    assert abs(shown - value) <= 0.06 * error + 1e-8 + abs(value) * 1e-15


SHOWN = [
    (None, "not run"),
    (np.nan, "not run"),
    (0, "0"),
    (12345, "12,345"),
    (0.00001234, "1.234e-05"),
    (1.63, "1.630"),
    (np.inf, "infinite"),
]


@pytest.mark.parametrize(("value", "text"), SHOWN)
def test_numbers_as_shown(value, text):
    assert words.number(value) == text


@given(st.floats(min_value=1e-6, max_value=0.999))
def test_a_bound_still_holds_as_shown(value):
    shown = float(words.bound(value).text)
    assert value * (1 - 1e-5) <= shown <= 1.1 * value + 1e-7


def test_no_two_methods_look_alike_in_a_plot():
    names = [f"m{i}" for i in range(40)]
    look = figures.styles(["ar, seed 0", "ar, seed 1", *names], ["ar", "ar", *names])
    assert len(set(look.values())) == 42
