"""The report: one self-contained HTML page, and the data behind each of its figures. Reading files is the caller's.

Prompts and options are other people's text: everything reaches the page through Jinja's autoescape, and the page's own policy (CSP) forbids
scripts and everything from elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from parity.base.files import publish
from parity.experiment import study
from parity.experiment.config import FigureSpec, slug
from parity.report import figures, thumbnails
from parity.report import format as words
from parity.report import sweeps as studies
from parity.report.environment import environment
from parity.report.figures import Acceptance
from parity.report.format import NOT_RUN, Cell
from parity.report.sweeps import Extra
from parity.report.thumbnails import Column

EMPTY = pd.DataFrame()
ALPHA = 0.05  # as in equality.rows


@dataclass
class Report:
    """What the page is made of. Frames may lack columns, and optional parts may be missing: the page then says 'not run'."""

    experiment: str
    summary: (
        pd.DataFrame
    )  # a row per cell: model, method, options, key, what equality.verdict says of it, and the figures of metrics.cell
    equality: pd.DataFrame  # a row per test: equality.rows, the layers "mutants" and "calibration" included
    environment: dict[str, Any]  # versions, device, cores, seeds, sha256 of weights, wall times; may be nested
    config: str = ""  # YAML
    records: pd.DataFrame = field(default_factory=pd.DataFrame)  # a row per image, listed beside the page
    acceptance: dict[str, Acceptance] = field(default_factory=dict)  # by key
    pictures: list[Column] = field(default_factory=list)  # plain sampling, again with another seed, then the decoders
    captions: list[str] = field(default_factory=list)  # of the pictures' rows
    mutants: pd.DataFrame = field(default_factory=pd.DataFrame)  # planted faults and which tests caught them
    null: pd.DataFrame = field(default_factory=pd.DataFrame)  # p_value (and test) of plain sampling against itself
    published: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # paper, table, model, metric, method, value, ours, difference
    study: list[FigureSpec] = field(default_factory=list)  # the figures the experiment ends in
    papers: pd.DataFrame = field(default_factory=pd.DataFrame)  # every row of workflow/published, for those figures
    extras: list[Extra] = field(default_factory=list)  # figures whose data were made elsewhere
    top1: dict[str, np.ndarray] = field(
        default_factory=dict
    )  # by key: the target's largest probability [n, L], NaN where forced
    rows_of_pictures: int = 8


@dataclass
class Table:
    columns: list[tuple[str, str]]  # heading, and what it means
    rows: list[list[Cell]]
    marks: list[str] = field(default_factory=list)  # CSS class of each row


def _get(row: pd.Series, name: str) -> Any:
    return row.get(name)


def _pm(row: pd.Series, name: str) -> Cell:
    return words.plus_minus(_get(row, name), _get(row, f"{name}_se"))


def _ratio(value: Any, digits: int = 2) -> Cell:
    return Cell(NOT_RUN, kind="none") if words.missing(value) else Cell(f"{value:.{digits}f}×")


def baseline_of(summary: pd.DataFrame, row: pd.Series) -> pd.Series | None:
    """The plain-sampling row a cell is compared with: same model and sampling, role "reference" or else the first."""
    plain = summary[summary["method"] == "ar"]
    for column in ("model", "sampling"):
        if column in plain and len(plain):
            plain = plain[plain[column].astype(str) == str(_get(row, column))]
    if "role" in plain and (plain["role"] == "reference").any():
        plain = plain[plain["role"] == "reference"]
    return plain.iloc[0] if len(plain) else None


def with_certificates(summary: pd.DataFrame, equality: pd.DataFrame) -> pd.DataFrame:
    """The summary with `tv_bound` (the worst certificate of the exact layer) and `minimum_detectable_effect` (a total variation).

    Where the summary has the columns they stand; else they come from the equality rows of the same method and key.
    """
    summary = summary.copy()
    certificates = equality[equality["test"] == "TV certificate"] if "test" in equality else EMPTY
    for name, column in (("tv_bound", "effect"), ("minimum_detectable_effect", "minimum_detectable_effect")):
        if name in summary:
            continue
        if len(certificates) and {"method", "key", column} <= set(certificates) and "key" in summary:
            worst = certificates.groupby(["method", "key"])[column].max()
            summary[name] = [worst.get((m, k), np.nan) for m, k in zip(summary["method"], summary["key"], strict=True)]
        else:
            summary[name] = np.nan
    return summary


def mismatch(row: pd.Series) -> bool:
    """Whether the verdict contradicts the claim: as `verdict.judge` says, or else a lossless method that was found different."""
    given = _get(row, "mismatch")
    if not words.missing(given):
        return bool(given)
    return str(_get(row, "claim")).lower() == "lossless" and words.verdict_kind(_get(row, "verdict")) == "bad"


def verdict_table(summary: pd.DataFrame, names: list[str]) -> Table:
    columns = [
        ("Method", "with the options in which its variants differ"),
        ("Verdict", "same distribution as plain sampling?"),
        ("Claim", "what the method's paper says"),
        ("TV ≤", "upper bound on total variation from the target, 95%, the worst of the enumerable models"),
        ("MDE", "minimum detectable effect: the smallest total variation that the tests could find with power 0.8"),
        ("n", "images"),
        ("Fewer passes", "passes of plain sampling / passes of this method"),
        ("Less time", "seconds per image of plain sampling / of this method, both measured here"),
        ("CLIP-score", "mean cosine, ± standard error"),
        ("FID", "± standard error over images; biased by n, so only rows of equal n compare"),
        ("KID ×1000", "± standard error"),
        ("Precision", "± standard error"),
        ("Recall", "± standard error"),
        (
            "Perplexity",
            "of the decoded tokens under the target, ± standard error; excluded: tokens that the target gives no probability",
        ),
    ]
    rows, marks = [], []
    for name, (_, r) in zip(names, summary.iterrows(), strict=True):
        base = baseline_of(summary, r)
        verdict, claim = _get(r, "verdict"), _get(r, "claim")
        wrong, note = mismatch(r), "" if words.missing(_get(r, "note")) else str(_get(r, "note"))
        broken = "better than claimed" if str(claim).lower() == "lossy" else "not borne out"
        kid = [None if words.missing(_get(r, c)) else 1000 * r[c] for c in ("kid", "kid_se")]
        perplexity = _pm(r, "perplexity")
        if (outside := _get(r, "excluded")) is not None and not words.missing(outside) and outside > 0:
            perplexity = perplexity._replace(
                detail=f"{perplexity.detail} {words.number(100 * outside, 2)}% of tokens excluded".strip()
            )
        ratios = [None if base is None else _over(_get(base, c), _get(r, c)) for c in ("nfe", "seconds_per_image")]
        rows.append(
            [
                Cell(name, str(_get(r, "key") or ""), "name"),
                Cell(NOT_RUN if words.missing(verdict) else str(verdict), note, f"chip {words.verdict_kind(verdict)}"),
                Cell(
                    NOT_RUN if words.missing(claim) else str(claim), broken if wrong else "", "wrong" if wrong else ""
                ),
                words.bound(_get(r, "tv_bound")),
                words.bound(_get(r, "minimum_detectable_effect")),
                words.plain(_get(r, "n")),
                *map(_ratio, ratios),
                _pm(r, "clip_score"),
                _pm(r, "fid"),
                words.plus_minus(*kid),
                _pm(r, "precision"),
                _pm(r, "recall"),
                perplexity,
            ]
        )
        marks.append("mismatch" if wrong else "baseline" if r["method"] == "ar" else "")
    return Table(columns, rows, marks)


def _over(above: Any, below: Any) -> float | None:
    return None if words.missing(above) or words.missing(below) or not below else above / below


def latency_table(summary: pd.DataFrame, names: list[str]) -> Table:
    columns = [
        ("Method", ""),
        ("NFE", "target passes per image, ± standard error"),
        ("Step compression", "tokens per pass, 95% bootstrap interval"),
        ("Nodes per pass", "tokens that the target evaluates in a pass"),
        ("Nodes per token", "tokens evaluated per token kept: 1 is no waste"),
        ("ms per forward", "time in a batch / its passes: median and quartiles over batches"),
        ("Seconds per image", "± standard error over batches"),
        ("Tokens per second", "± standard error over batches"),
        ("Batch", "images decoded at once, and the number of batches timed"),
        ("Device", ""),
        ("Dtype", ""),
    ]
    rows = []
    for name, (_, r) in zip(names, summary.iterrows(), strict=True):
        median = _get(r, "ms_per_forward_median")
        forward = words.plain(_get(r, "ms_per_forward") if words.missing(median) else median, 3)
        if not words.missing(median) and not words.missing(_get(r, "ms_per_forward_q1")):
            forward = forward._replace(
                detail=f"{words.number(r['ms_per_forward_q1'], 3)} to {words.number(r['ms_per_forward_q3'], 3)}"
            )
        batch, batches = words.plain(_get(r, "batch")), _get(r, "batches")
        rows.append(
            [
                Cell(name, str(_get(r, "key") or ""), "name"),
                _pm(r, "nfe"),
                words.interval(*(_get(r, f"step_compression{x}") for x in ("", "_low", "_high"))),
                _pm(r, "nodes_per_pass"),
                _pm(r, "nodes_per_token"),
                forward,
                _pm(r, "seconds_per_image"),
                _pm(r, "tokens_per_second"),
                batch if words.missing(batches) else batch._replace(detail=f"{int(batches)} timed"),
                words.plain(_get(r, "device")),
                words.plain(_get(r, "dtype")),
            ]
        )
    return Table(columns, rows)


EQUALITY = [
    ("layer", "Layer", ""),
    ("tests", "Tests", "deciding tests that could be run"),
    ("model", "On", "the model that was decoded"),
    ("label", "Method", ""),
    ("test", "Test", ""),
    ("n", "n", "sequences, tokens or prompts: the units that the test counts"),
    ("statistic", "Statistic", ""),
    ("p_value", "p", ""),
    ("p_holm", "p, Holm", "corrected for all tests of the decoder in the layer"),
    ("effect", "Effect", "in the test's own units"),
    ("minimum_detectable_effect", "MDE", "smallest effect found with power 0.8"),
    ("verdict", "Verdict", ""),
    ("seed", "Seed", "a repeat is run on a fresh seed where the first run rejected"),
]


def strongest(equality: pd.DataFrame) -> pd.DataFrame:
    """One row per decoder and layer: its test of the smallest p, "rejected" if any of them is. First runs only."""
    first = equality[equality["repeat"].fillna(0) == 0] if "repeat" in equality else equality
    found = []
    for _, rows in first.groupby(["label", "layer"], sort=False):
        p = rows["p_holm"].fillna(rows["p_value"]) if "p_holm" in rows else rows["p_value"]
        best = rows.iloc[int(p.fillna(np.inf).argmin())]
        rejected = int((rows["verdict"] == "rejected").sum())
        found.append({**best, "tests": int(p.notna().sum()), "verdict": "rejected" if rejected else best["verdict"]})
    return pd.DataFrame(found)


def equality_table(equality: pd.DataFrame) -> Table:
    rows = []
    columns = [c for c in EQUALITY if c[0] != "tests" or "tests" in equality]
    for _, r in equality.iterrows():
        cells = []
        absent = (
            NOT_RUN if words.verdict_kind(_get(r, "verdict")) == "none" else "n/a"
        )  # a test that was run may have no such figure
        for name, _, _ in columns:
            value = _get(r, name)
            if name in ("p_value", "p_holm"):
                cells.append(Cell(absent, kind="none") if words.missing(value) else Cell(words.p_value(value)))
            elif name == "label":
                key = _get(r, "key")
                cells.append(Cell(str(value), "" if words.missing(key) else str(key), "name"))
            elif name == "verdict":
                cells.append(
                    Cell(NOT_RUN if words.missing(value) else str(value), kind=f"chip {words.verdict_kind(value)}")
                )
            elif name in ("layer", "model", "test"):
                note = _get(r, "note") if name == "test" else None
                cells.append(
                    Cell(
                        "any" if words.missing(value) else str(value), "" if words.missing(note) else str(note), "text"
                    )
                )
            elif name == "seed":
                again = _get(r, "repeat")
                cells.append(
                    words.plain(value)._replace(
                        detail=f"repeat {int(again)}" if not words.missing(again) and again else ""
                    )
                )
            else:
                cells.append(Cell(absent, kind="none") if words.missing(value) else words.plain(value, 3))
        rows.append(cells)
    return Table([(heading, meaning) for _, heading, meaning in columns], rows)


def planted_faults(equality: pd.DataFrame) -> pd.DataFrame:
    """From the rows of layer "mutants" (its key is the fault): how far each fault moves the law, and how often the tests saw it."""
    if not {"layer", "test", "key", "method", "n", "p_value"} <= set(equality):
        return EMPTY
    rows = equality[(equality["layer"] == "mutants") & (equality["test"] == "all four")]
    if rows.empty:
        return EMPTY
    found = []
    for (fault, method, n), group in rows.groupby(["key", "method", "n"], sort=False):
        caught = int((group["p_value"] < ALPHA).sum())
        row = {
            "fault": fault,
            "decoder": method,
            "n": n,
            "total_variation": group["effect"].iloc[0],
            "caught": f"{caught} of {len(group)}",
        }
        found.append(row | {"largest_p": group["p_value"].max()})
    return pd.DataFrame(found)


def measured_sizes(equality: pd.DataFrame) -> pd.DataFrame:
    """From the rows of layer "calibration": how often each test rejects data for which its null hypothesis is true."""
    if (
        not {"layer", "test", "n", "effect", "verdict"} <= set(equality)
        or not (equality["layer"] == "calibration").any()
    ):
        return EMPTY
    rows = equality[equality["layer"] == "calibration"]
    kept = rows[["test", "n", "effect", *(c for c in ("low", "high") if c in rows), "verdict"]]
    return kept.rename(columns={"n": "replicates", "effect": "rejection_rate"})


def any_table(frame: pd.DataFrame) -> Table:
    """A frame as it is; missing values are 'not run'."""

    def cell(column: str, value: Any) -> Cell:
        if column in ("p", "largest_p") or column.startswith("p_"):
            return Cell(words.p_value(value), kind="none" if words.missing(value) else "")
        if column == "verdict":
            return Cell(NOT_RUN if words.missing(value) else str(value), kind=f"chip {words.verdict_kind(value)}")
        return words.plain(value, 4)

    return Table(
        [(str(c).replace("_", " ").capitalize(), "") for c in frame.columns],
        [[cell(str(c), r[c]) for c in frame.columns] for _, r in frame.iterrows()],
    )


def published_table(published: pd.DataFrame, by_key: dict[str, str]) -> Table:
    """The papers' figures beside ours; 'n/a' where a paper has no plain sampling to compare with, or there is no such measure here."""
    columns = [
        ("Source", ""),
        ("Their model", "and what the paper states of prompts, device and sampling"),
        ("Method", "and its options as the paper states them; what it leaves unsaid is the default here"),
        ("Measure", "CLIP-scores are cosines: where a paper prints 100 times that, the point is moved"),
        ("Published", ""),
        ("Ours", ""),
        ("Published, from AR", "less the paper's own plain sampling in the same table"),
        ("Ours, from AR", "less our plain sampling under the same settings"),
        ("Difference", "ours less theirs: of ratios themselves, of everything else the changes from plain sampling"),
        ("Our cell", ""),
    ]

    def stated(text: Any) -> str:
        return ", ".join(
            f"{k.removeprefix('sampling.')}: {studies.written(v)}" for k, v in words.options_of(text).items()
        )

    rows = []
    for _, r in published.iterrows():
        key = str(_get(r, "key") or "")
        rows.append(
            [
                Cell(str(r["table"]), str(r["paper"]), "text"),
                Cell(str(r["model"]), stated(_get(r, "conditions")), "text"),
                Cell(str(r["method"]), stated(_get(r, "options")), "text"),
                Cell(str(r["metric"]).replace("_", " ")),
                *(
                    Cell("n/a", kind="none")
                    if words.missing(_get(r, c))
                    else words.plain(r[c], 3 if c == "difference" else 4)
                    for c in ("value", "ours", "change", "our_change", "difference")
                ),
                Cell(by_key.get(key, "n/a"), key, "text"),
            ]
        )
    return Table(columns, rows)


