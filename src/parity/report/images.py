"""Images of the same prompts, cell by cell, as data URIs: the worst in a table, all of them and the replay in the
page's own view."""

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from parity.base.errors import ParityError
from parity.experiment.cells import Cell
from parity.report.blocks import Grid, Packed, Words, cut_caption, list_records, pack
from parity.report.collect import Gathered, follows_plain, group_same, name_group
from parity.report.settings import SummaryRow, parse_settings

KIND = "discrete"
SHOWN = 8  # prompts whose images are shown on a page without scripts
COMPETE = 256  # the worst prompts are sought among this many
BYTES = 800_000  # the most that the images in the view of all prompts take
ACROSS = 8  # images in a row of a sheet
EMPTY = np.zeros((0, 0))


class Column(NamedTuple):
    """One cell's images of the first COMPETE prompts, and how they were decoded."""

    label: str
    pixels: np.ndarray  # uint8 [n, H, W, 3]
    cosine: np.ndarray  # [n], of image and caption, by the network that judges quality; NaN without one
    baseline: bool = False  # whether it is plain decoding; differences are from a model's first
    model: str = ""
    method: str = ""
    drawn: str = ""  # the names of all cells that drew these images
    plain: bool = False  # whether the images are those of plain decoding
    step: np.ndarray = EMPTY  # [n, L] the pass in which each token became final
    nodes: np.ndarray = EMPTY  # [n] tokens evaluated; NaN where that is not known
    known: bool = True  # whether `step` is: who made tokens elsewhere may not say
    window: int = 0


def encode_image(image: Image.Image, quality: int) -> str:
    """Encode an image as a WebP data URI; quality: 1 to 100."""
    stream = io.BytesIO()
    image.save(stream, format="WEBP", quality=quality, method=4)
    return "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode()


def make_thumbnail(pixels: np.ndarray, side: int = 256) -> str:
    """Encode uint8 [H, W, 3] as a compressed data URI, reduced to `side` pixels each way if it is larger."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return encode_image(image, 88)


class Sheets(NamedTuple):
    uris: list[str]
    sheet_of: list[int]  # each column's number of a sheet: columns of the same images share one
    side: int  # pixels of an image on the sheet, each way


def make_sheets(columns: Sequence[np.ndarray], room: int) -> tuple[Sheets, int]:
    """Draw each column's images [n, H, W, 3] on a sheet, columns of the same images on one, as many of the first
    prompts as fit into `room` bytes, but at least a row. Returns the sheets and how many prompts are on them."""
    numbers: dict[bytes, int] = {}
    sheet_of = [numbers.setdefault(pixels.tobytes(), len(numbers)) for pixels in columns]
    distinct = [columns[sheet_of.index(k)] for k in range(len(numbers))]
    shown, side = len(columns[0]), min(96, max(columns[0].shape[1:3]))
    while True:
        uris = [draw_sheet(pixels[:shown], side) for pixels in distinct]
        if (size := sum(map(len, uris))) <= room or shown <= ACROSS:
            return Sheets(uris, sheet_of, side), shown
        shown = max(ACROSS, min(shown - ACROSS, int(shown * room / size)) // ACROSS * ACROSS)


def draw_sheet(pixels: np.ndarray, side: int) -> str:
    """Draw images uint8 [n, H, W, 3], resized to `side` x `side`, on one image, ACROSS in a row, as a data URI."""
    canvas = Image.new("RGB", (ACROSS * side, -(-len(pixels) // ACROSS) * side))
    for i, image_pixels in enumerate(pixels):
        image = Image.fromarray(image_pixels).resize((side, side), Image.Resampling.LANCZOS)
        canvas.paste(image, (i % ACROSS * side, i // ACROSS * side))
    return encode_image(canvas, 65)


def order_worst_first(columns: list[Column]) -> tuple[np.ndarray, np.ndarray]:
    """Order the prompts by how far a decoder's cosine falls below that of its model's first baseline. Returns their
    indices [n] and these differences [n]. If all columns are baselines, later ones stand for decoders."""
    base = {c.model: c for c in reversed(columns)} | {c.model: c for c in reversed(columns) if c.baseline}
    decoders = [c for c in columns if not c.baseline] or [c for c in columns if c is not base[c.model]] or columns
    worst = np.fmin.reduce([c.cosine - base[c.model].cosine for c in decoders], 0)  # fmin ignores NaN
    order = np.argsort(worst, kind="stable")
    return order, worst[order]


def read_column(g: Gathered, row: SummaryRow, cell: Cell, group: list[dict[str, Any]]) -> Column:
    """Read the column of a cell's summary row; group: the rows that drew the same tokens."""
    is_plain = cell.role != "method"
    is_coupled = not is_plain and follows_plain(group)
    drawn = f"plain decoding, seed {cell.spec['seed']}: " * is_coupled + name_group(group, "label")
    pixels, cosine = g.files.read_pixels(cell, COMPETE), g.files.read_features(cell).get("cosine")
    decoded, lacks = g.files.read_decoded(cell, "step", "nodes"), g.files.read_provenance(cell).get("lacks", ())
    step = decoded["step"][:COMPETE].copy()
    return Column(
        row["label"], pixels, np.full(len(pixels), np.nan) if cosine is None else cosine[:COMPETE], is_plain,
        row["model"], row["method"], drawn, is_plain or is_coupled, step,
        decoded["nodes"][:COMPETE].copy() if "nodes" in decoded else (step > 0).sum(1),
        "step" not in lacks, int(parse_settings(row["options"]).get("window", 0)),
    )  # fmt: skip


