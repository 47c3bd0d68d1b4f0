"""The order of rows, on every table of the page, of the docs and of the terminal."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from parity.report.blocks import format_text, is_missing, list_records
from parity.report.cost import predict_gains

RANK = {"certified": 0, "consistent": 1, "inconclusive": 2, "lossy": 4}  # the rank of a kind of verdict; 3 without one


def rank_verdict(row: Mapping[str, Any]) -> int:
    """Rank a row by its kind of verdict, 0 for certified to 4 for lossy (RANK); 3 without one."""
    return RANK.get(format_text(row.get("verdict_kind")), 3)


def rank_row(row: Mapping[str, Any], gain: str = "gain") -> tuple[float, ...]:
    """Rank a summary row: plain decoding, then lossless methods first, then those with the largest figure `gain`: how
    many times fewer passes ("gain"), or how many times faster ("predicted_gain"). A gain that is missing counts 0."""
    if row["role"] in ("reference", "control"):
        return (-1.0,)
    return rank_verdict(row), 0.0 if is_missing(row[gain]) else -max(row[gain], 0.0)


def order_images(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """List summary rows of images in the order of the front table: plain decoding, which the others are compared with,
    then lossless methods first, each by the predicted gain; plain decoding with another seed is left out. Adds `name`
    and `predicted_gain`: how many times faster than plain decoding if a pass costs the same at any size."""
    rows = rows[rows["role"] != "control"]
    groups = [group for _, group in rows.groupby(["model", "sampling"], sort=False)]
    predicted = [group.assign(predicted_gain=predict_gains(group)["gain"]) for group in groups]
    records = [row for group in predicted for row in list_records(group)]
    named = [{**r, "name": r["label"] if r["role"] == "method" else r["method"]} for r in records]
    return sorted(named, key=lambda row: rank_row(row, "predicted_gain"))
