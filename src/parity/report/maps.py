"""Where a decoder gains: maps and curves from the pass in which each token became final, from the target's certainty,
and from the drafts that were accepted. Places are in the image's own layout: [L] in raster order, `width` a row."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from parity.metrics.estimates import Z
from parity.metrics.passes import compress_steps
from parity.report.figures import Drawing, Look, wrap_label

Steps = Mapping[str, np.ndarray]  # by label [n, L] int: in which pass a token became final, from 1; 0 if forced
FIRST = 5  # this many images are shown with the target's largest probability
COLOURS: dict[str, Any] = {"cmap": "cividis", "interpolation": "none"}


def count_run_lengths(step: np.ndarray) -> np.ndarray:
    """Convert [n, L] int passes to [n, L] float: how many tokens became final in the same pass; NaN for forced ones."""
    return np.where(step > 0, np.stack([np.bincount(row)[row] for row in step]).astype(float), np.nan)


def average_over_images(values: np.ndarray) -> np.ndarray:
    """Average values [n, L] over images as [L]; NaN where no image has one."""
    return pd.DataFrame(values).mean().to_numpy()


def show_map(ax: Axes, line: np.ndarray, width: int, title: str, **scale: Any) -> AxesImage:
    """Draw [L] as an image of `width` columns, its last row filled up with NaN. scale: arguments of `imshow`."""
    ax.set_title(title, fontsize=8.5)
    padded = np.pad(line, (0, -len(line) % width), constant_values=np.nan)
    return ax.imshow(padded.reshape(-1, width), **COLOURS | scale)


def make_map_data(lines: Mapping[str, np.ndarray], widths: Mapping[str, int], measure: str) -> pd.DataFrame:
    """Tabulate maps [L] by label, a row a position: label, position, row, column, and the value, named by `measure`."""
    frames = []
    for name, line in lines.items():
        position = np.arange(len(line))
        width = widths[name]
        fields = {"label": name, "position": position, "row": position // width, "column": position % width}
        frames.append(pd.DataFrame(fields | {measure: line}))
    return pd.concat(frames, ignore_index=True)


def make_blank_axes(figure: Figure, rows: int, columns: int) -> np.ndarray:
    """Add a grid of axes [rows, columns] without frames and ticks, so that those that stay empty are invisible."""
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.axis("off")
    return axes


def draw_acceptance_maps(steps: Steps, widths: Mapping[str, int]) -> Drawing | None:
    """Draw how many tokens became final together, by place: the mean over images above, the first image below. Cells of
    one token a pass everywhere are left out; None if no cell is left."""
    means, firsts = {}, {}
    for name, step in steps.items():
        run = count_run_lengths(step)
        if np.nanmax(run) > 1:
            means[name], firsts[name] = average_over_images(run), run[0].copy()
    if not means:
        return None
    across = min(7, len(means))
    deep = -(-len(means) // across)
    figure = Figure(figsize=(12.2, 4.3 * deep), layout="constrained")
    axes = make_blank_axes(figure, 2 * deep, max(across, 3))
    for offset, lines in enumerate((means, firsts)):
        largest = max(np.nanmax(line) for line in lines.values())
        for k, (name, line) in enumerate(lines.items()):
            title = "first image" if offset else f"{wrap_label(name, 18)}\nmean"
            ax = axes[2 * (k // across) + offset, k % across]
            image = show_map(ax, line, widths[name], title, vmin=1, vmax=largest)
        for row in axes[offset::2]:
            figure.colorbar(image, ax=row.tolist(), shrink=0.75, label="tokens per pass")
    return figure, make_map_data(means, widths, "mean_run_length")


def draw_top1_maps(
    top1: Mapping[str, np.ndarray], pixels: np.ndarray, plain: str, widths: Mapping[str, int]
) -> Drawing:
    """Draw the target's largest probability at each place for plain decoding: the mean, and the FIRST images with
    theirs. The data hold the means of every cell of as many tokens. top1: by cell [n, L], NaN where forced."""
    own = top1[plain]
    lines = [average_over_images(own), *own[:FIRST]]
    figure = Figure(figsize=(12.2, 4.7), layout="constrained")
    axes = make_blank_axes(figure, 2, len(lines))
    for k, line in enumerate(lines):
        title = "" if k else f"mean of {len(own)} images"
        image = show_map(axes[1, k], line, widths[plain], title, vmin=0, vmax=1)
    for ax, drawn in zip(axes[0, 1:], pixels, strict=False):
        ax.imshow(drawn, interpolation="nearest")
    figure.colorbar(image, ax=axes, shrink=0.8, label="top-1 probability")
    means = {name: average_over_images(values) for name, values in top1.items()}
    same_length = {name: line for name, line in means.items() if len(line) == own.shape[1]}
    return figure, make_map_data(same_length, widths, "mean_top1")


def draw_boxes(data: pd.DataFrame, x: str, look: Look, xlabel: str) -> Figure:
    """Draw a horizontal box of the column `x` for each label: the middle half, the median, whiskers from 5 to 95%."""
    figure = Figure(figsize=(6.2, 0.9 + 0.27 * data["label"].nunique()), layout="constrained")
    ax = figure.subplots()
    colours = {name: look[name][0] for name in data["label"].unique()}
    box = {"whis": (5, 95), "showfliers": False, "width": 0.5, "linewidth": 1, "legend": False}
    sns.boxplot(data, x=x, y="label", hue="label", palette=colours, ax=ax, **box)
    ax.set(xlabel=xlabel, ylabel="")
    return figure


def draw_top1_shares(top1: Mapping[str, np.ndarray], look: Look) -> Drawing:
    """Draw a box for each cell of the target's largest probability [n, L] at its tokens; the data are quantiles."""
    share = np.linspace(0, 1, 101)
    frames = [
        pd.DataFrame({"label": name, "share": share, "top1": np.quantile(values[~np.isnan(values)], share)})
        for name, values in top1.items()
    ]
    data = pd.concat(frames, ignore_index=True)
    return draw_boxes(data, "top1", look, "top-1 probability of the target"), data