def list_columns(g: Gathered) -> tuple[list[Column], list[str], int]:
    """List the images of each cell, at most COMPETE prompts, the captions, and the number of all prompts. Raises
    ParityError if the cells have not the same number of images."""
    rows, cells = list_records(g.select_rows(KIND)), g.map_cells(KIND)
    groups = {row["label"]: group for group in group_same(rows) for row in group}
    columns = [read_column(g, row, cells[row["label"]], groups[row["label"]]) for row in rows]
    texts = [text for row in rows[:1] for text in g.files.read_features(cells[row["label"]])["captions"].tolist()]
    captions = [cut_caption(text) for text in texts[:COMPETE]]
    lengths = {len(captions), *(len(x) for c in columns for x in (c.pixels, c.cosine))}
    if len(lengths) > 1:
        raise ParityError(f"images: columns and captions of {sorted(lengths)} rows; must be as many")
    return columns, captions, len(texts)


def show_images(g: Gathered) -> list[Any]:
    """Make the blocks on images: a paragraph, the page's own views, and a grid of the SHOWN prompts on which a decoder
    falls furthest below plain decoding (unjudged: the first). Columns of the same images are shown once."""
    columns, captions, n_prompts = list_columns(g)
    if not columns:
        return [Words("this experiment has no images.", "empty")]
    order, worst = order_worst_first(columns)
    ranking = {"rank": range(1, len(order) + 1), "caption": [captions[i] for i in order], "worst_difference": worst}
    ranking |= {c.label: c.cosine[order] for c in columns}
    same: dict[tuple[str, str], list[Column]] = {}
    for column in columns:
        same.setdefault((column.model, column.drawn), []).append(column)
    different = sorted(same.values(), key=lambda sharing: not sharing[0].plain)
    rows = []
    for i, w in zip(order[:SHOWN], worst, strict=False):
        row = [(make_thumbnail(s[0].pixels[i], 96), s[0].drawn, describe_image(s, i)) for s in different]
        rows.append((captions[i], format_number(w, "+.3f"), row))
    grid = Grid("pictures", [(c.drawn, c.method) for c, *_ in different], rows, pd.DataFrame(ranking))
    scope = len(captions) if len(captions) == n_prompts else f"the first {len(captions)} of {n_prompts:,}"
    text = UNJUDGED if np.isnan(worst).all() else WORST
    return [text.format(shown=len(rows), all=scope), *make_views(columns, captions, n_prompts), grid]


def describe_image(sharing: Sequence[Column], i: int) -> str:
    """Describe prompt i's image of the columns that share it: its cosine, and its passes in each of them."""
    passes = dict.fromkeys(f"{c.step[i].max():,}" if c.known else "unknown" for c in sharing)
    return ", ".join(filter(None, [format_number(sharing[0].cosine[i], ".3f"), f"{', '.join(passes)} passes"]))