def to_compare(published: pd.DataFrame, sources: list[tuple[str, list[str]]]) -> pd.Series:
    """Which published rows the page shows at once: those of the study's tables, or else those with a difference that means something."""
    if published.empty:
        return pd.Series([], dtype=bool)
    if sources:
        named = {(paper, place) for paper, places in sources for place in places}
        return pd.Series(
            [pair in named for pair in zip(published["paper"], published["table"], strict=True)], index=published.index
        )
    return published["difference"].notna() & (published["method"] != "ar")


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """A nested dict as (path, text) lines."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix} · {key}" if prefix else str(key))
    elif isinstance(value, list | tuple):
        yield prefix, ", ".join(str(v) for v in value)
    else:
        text = isinstance(value, str | bool)
        yield prefix, str(value) if text and not words.missing(value) else words.number(value, 4)


def picture_grid(report: Report) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Rows of the image grid, the worst paired difference first, and the whole ranking."""
    columns = report.pictures
    if not columns or not report.captions:
        return [], EMPTY
    lengths = {len(report.captions), *(len(c.pixels) for c in columns), *(len(c.cosine) for c in columns)}
    if len(lengths) > 1:
        raise ValueError(f"pictures: columns and captions of {sorted(lengths)} rows; must be as many")
    order, worst = thumbnails.worst_first(columns)
    ranking = pd.DataFrame(
        {"rank": range(1, len(order) + 1), "caption": [report.captions[i] for i in order], "worst_difference": worst}
    )
    for number, c in enumerate(columns):
        ranking[f"{c.label}" if c.label not in ranking else f"{c.label} #{number}"] = c.cosine[order]
    rows = [
        {
            "caption": report.captions[i],
            "worst": f"{w:+.3f}",
            "pictures": [
                {"uri": thumbnails.thumbnail(c.pixels[i]), "label": c.label, "cosine": f"{c.cosine[i]:.3f}"}
                for c in columns
            ],
        }
        for i, w in zip(order[: report.rows_of_pictures], worst, strict=False)
    ]
    return rows, ranking