def draw_compression(steps: Steps, top1: Mapping[str, np.ndarray], look: Look) -> Drawing:
    """Draw a box for each cell of the step compression of its images. top1: by label [n, L], NaN where forced."""
    rows = [
        (name, i, float(ratio))
        for name, step in steps.items()
        for i, ratio in enumerate(compress_steps(step, step.max(1), np.isnan(top1[name]).all(0)))
    ]
    data = pd.DataFrame(rows, columns=["label", "image", "step_compression"])
    return draw_boxes(data, "step_compression", look, "step compression of an image (tokens per pass)"), data


def count_by_pass(step: np.ndarray, max_stretches: int = 24) -> pd.DataFrame:
    """Count the tokens that became final per pass, from step [n, L], by stretch of passes: the mean over images, its
    error, their number. Passes in which less than half of the images take part would show the slow ones alone: left
    out."""
    tokens = pd.DataFrame([np.bincount(row)[1:] for row in step])  # a row is an image, NaN after its last pass
    tokens = tokens.loc[:, tokens.notna().mean() >= 0.5]
    starts = np.arange(0, tokens.shape[1], -(-tokens.shape[1] // max_stretches))
    each = tokens.T.groupby(np.searchsorted(starts, tokens.columns, side="right")).mean()  # means, [stretches, images]
    ends = {"first_pass": starts + 1, "last_pass": np.append(starts[1:], tokens.shape[1])}
    figures = {"mean": each.mean(axis=1), "se": each.sem(axis=1).fillna(0), "images": each.notna().sum(axis=1)}
    return pd.DataFrame(ends | {name: values.to_numpy() for name, values in figures.items()})


def draw_passes(steps: Steps, look: Look) -> Drawing:
    """Draw for each cell the tokens that became final in a pass, by pass, with intervals over images."""
    frames = {name: count_by_pass(step) for name, step in steps.items()}
    data = pd.concat(frames, names=["label"]).reset_index("label").reset_index(drop=True)
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    ax = figure.subplots()
    for name, d in data.groupby("label", sort=False):
        middle, reach, (colour, marker) = (d["first_pass"] + d["last_pass"]) / 2, Z * d["se"], look[str(name)]
        ax.plot(middle, d["mean"], color=colour, lw=1.3, marker=marker, ms=4, markevery=max(1, len(d) // 5), label=name)
        ax.fill_between(middle, d["mean"] - reach, d["mean"] + reach, color=colour, alpha=0.12, lw=0)
    ax.set(xlabel="pass", ylabel="tokens made final per pass", xscale="log")
    ax.xaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside lower center", ncols=3)
    return figure, data


def draw_draft_maps(shares: Mapping[str, tuple[np.ndarray, ...]], look: Look, max_cells: int = 4) -> Drawing | None:
    """Draw the shares of drafts accepted in each cell, by rank in the order (a rolling mean over 8) and by position in
    the image. shares: by label two arrays [L], by rank and by position; the first `max_cells` are drawn, the data
    hold all. None if there is no cell."""
    if not shares:
        return None
    drawn = dict(list(shares.items())[:max_cells])
    widths = {name: round(len(by_place) ** 0.5) for name, (_, by_place) in shares.items()}
    figure = Figure(figsize=(4.2 + 2.4 * len(drawn), 2.8), layout="constrained")
    first, *rest = figure.subplots(1, 1 + len(drawn), width_ratios=[1.8] + [1] * len(drawn))
    for ax, (name, (ranks, by_place)) in zip(rest, drawn.items(), strict=True):
        smooth, (colour, marker) = pd.Series(ranks).rolling(8, min_periods=1, center=True).mean(), look[name]
        marks = {"marker": marker, "ms": 4, "markevery": max(1, len(ranks) // 5)}
        first.plot(range(1, len(ranks) + 1), smooth, color=colour, label=name, **marks)
        image = show_map(ax, by_place, widths[name], wrap_label(name, 26), vmin=0, vmax=1, cmap="YlGn")
        ax.set(xticks=[], yticks=[])
    first.set(xlabel="place in the order", ylabel="share of drafts accepted", ylim=(0, 1.02))
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.colorbar(image, ax=rest, shrink=0.8)
    data = make_map_data({name: by_place for name, (_, by_place) in shares.items()}, widths, "accepted_here")
    return figure, data.assign(accepted_at_rank=np.concatenate([ranks for ranks, _ in shares.values()]))
