"""The report's plots. Each function returns a figure and the data that it shows, one row per mark."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from scipy import stats

matplotlib.use("Agg")
STYLE = {
    **sns.axes_style("whitegrid"),
    "svg.hashsalt": "parity",  # element names that do not change from build to build
    "text.parse_math": False,  # a `$` in a label is a `$`
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.edgecolor": "#8a94a0",
    "grid.color": "#e6e9ed",
    "legend.frameon": False,
    "figure.dpi": 96,
}
MARKERS = "os^DvP*X<>"
QUALITY = {"clip_score": "CLIP-score (higher is better)", "fid": "FID (lower is better)"}
SPEED = {"step_compression": "step compression (tokens per pass)", "tokens_per_second": "tokens per second (measured)"}


@dataclass(frozen=True)
class Acceptance:
    """When the tokens of a cell became final."""

    step: (
        np.ndarray
    )  # [n, L] int: the pass, from 1; 0 for tokens that the grammar forced, whichever pass filled them in
    width: int  # tokens in a row of the picture


def data_uri(figure: Figure) -> str:
    """The figure as an SVG data URI, the same bytes for the same data."""
    stream = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(stream, format="svg", bbox_inches="tight", dpi=144, metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(stream.getvalue()).decode()


def styles(names: Sequence[str], methods: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each row: plain sampling in greys, the others in seaborn's colour-blind palette."""
    palette, greys = sns.color_palette("colorblind", 10).as_hex(), ["#30363d", "#8a94a0"]
    found: dict[str, tuple[str, str]] = {}
    used = {"ar": 0, "other": 0}
    for name, method in zip(names, methods, strict=True):
        kind = "ar" if method == "ar" else "other"
        colours = greys if kind == "ar" else palette
        n = used[kind]
        # a second round through the colours has other markers
        found[name] = (colours[n % len(colours)], MARKERS[(n + n // len(colours)) % len(MARKERS)])
        used[kind] += 1
    return found


def _half_width(row: pd.Series, name: str) -> tuple[float, float]:
    """Distances from a figure down and up to the ends of its 95% interval; nought where no error was measured."""
    value = row[name]
    if f"{name}_low" in row and pd.notna(row[f"{name}_low"]):
        return max(0.0, value - row[f"{name}_low"]), max(0.0, row[f"{name}_high"] - value)
    error = row.get(f"{name}_se")
    return (1.96 * error,) * 2 if error is not None and pd.notna(error) else (0.0, 0.0)


def noise_band(plain: pd.DataFrame, metric: str) -> tuple[float, float] | None:
    """Where another seed of plain sampling falls, 95%: its rows' mean, plus and minus 1.96 sqrt(2) standard errors of one row.

    sqrt(2) because a point is compared with another noisy point, not with the truth.
    """
    if metric not in plain or f"{metric}_se" not in plain:
        return None
    rows = plain[[metric, f"{metric}_se"]].astype(float).dropna()
    if rows.empty:
        return None
    reach = 1.96 * math.sqrt(2 * float((rows[f"{metric}_se"] ** 2).mean()))
    return float(rows[metric].mean()) - reach, float(rows[metric].mean()) + reach


def speed_quality(summary: pd.DataFrame, names: Sequence[str]) -> tuple[Figure, pd.DataFrame] | None:
    """Quality against speed, 95% error bars both ways; the band is what another seed of plain sampling would give."""
    s = summary.assign(label=list(names))
    ys = [m for m in QUALITY if m in s and s[m].notna().any()]
    xs = [m for m in SPEED if m in s and s[m].notna().any()]
    if not ys or not xs:
        return None
    look = styles(names, s["method"].tolist())
    bands = {m: noise_band(s[s["method"] == "ar"], m) for m in ys}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12.2, 3 * len(ys) + 0.5), layout="constrained")
        axes = figure.subplots(len(ys), len(xs), squeeze=False, sharex="col", sharey="row")
        for i, y in enumerate(ys):
            for j, x in enumerate(xs):
                ax = axes[i, j]
                if (band := bands[y]) is not None:
                    ax.axhspan(
                        *band, color="#8a94a0", alpha=0.18, lw=0, label="AR against AR, 95%" if i == j == 0 else None
                    )
                for _, row in s.iterrows():
                    if pd.isna(row[x]) or pd.isna(row[y]):
                        continue
                    colour, marker = look[row["label"]]
                    ax.errorbar(
                        row[x],
                        row[y],
                        xerr=np.array(_half_width(row, x))[:, None],
                        yerr=np.array(_half_width(row, y))[:, None],
                        fmt=marker,
                        color=colour,
                        ms=7,
                        capsize=2.5,
                        elinewidth=1.1,
                        label=row["label"] if i == j == 0 else None,
                    )
                ax.margins(0.12)
                if i == len(ys) - 1:
                    ax.set_xlabel(SPEED[x])
                if j == 0:
                    ax.set_ylabel(QUALITY[y])
        figure.legend(loc="outside upper center", ncols=4)
    columns = [c for m in (*xs, *ys) for c in (m, f"{m}_se", f"{m}_low", f"{m}_high") if c in s]
    data = s[["label", *(c for c in ("model", "method", "key") if c in s), *columns]].copy()
    for m, band in bands.items():
        if band is not None:
            data[f"{m}_ar_band_low"], data[f"{m}_ar_band_high"] = band
    return figure, data


def run_lengths(step: np.ndarray) -> np.ndarray:
    """[n, L] int passes to [n, L] float: how many tokens became final in the same pass; NaN for forced ones."""
    passes = int(step.max()) + 1
    flat = step.astype(np.int64) + passes * np.arange(len(step))[:, None]
    count = np.bincount(flat.ravel(), minlength=passes * len(step))
    return np.where(step > 0, count[flat].astype(float), np.nan)


def _by_position(run: np.ndarray) -> np.ndarray:
    """Mean of run [n, L] over images; NaN at forced positions, without a warning."""
    present = ~np.isnan(run)
    return np.where(present.any(0), np.nansum(run, 0) / np.maximum(1, present.sum(0)), np.nan)


def _grid(line: np.ndarray, width: int) -> np.ndarray:
    """[L] to [rows, width], the last row filled up with NaN."""
    return np.pad(line, (0, -len(line) % width), constant_values=np.nan).reshape(-1, width)


def acceptance_maps(acceptance: dict[str, Acceptance]) -> tuple[Figure, pd.DataFrame] | None:
    """Tokens that became final together, by place in the picture: the mean over images above, the first image below.

    Cells that take one token a pass everywhere are left out: their map is all 1.
    """
    runs = {name: run_lengths(a.step) for name, a in acceptance.items()}
    runs = {name: run for name, run in runs.items() if np.nanmax(run) > 1}
    if not runs:
        return None
    means = {name: _grid(_by_position(run), acceptance[name].width) for name, run in runs.items()}
    firsts = {name: _grid(run[0], acceptance[name].width) for name, run in runs.items()}
    scales = [max(np.nanmax(m) for m in maps.values()) for maps in (means, firsts)]
    across = min(4, len(runs))
    deep = -(-len(runs) // across)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12.2, 5.4 * deep), layout="constrained")
        axes = figure.subplots(2 * deep, max(across, 3), squeeze=False)
        for ax in axes.ravel():
            ax.axis("off")
        for k, name in enumerate(runs):
            for part, (maps, what) in enumerate(((means, "mean"), (firsts, "first image"))):
                ax = axes[2 * (k // across) + part, k % across]
                ax.axis("on")
                sns.heatmap(
                    maps[name],
                    ax=ax,
                    vmin=1,
                    vmax=scales[part],
                    cmap="cividis",
                    square=True,
                    xticklabels=False,
                    yticklabels=False,
                    rasterized=True,
                    cbar_kws={"shrink": 0.75, "label": "tokens per pass"},
                )
                ax.set_title(f"{_wrapped(name)}\n{what}" if part == 0 else what, fontsize=8.5)
    parts = []
    for name, run in runs.items():
        line, width = _by_position(run), acceptance[name].width
        place = np.arange(len(line))
        parts.append(
            pd.DataFrame(
                {
                    "label": name,
                    "position": place,
                    "row": place // width,
                    "column": place % width,
                    "mean_run_length": line,
                }
            )
        )
    data = pd.concat(parts, ignore_index=True)
    return figure, data


def _wrapped(name: str, width: int = 30) -> str:
    """A label on lines of about `width` letters."""
    lines = [""]
    for word in name.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return "\n".join(lines)


def top1_maps(
    top1: dict[str, np.ndarray], width: int, pixels: np.ndarray | None, plain: str, shown: int = 5
) -> tuple[Figure, pd.DataFrame]:
    """The target's largest probability at each place, for tokens of plain sampling: the mean over images, and `shown` images with theirs.

    top1 [n, L] of each cell, NaN where forced; pixels [n, H, W, 3] of the cell `plain`, or None. The data hold the mean of every cell.
    """
    own = top1[plain]
    shown = min(shown, len(own))
    rows = 1 if pixels is None else 2
    look = {"vmin": 0, "vmax": 1, "cmap": "cividis"}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12.2, 2.2 * rows + 0.3), layout="constrained")
        axes = figure.subplots(rows, shown + 1, squeeze=False)
        for ax in axes.ravel():
            ax.axis("off")
        for k, values in enumerate([_by_position(own), *own[:shown]]):
            picture = axes[-1, k].imshow(_grid(values, width), interpolation="nearest", **look)
            axes[-1, k].set_title(
                f"mean of {len(own)} images" if k == 0 else "" if pixels is not None else f"image {k}", fontsize=8.5
            )
            if k and pixels is not None:
                axes[0, k].imshow(pixels[k - 1], interpolation="nearest")
        figure.colorbar(picture, ax=axes, shrink=0.8, label="top-1 probability")
    parts = []
    for name, values in top1.items():
        line = _by_position(values)
        place = np.arange(len(line))
        parts.append(
            pd.DataFrame(
                {"label": name, "position": place, "row": place // width, "column": place % width, "mean_top1": line}
            )
        )
    return figure, pd.concat(parts, ignore_index=True)


def top1_shares(top1: dict[str, np.ndarray], look: dict[str, tuple[str, str]]) -> tuple[Figure, pd.DataFrame]:
    """Share of tokens whose law has a largest probability of at most x, per cell; in steps of a hundredth of the tokens."""
    share = np.linspace(0, 1, 101)
    parts = [
        pd.DataFrame({"label": name, "share": share, "top1": np.quantile(values[~np.isnan(values)], share)})
        for name, values in top1.items()
    ]
    data = pd.concat(parts, ignore_index=True)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.8, 3.7), layout="constrained")
        ax = figure.subplots()
        for name, rows in data.groupby("label", sort=False):
            ax.plot(rows["top1"], rows["share"], color=look[str(name)][0], lw=1.4, label=name)
        ax.set(xlabel="top-1 probability of the target", ylabel="share of tokens", xlim=(0, 1), ylim=(0, 1))
        ax.legend()
        _legend_below(ax)
    return figure, data


def compression_ecdf(
    acceptance: dict[str, Acceptance], look: dict[str, tuple[str, str]]
) -> tuple[Figure, pd.DataFrame] | None:
    """Share of images whose step compression is at most x."""
    data = pd.DataFrame(
        [
            (name, i, float(c))
            for name, a in acceptance.items()
            for i, c in enumerate((a.step > 0).sum(1) / a.step.max(1))
        ],
        columns=["label", "image", "step_compression"],
    )
    if data.empty:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.8, 3.7), layout="constrained")
        ax = figure.subplots()
        sns.ecdfplot(
            data, x="step_compression", hue="label", palette={n: look[n][0] for n in acceptance}, ax=ax, lw=1.6
        )
        ax.set(xlabel="step compression of an image", ylabel="share of images")
        _legend_below(ax)
    return figure, data