def headline(summary: pd.DataFrame, names: list[str]) -> list[dict[str, str]]:
    """One sentence per decoder: the verdict, then the speed, both as measured."""
    found = []
    for name, (_, r) in zip(names, summary.iterrows(), strict=True):
        if r["method"] == "ar":
            continue
        base = baseline_of(summary, r)
        verdict = NOT_RUN if words.missing(_get(r, "verdict")) else str(r["verdict"])
        parts = []
        for column, what in (("nfe", "the passes"), ("seconds_per_image", "the time")):
            ratio = None if base is None else _over(_get(r, column), _get(base, column))
            parts.append(f"{what}: {NOT_RUN}" if ratio is None else f"{100 * ratio:.0f}% of {what}")
        claim = "" if words.missing(_get(r, "claim")) else f"claims to be {r['claim']}"
        found.append(
            {
                "name": name,
                "verdict": verdict,
                "kind": words.verdict_kind(verdict),
                "claim": claim,
                "speed": ", ".join(parts),
            }
        )
    return found


def _label(row: pd.Series, by_key: dict[str, str], methods: list[str], names: list[str]) -> str:
    """The name of an equality row's decoder: its cell's, or its method's only cell's, or the method."""
    method = str(_get(row, "method"))
    if (name := by_key.get(str(_get(row, "key")))) is not None:
        return name
    return names[methods.index(method)] if methods.count(method) == 1 else method


