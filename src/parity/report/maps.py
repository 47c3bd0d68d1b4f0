"""Where a decoder gains: maps and curves from the pass in which each token became final, from the target's certainty,
and from the drafts that were kept. Places are in the picture's own layout, [L] in raster order on rows of `width`
tokens."""

from collections.abc import Callable, Mapping

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parity.report.figures import STYLE, Drawing, Look, legend_below, wrapped

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


def acceptance_maps(steps: Steps) -> Drawing | None:
    """Tokens that became final together, by place: the mean over images above, the first image below.

    Cells that take one token a pass everywhere are left out: their map is all 1.
    """
    runs = {name: run_lengths(step) for name, step in steps.items()}
    runs = {name: run for name, run in runs.items() if np.nanmax(run) > 1}
    if not runs:
        return None
    lines = {name: by_position(run) for name, run in runs.items()}
    means = {name: grid(line, width_of(line)) for name, line in lines.items()}
    firsts = {name: grid(run[0], width_of(run)) for name, run in runs.items()}
    scales = [max(np.nanmax(m) for m in maps.values()) for maps in (means, firsts)]
    across = min(4, len(runs))
    deep = -(-len(runs) // across)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12.2, 5.4 * deep), layout="constrained")
        axes = figure.subplots(2 * deep, max(across, 3), squeeze=False)
        for ax in axes.ravel():
            ax.axis("off")
        look = {"vmin": 1, "cmap": "cividis", "square": True, "xticklabels": False, "yticklabels": False}
        look |= {"rasterized": True, "cbar_kws": {"shrink": 0.75, "label": "tokens per pass"}}
        for k, name in enumerate(runs):
            for part, (maps, what) in enumerate(((means, "mean"), (firsts, "first image"))):
                ax = axes[2 * (k // across) + part, k % across]
                ax.axis("on")
                sns.heatmap(maps[name], ax=ax, vmax=scales[part], **look)
                ax.set_title(f"{wrapped(name)}\n{what}" if part == 0 else what, fontsize=8.5)
    parts = [map_data(name, line, width_of(line), "mean_run_length") for name, line in lines.items()]
    return figure, pd.concat(parts, ignore_index=True)


def curves(draw: Callable[[Axes], None], **labels: object) -> Figure:
    """A small figure of lines with its legend below."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.8, 3.7), layout="constrained")
        ax = figure.subplots()
        draw(ax)
        ax.set(**labels)
        if ax.get_legend() is None:
            ax.legend()
        legend_below(ax)
    return figure


def top1_maps(top1: Mapping[str, np.ndarray], pixels: np.ndarray | None, plain: str, shown: int = 5) -> Drawing:
    """The target's largest probability at each place, for tokens of plain decoding: the mean over images, and `shown`
    images with theirs.

    top1 [n, L] of each cell, NaN where forced; pixels [n, H, W, 3] of the cell `plain`, or None. The data hold every
    cell.
    """
    own = top1[plain]
    shown, rows, width = min(shown, len(own)), 1 if pixels is None else 2, width_of(own)
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
    parts = [map_data(name, by_position(v), width_of(v), "mean_top1") for name, v in top1.items()]
    return figure, pd.concat(parts, ignore_index=True)


def top1_shares(top1: Mapping[str, np.ndarray], look: Look) -> Drawing:
    """Share of tokens whose law has a largest probability of at most x, per cell, in steps of a hundredth."""
    share = np.linspace(0, 1, 101)
    parts = [
        pd.DataFrame({"label": name, "share": share, "top1": np.quantile(values[~np.isnan(values)], share)})
        for name, values in top1.items()
    ]
    data = pd.concat(parts, ignore_index=True)

    def draw(ax: Axes) -> None:
        for name, rows in data.groupby("label", sort=False):
            ax.plot(rows["top1"], rows["share"], color=look[str(name)][0], lw=1.4, label=name)

    axes = {"xlabel": "top-1 probability of the target", "ylabel": "share of tokens", "xlim": (0, 1), "ylim": (0, 1)}
    return curves(draw, **axes), data


def compression_ecdf(steps: Steps, look: Look) -> Drawing | None:
    """Share of images whose step compression is at most x."""
    rows = [(name, i, float(c)) for name, step in steps.items() for i, c in enumerate((step > 0).sum(1) / step.max(1))]
    data = pd.DataFrame(rows, columns=["label", "image", "step_compression"])
    if data.empty:
        return None
    colours = {name: look[name][0] for name in steps}

    def draw(ax: Axes) -> None:
        sns.ecdfplot(data, x="step_compression", hue="label", palette=colours, ax=ax, lw=1.6)

    return curves(draw, xlabel="step compression of an image", ylabel="share of images"), data


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

    def draw(ax: Axes) -> None:
        for name in steps:
            d, colour = data[data["label"] == name], look[name][0]
            middle, reach = (d["first_pass"] + d["last_pass"]) / 2, 1.96 * d["se"]
            ax.plot(middle, d["mean"], color=colour, lw=1.4, label=name)
            ax.fill_between(middle, d["mean"] - reach, d["mean"] + reach, color=colour, alpha=0.18, lw=0)

    return curves(draw, xlabel="pass", ylabel="tokens made final per pass"), data


def draft_maps(shares: Mapping[str, tuple[np.ndarray, np.ndarray]], most: int = 4) -> Drawing | None:
    """Where drafts are kept: shares [L] of each cell by rank in the order, a mean over 8, and by place of the grid."""
    if not shares:
        return None
    drawn = dict(list(shares.items())[:most])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2 + 2.4 * len(drawn), 2.8), layout="constrained")
        axes = figure.subplots(1, 1 + len(drawn), width_ratios=[1.8] + [1] * len(drawn), squeeze=False)[0]
        for ax, (name, (ranks, places)) in zip(axes[1:], drawn.items(), strict=True):
            smooth = pd.Series(ranks).rolling(8, min_periods=1, center=True).mean()
            axes[0].plot(range(1, len(ranks) + 1), smooth, label=name)
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