def accepted_by_pass(
    acceptance: dict[str, Acceptance], look: dict[str, tuple[str, str]]
) -> tuple[Figure, pd.DataFrame] | None:
    """Tokens that became final per pass, in up to 40 stretches of passes, with the 95% interval over images.

    Only passes in which at least half of the images still take part: the rest would be a picture of the slow images.
    """
    parts = []
    for name, a in acceptance.items():
        passes = a.step.max(1)
        flat = a.step.astype(np.int64) + (int(passes.max()) + 1) * np.arange(len(a.step))[:, None]
        kept = (
            np.bincount(flat.ravel(), minlength=(int(passes.max()) + 1) * len(a.step))
            .reshape(len(a.step), -1)[:, 1:]
            .astype(float)
        )
        kept[np.arange(kept.shape[1]) >= passes[:, None]] = np.nan
        kept = kept[:, (~np.isnan(kept)).sum(0) * 2 >= len(kept)]
        present = ~np.isnan(kept)
        begin = np.arange(0, kept.shape[1], -(-kept.shape[1] // 40))
        made, seen = (
            np.add.reduceat(np.nan_to_num(kept), begin, 1),
            np.add.reduceat(present, begin, 1, dtype=int),
        )  # [n, stretches]
        each = np.where(seen > 0, made / np.maximum(1, seen), np.nan)
        images = (seen > 0).sum(0)
        first, last = begin + 1, np.append(begin[1:], kept.shape[1])
        error = np.nanstd(each, 0) / np.sqrt(np.maximum(1, images - 1))
        parts.append(
            pd.DataFrame(
                {
                    "label": name,
                    "first_pass": first,
                    "last_pass": last,
                    "mean": np.nanmean(each, 0),
                    "se": error,
                    "images": images,
                }
            )
        )
    if not parts:
        return None
    data = pd.concat(parts, ignore_index=True)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.8, 3.7), layout="constrained")
        ax = figure.subplots()
        for name in acceptance:
            d = data[data["label"] == name]
            middle = (d["first_pass"] + d["last_pass"]) / 2
            ax.plot(middle, d["mean"], color=look[name][0], lw=1.4, label=name)
            ax.fill_between(
                middle, d["mean"] - 1.96 * d["se"], d["mean"] + 1.96 * d["se"], color=look[name][0], alpha=0.18, lw=0
            )
        ax.set(xlabel="pass", ylabel="tokens made final per pass")
        ax.legend()
        _legend_below(ax)
    return figure, data


