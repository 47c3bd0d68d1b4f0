"""Where a decoder gains: maps and curves from the pass in which each token became final, from the target's certainty,
and from the drafts that were kept. Places are in the picture's own layout, [L] in raster order on rows of `width`
tokens."""

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from parity.report.figures import STYLE, Drawing, Look, Named, dark, label_ends, wrapped

Widths = Mapping[str, int]
Steps = Mapping[str, np.ndarray]  # by label: [n, L] int, the pass in which a token became final, from 1; 0 where forced


def width_of(places: np.ndarray) -> int:
    """Tokens in a row of a square picture of places [..., L]."""
    return round(places.shape[-1] ** 0.5)


def run_lengths(step: np.ndarray) -> np.ndarray:
    """[n, L] int passes to [n, L] float: how many tokens became final in the same pass; NaN for forced ones."""
    passes = int(step.max()) + 1
    flat = step.astype(np.int64) + passes * np.arange(len(step))[:, None]
    count = np.bincount(flat.ravel(), minlength=passes * len(step))
    return np.where(step > 0, count[flat].astype(float), np.nan)


def by_position(values: np.ndarray) -> np.ndarray:
    """Mean of values [n, L] over images; NaN where no image has one, without a warning."""
    present = ~np.isnan(values)
    return np.where(present.any(0), np.nansum(values, 0) / np.maximum(1, present.sum(0)), np.nan)


def grid(line: np.ndarray, width: int) -> np.ndarray:
    """[L] to [rows, width], the last row filled up with NaN."""
    return np.pad(line, (0, -len(line) % width), constant_values=np.nan).reshape(-1, width)