def build(report: Report) -> tuple[str, dict[str, pd.DataFrame]]:
    """The page's HTML, and the data of each figure and table by name."""
    if report.summary.empty or not {"method", "model"} <= set(report.summary):
        raise ValueError("summary: no rows, or no columns 'model' and 'method'; allowed: a row per cell")
    summary = with_certificates(report.summary.reset_index(drop=True), report.equality)
    names = words.labels(summary)
    keys = summary["key"].astype(str).tolist() if "key" in summary else names
    by_key = dict(zip(keys, names, strict=True))
    look = figures.styles(names, summary["method"].tolist())
    acceptance = {by_key[k]: report.acceptance[k] for k in keys if k in report.acceptance}

    equality = report.equality.reset_index(drop=True)
    if len(equality):
        equality = equality.assign(
            label=[_label(r, by_key, summary["method"].tolist(), names) for _, r in equality.iterrows()]
        )
    tests = (
        equality[~equality["layer"].isin(["mutants", "calibration"])] if "layer" in equality else equality
    )  # those have other tables
    deciding = tests[tests["decides"].fillna(True).astype(bool)] if "decides" in equality else tests

    data: dict[str, pd.DataFrame] = {"summary": summary.assign(label=names), "equality": equality}
    plots: dict[str, list[dict[str, str]]] = {"speed-quality": []}
    models = summary["model"].astype(str)
    scatters = []
    for model in models.unique():
        rows = (models == model).to_numpy()
        drawn = figures.speed_quality(summary[rows], [n for n, r in zip(names, rows, strict=True) if r])
        if drawn:
            plots["speed-quality"].append({"uri": figures.data_uri(drawn[0]), "title": model})
            scatters.append(drawn[1])
    if scatters:
        data["speed-quality"] = pd.concat(scatters, ignore_index=True)
    for name, drawn in {
        "qq": figures.p_value_qq(report.null),
        "acceptance": figures.acceptance_maps(acceptance),
        "step-compression": figures.compression_ecdf(acceptance, look),
        "accepted-by-pass": figures.accepted_by_pass(acceptance, look),
    }.items():
        plots[name] = [{"uri": figures.data_uri(drawn[0]), "title": ""}] if drawn else []
        if drawn:
            data[name] = drawn[1]
    shown: list[dict[str, Any]] = []
    for figure in report.study:
        entry: dict[str, Any] = {
            "title": figure.title,
            "name": f"study-{slug(figure.title)}",
            "uri": "",
            "reading": figure.reading,
            "paper": figure.paper,
        }
        drawn_study = studies.study(figure, summary, report.papers)
        if drawn_study:
            picture, points, silent = drawn_study
            data[entry["name"]] = points
            entry |= {
                "uri": figures.data_uri(picture),
                "silent": silent,
                "printed": bool((points["source"] == "paper").any()),
            }
        shown.append(entry)
    for e in report.extras:
        data[e.name] = e.data
        uri = figures.data_uri(studies.extra(e))
        shown.append(
            {"title": e.title, "name": e.name, "uri": uri, "reading": e.caption, "paper": "", "printed": False}
        )
    top1 = {by_key[k]: report.top1[k] for k in keys if k in report.top1}
    plain = next((n for n, m in zip(names, summary["method"], strict=True) if m == "ar" and n in top1), None)
    plots["top-1"] = plots["top-1-share"] = []
    if plain is not None:
        width = next((a.width for n, a in acceptance.items() if n == plain), round(top1[plain].shape[1] ** 0.5))
        pixels = next((c.pixels for c in report.pictures if c.baseline), None)
        same = {n: v for n, v in top1.items() if v.shape[1] == top1[plain].shape[1]}
        for name, pair in {
            "top-1": figures.top1_maps(same, width, pixels, plain),
            "top-1-share": figures.top1_shares(top1, look),
        }.items():
            plots[name] = [{"uri": figures.data_uri(pair[0]), "title": ""}]
            data[name] = pair[1]
    grid, ranking = picture_grid(report)
    mutants = report.mutants if len(report.mutants) else planted_faults(equality)
    sizes = measured_sizes(equality)
    for name, frame in {
        "pictures": ranking,
        "mutants": mutants,
        "sizes": sizes,
        "published": report.published,
        "null": report.null,
    }.items():
        if len(frame):
            data[name] = frame

    compared = to_compare(report.published, [study.source(f.paper) for f in report.study if f.paper])
    html = (
        environment()
        .get_template("page.html.j2")
        .render(
            experiment=report.experiment,
            headline=headline(summary, names),
            verdicts=verdict_table(summary, names),
            latency=latency_table(summary, names),
            equality=equality_table(
                strongest(deciding) if {"label", "layer", "p_value", "verdict"} <= set(deciding) else deciding
            ),
            equality_all=equality_table(tests) if len(tests) else None,
            mutants=any_table(mutants) if len(mutants) else None,
            sizes=any_table(sizes) if len(sizes) else None,
            published=published_table(report.published[compared], by_key) if compared.any() else None,
            published_all=published_table(report.published, by_key)
            if len(report.published) > int(compared.sum())
            else None,
            study=shown,
            plots=plots,
            grid=grid,
            columns=[c.label for c in report.pictures],
            prompts=len(report.captions),
            records=len(report.records),
            environment=list(_flat(report.environment)),
            config=report.config,
            data=sorted(data),
            has_mismatch=any(mismatch(r) for _, r in summary.iterrows()),
        )
    )
    return html, data


def write(report: Report, page: Path) -> None:
    """The page, and beside it `figures/<name>.csv`, each file published whole."""
    html, data = build(report)
    for name, frame in data.items():
        publish(page.parent / "figures" / f"{name}.csv", frame.to_csv(index=False).encode())
    publish(page, html.encode())