def _legend_below(ax) -> None:
    sns.move_legend(ax, "upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, title=None, fontsize=8)


def p_value_qq(null: pd.DataFrame, most: int = 6, points: int = 200) -> tuple[Figure, pd.DataFrame] | None:
    """Sorted p-values of true null hypotheses against uniform quantiles, up to `points` of each test.

    More than `most` tests: those furthest from the diagonal (Kolmogorov-Smirnov) are named, the rest are one grey group. The band is the
    pointwise 95% one of the smallest test.
    """
    null = null[null["p_value"].notna()] if "p_value" in null else null.iloc[:0]
    if null.empty:
        return None
    by = "test" if "test" in null else "layer" if "layer" in null else None
    tests = {
        str(k): np.sort(v.to_numpy(float))
        for k, v in (null.groupby(by, sort=True)["p_value"] if by else [("all", null["p_value"])])
    }
    n = min(map(len, tests.values()))
    far = sorted(tests, key=lambda t: -stats.ks_1samp(tests[t], stats.uniform.cdf).statistic * math.sqrt(len(tests[t])))
    named = sorted(tests) if len(tests) <= most else far[: most - 1]
    rest = f"the other {len(tests) - len(named)} tests"
    parts = []
    for name, p in tests.items():
        shown = np.unique(np.linspace(0, len(p) - 1, min(points, len(p))).round().astype(int))
        group = name if name in named else rest
        parts.append(
            pd.DataFrame({"group": group, "test": name, "expected": (shown + 0.5) / len(p), "p_value": p[shown]})
        )
    data = pd.concat(parts, ignore_index=True)
    colours = dict(zip(named, sns.color_palette("colorblind").as_hex(), strict=False)) | {rest: "#b9c0c7"}
    order = [g for g in (rest, *named) if (data["group"] == g).any()]
    i = np.arange(1, n + 1)
    low, high = stats.beta.ppf(0.025, i, n + 1 - i), stats.beta.ppf(0.975, i, n + 1 - i)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6, 4.2), layout="constrained")
        ax = figure.subplots()
        ax.fill_between((i - 0.5) / n, low, high, color="#8a94a0", alpha=0.18, lw=0)
        ax.plot([0, 1], [0, 1], color="#8a94a0", lw=0.8)
        drawn = data.sort_values("group", key=lambda g: g.map(order.index), kind="stable")  # grey ones beneath
        look = {"hue": "group", "style": "group", "hue_order": order, "palette": colours, "s": 12, "linewidth": 0}
        sns.scatterplot(drawn, x="expected", y="p_value", ax=ax, rasterized=True, **look)
        ax.set(xlabel="uniform quantile", ylabel="observed p-value", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        sns.move_legend(ax, "center left", bbox_to_anchor=(1.02, 0.5), title=None, fontsize=8)
        legend = ax.get_legend()
        for text in legend.get_texts() if legend else ():
            text.set_text(_wrapped(text.get_text(), 24))
    return figure, data