def map_data(name: str, line: np.ndarray, width: int, measure: str) -> pd.DataFrame:
    """A map as rows: label, position, row, column and the measure."""
    place = np.arange(len(line))
    return pd.DataFrame(
        {"label": name, "position": place, "row": place // width, "column": place % width, measure: line}
    )


def acceptance_maps(steps: Steps, widths: Widths | None = None) -> Drawing | None:
    """Tokens that became final together, by place: the mean over images above, the first image below. widths: tokens in
    a row, by label, of pictures that are not square.

    Cells that take one token a pass everywhere are left out: their map is all 1.
    """
    runs = {name: run_lengths(step) for name, step in steps.items()}
    runs = {name: run for name, run in runs.items() if np.nanmax(run) > 1}
    if not runs:
        return None
    lines = {name: by_position(run) for name, run in runs.items()}
    across_row = {name: (widths or {}).get(name) or width_of(line) for name, line in lines.items()}
    means = {name: grid(line, across_row[name]) for name, line in lines.items()}
    firsts = {name: grid(run[0], across_row[name]) for name, run in runs.items()}
    scales = [max(np.nanmax(m) for m in maps.values()) for maps in (means, firsts)]
    across = min(7, len(runs))
    deep = -(-len(runs) // across)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12.2, 4.3 * deep), layout="constrained")
        axes = figure.subplots(2 * deep, max(across, 3), squeeze=False)
        for ax in axes.ravel():
            ax.axis("off")
        look: dict[str, Any] = {"vmin": 1, "cmap": "cividis", "interpolation": "none"}
        for part, (maps, what) in enumerate(((means, "mean"), (firsts, "first image"))):
            for k, name in enumerate(runs):
                ax = axes[2 * (k // across) + part, k % across]
                picture = ax.imshow(maps[name], vmax=scales[part], **look)
                ax.set_title(f"{wrapped(name, 18)}\n{what}" if part == 0 else what, fontsize=8.5)
            for row in range(part, 2 * deep, 2):
                figure.colorbar(picture, ax=axes[row].tolist(), shrink=0.75, label="tokens per pass")
    parts = [map_data(name, line, across_row[name], "mean_run_length") for name, line in lines.items()]
    return figure, pd.concat(parts, ignore_index=True)


SHARES = (5, 25, 50, 75, 95)  # percent


def spans(values: Mapping[str, np.ndarray], look: Look, xlabel: str) -> Figure:
    """A line for each name: the middle half of its values thick, 5 to 95% thin, the median a mark."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.2, 0.9 + 0.27 * len(values)), layout="constrained")
        ax = figure.subplots()
        for k, (name, own) in enumerate(values.items()):
            colour, marker = look[name]
            low, lower, middle, upper, high = np.percentile(own, SHARES)
            ax.plot([low, high], [k, k], color=colour, lw=1.2)
            ax.plot([lower, upper], [k, k], color=colour, lw=5, alpha=0.55, solid_capstyle="butt")
            ax.plot(middle, k, marker, color=colour, ms=6, mec="white", mew=0.8)
        ax.set_yticks(range(len(values)), list(values))
        for tick, name in zip(ax.get_yticklabels(), values, strict=True):
            tick.set_color(dark(look[name][0]))
        ax.set_xlabel(xlabel)
        ax.grid(axis="y", visible=False)
        ax.invert_yaxis()
    return figure


def top1_maps(
    top1: Mapping[str, np.ndarray], pixels: np.ndarray | None, plain: str, width: int = 0, shown: int = 5
) -> Drawing:
    """The target's largest probability at each place, for tokens of plain decoding: the mean over images, and `shown`
    images with theirs.

    top1 [n, L] of each cell, NaN where forced; pixels [n, H, W, 3] of the cell `plain`, or None; width, tokens in a
    row, 0 of a square picture. The data hold every cell.
    """
    own = top1[plain]
    shown, rows, width = min(shown, len(own)), 1 if pixels is None else 2, width or width_of(own)
    look = {"vmin": 0, "vmax": 1, "cmap": "cividis", "interpolation": "nearest"}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12.2, 2.2 * rows + 0.3), layout="constrained")
        axes = figure.subplots(rows, shown + 1, squeeze=False)
        for ax in axes.ravel():
            ax.axis("off")
        for k, values in enumerate([by_position(own), *own[:shown]]):
            picture = axes[-1, k].imshow(grid(values, width), **look)
            name = f"mean of {len(own)} images" if k == 0 else "" if pixels is not None else f"image {k}"
            axes[-1, k].set_title(name, fontsize=8.5)
            if k and pixels is not None:
                axes[0, k].imshow(pixels[k - 1], interpolation="nearest")
        figure.colorbar(picture, ax=axes, shrink=0.8, label="top-1 probability")
    parts = [map_data(name, by_position(v), width, "mean_top1") for name, v in top1.items()]
    return figure, pd.concat(parts, ignore_index=True)


def top1_shares(top1: Mapping[str, np.ndarray], look: Look) -> Drawing:
    """Share of tokens whose law has a largest probability of at most x, per cell, in steps of a hundredth."""
    share = np.linspace(0, 1, 101)
    parts = [
        pd.DataFrame({"label": name, "share": share, "top1": np.quantile(values[~np.isnan(values)], share)})
        for name, values in top1.items()
    ]
    data = pd.concat(parts, ignore_index=True)

    own = {name: values[~np.isnan(values)] for name, values in top1.items()}
    return spans(own, look, "top-1 probability of the target"), data


def compression(steps: Steps, look: Look) -> Drawing | None:
    """Step compression of the images of each cell."""
    rows = [(name, i, float(c)) for name, step in steps.items() for i, c in enumerate((step > 0).sum(1) / step.max(1))]
    data = pd.DataFrame(rows, columns=["label", "image", "step_compression"])
    if data.empty:
        return None
    own = {str(name): rows.to_numpy() for name, rows in data.groupby("label", sort=False)["step_compression"]}
    return spans(own, look, "step compression of an image (tokens per pass)"), data


def made_by_pass(step: np.ndarray, most: int = 40) -> pd.DataFrame:
    """Tokens that became final per pass, in up to `most` stretches of passes: mean over images, its error, and how
    many.

    Only passes in which at least half of the images still take part: the rest would be a picture of the slow images.
    """
    passes = step.max(1)
    flat = step.astype(np.int64) + (int(passes.max()) + 1) * np.arange(len(step))[:, None]
    kept = np.bincount(flat.ravel(), minlength=(int(passes.max()) + 1) * len(step))
    kept = kept.reshape(len(step), -1)[:, 1:].astype(float)
    kept[np.arange(kept.shape[1]) >= passes[:, None]] = np.nan
    kept = kept[:, (~np.isnan(kept)).sum(0) * 2 >= len(kept)]
    begin = np.arange(0, kept.shape[1], -(-kept.shape[1] // most))
    made = np.add.reduceat(np.nan_to_num(kept), begin, 1)  # [n, stretches]
    seen = np.add.reduceat(~np.isnan(kept), begin, 1, dtype=int)
    each = np.where(seen > 0, made / np.maximum(1, seen), np.nan)
    images = (seen > 0).sum(0)
    ends = {"first_pass": begin + 1, "last_pass": np.append(begin[1:], kept.shape[1])}
    error = np.nanstd(each, 0) / np.sqrt(np.maximum(1, images - 1))
    return pd.DataFrame({**ends, "mean": np.nanmean(each, 0), "se": error, "images": images})


def accepted_by_pass(steps: Steps, look: Look) -> Drawing | None:
    """Tokens that became final per pass as decoding goes on, with the 95% interval over images."""
    if not steps:
        return None
    parts = {name: made_by_pass(step) for name, step in steps.items()}
    data = pd.concat(parts, names=["label"]).reset_index("label").reset_index(drop=True)

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.6))
        figure.subplots_adjust(left=0.1, right=0.78, bottom=0.12, top=0.98)  # names at the right
        ax, ends = figure.subplots(), []
        for name in steps:
            d, (colour, marker) = data[data["label"] == name], look[name]
            middle, reach = (d["first_pass"] + d["last_pass"]) / 2, 1.96 * d["se"]
            marks: dict[str, Any] = {"marker": marker, "ms": 4, "markevery": max(1, len(d) // 5)}
            ax.plot(middle, d["mean"], color=colour, lw=1.3, **marks)
            ax.fill_between(middle, d["mean"] - reach, d["mean"] + reach, color=colour, alpha=0.12, lw=0)
            if len(d):
                ends.append(Named(float(middle.iloc[-1]), float(d["mean"].iloc[-1]), name, colour))
        ax.set(xlabel="pass", ylabel="tokens made final per pass", xscale="log")
        ax.xaxis.set_major_formatter("{x:g}")
        label_ends(ax, ends)
    return figure, data


def draft_maps(shares: Mapping[str, tuple[np.ndarray, np.ndarray]], look: Look, most: int = 4) -> Drawing | None:
    """Where drafts are kept: shares [L] of each cell by rank in the order (a mean over 8), and by place in the grid."""
    if not shares:
        return None
    drawn = dict(list(shares.items())[:most])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2 + 2.4 * len(drawn), 2.8), layout="constrained")
        axes = figure.subplots(1, 1 + len(drawn), width_ratios=[1.8] + [1] * len(drawn), squeeze=False)[0]
        for ax, (name, (ranks, places)) in zip(axes[1:], drawn.items(), strict=True):
            smooth = pd.Series(ranks).rolling(8, min_periods=1, center=True).mean()
            colour, marker = look[name]
            marks: dict[str, Any] = {"marker": marker, "ms": 4, "markevery": max(1, len(ranks) // 5)}
            axes[0].plot(range(1, len(ranks) + 1), smooth, color=colour, label=name, **marks)
            image = ax.imshow(grid(places, width_of(places)), vmin=0, vmax=1, cmap="YlGn")
            ax.set_title(wrapped(name, 26), fontsize=7)
            ax.set(xticks=[], yticks=[])
        axes[0].set(xlabel="place in the order", ylabel="share of drafts accepted", ylim=(0, 1.02))
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=7, ncols=2)
        figure.colorbar(image, ax=axes[1:].tolist(), shrink=0.8)
    parts = [
        map_data(name, places, width_of(places), "accepted_here").assign(accepted_at_rank=ranks)
        for name, (ranks, places) in shares.items()
    ]
    return figure, pd.concat(parts, ignore_index=True)