def make_views(columns: list[Column], captions: list[str], n_prompts: int) -> Iterator[Packed]:
    """Yield for each model the packed data of the views: as many prompts as there is room for, the worst first."""
    models = list(dict.fromkeys(c.model for c in columns))
    for model in models:
        model_columns = [c for c in columns if c.model == model]
        order, worst = order_worst_first(model_columns)
        drawn, shown = make_sheets([c.pixels[order] for c in model_columns], BYTES // len(models))
        order = order[:shown]
        base = next((c for c in model_columns if c.baseline), model_columns[0])
        pairs = zip(model_columns, drawn.sheet_of, strict=True)
        judged = not np.isnan(worst).all()
        about = f"{shown} of {n_prompts:,} prompts{JUDGED if judged else UNDER}. Images are compressed."
        about += LEFT * (shown < n_prompts)
        yield pack("pictures", f"{about} Without scripts {'the worst' if judged else 'the first'} are below.", {
            "side": drawn.side, "across": ACROSS, "tokens": max(c.step.shape[1] for c in model_columns),
            "sheets": drawn.uris, "columns": [describe_column(c, order, base, sheet) for c, sheet in pairs],
            "captions": [captions[i] for i in order], "worst": round_values(worst[:shown]), "about": about,
            "replay": REPLAY,
        })  # fmt: skip


def describe_column(c: Column, order: np.ndarray, base: Column, sheet: int) -> dict[str, Any]:
    """Collect what the views show of one cell: figures, and for the replay the tokens `kept` in each pass if they
    became final in raster order, else the pass (`step`) of each. order: of prompts; base: the baseline's column."""
    step, nodes = c.step[order], c.nodes[order]
    content: dict[str, Any] = {
        "label": c.label, "drawn": c.drawn, "method": c.method, "plain": c.baseline, "sheet": sheet,
        "cosine": round_values(c.cosine[order]),
        "difference": round_values(c.cosine[order] - base.cosine[order]),
        "nodes": [None if np.isnan(count) else int(count) for count in nodes],
        "passes": float(step.max(1).mean()),
    }  # fmt: skip
    if not c.known:
        return content | {"unknown": True}
    if (np.diff(step, axis=1) >= 0).all() and (step > 0).all():
        n_kept = [np.bincount(row)[1:].tolist() for row in step]
        is_sliding = c.window > 0 and is_sliding_window(n_kept, nodes, c.window)
        return content | {"kept": n_kept, "window": c.window if is_sliding else 0}
    return content | {"step": step.tolist(), "parallel": True}


def is_sliding_window(n_kept: list[list[int]], nodes: np.ndarray, window: int) -> bool:
    """Return whether the tokens evaluated, nodes [n], are of a window of this size that moves on by what was kept."""
    for row, total in zip(n_kept, nodes.tolist(), strict=True):
        starts = np.concatenate([[0], np.cumsum(row)[:-1]])
        if np.minimum(window, sum(row) - starts).sum() != total:
            return False
    return True


def round_values(values: np.ndarray) -> list[float | None]:
    """Round to four decimals; None for NaN, which JSON lacks."""
    return [None if np.isnan(v) else round(float(v), 4) for v in values]


def format_number(value: float, form: str) -> str:
    """Format a number, "" for NaN."""
    return "" if np.isnan(value) else format(value, form)


def list_identical(g: Gathered) -> list[str]:
    """Write, for each group of cells that drew the same tokens, that their identical figures are no mistake."""
    groups = group_same(list_records(g.select_rows(KIND)))
    return [SAME.format(name_group(group, "label")) for group in groups if len(group) > 1]


SAME = "Identical figures are no mistake: {} run under the same noise, and drew the same tokens for every prompt."
UNDER = "; under each image its passes"
JUDGED = "; under each image its cosine with the prompt, by the network that judges quality, and its passes"
LEFT = " There is no room for the others: figures/pictures.csv and the cells' folders have them."
REPLAY = (
    "The finished image, uncovered token by token in the pass in which each became final. The last token of a pass is"
    " usually the target's own draw: a correction, or one beyond the drafts. Rejected drafts are shown for windows; of"
    " trees only their number is known."
)
UNJUDGED = "The first {shown} of {all} prompts: no network compared these images with their prompts."
WORST = (
    "The {shown} of {all} prompts on which a decoder is furthest below plain decoding in the cosine of image and"
    " prompt."
    " Look for a fault that recurs down a column: wrong counts, smeared texture, repeated parts. The first column looks"
    " better than it is, because the prompts were chosen against it; compare with the other seeds of plain decoding."
)
