"""Image codes beside the tokens that a grammar forces: where those stand, and codebooks that leave them apart.

A model's tokens are the codes of its image tokenizer, 0 to C - 1, then the few tokens that its grammar forces.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def sizes(family: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, int]:
    """Of a model's pictures, as its family declares them or its manifest says: codes, rows and columns of them, and how
    many tokens end a row and a picture."""
    return {**family["network"], **manifest["network"]}


def shape(s: Mapping[str, int], stride: int) -> tuple[int, int]:
    """Tokens in a row of a picture of sizes s, pixels of its longer side, `stride` a code."""
    return s["columns"] + s.get("line", 0), stride * max(s["rows"], s["columns"])


def grammar(rows: int, columns: int, line: list[int], end: list[int]) -> Tensor:
    """Forced tokens [L] of a picture of rows x columns codes, -1 for a code: `line` behind each row, `end` at last."""
    row = torch.tensor([-1] * columns + line)
    return torch.cat([row.repeat(rows), torch.tensor(end, dtype=torch.int64)])


def codes_of(tokens: Tensor, rows: int, columns: int, line: int) -> Tensor:
    """The codes [n, rows, columns] of whole pictures' tokens [n, L]: what the grammar forces is left off."""
    return tokens[:, : rows * (columns + line)].unflatten(1, (rows, columns + line))[:, :, :columns]


def pad_codes(vectors: Tensor, tokens: int) -> Tensor:
    """Vectors [C, D] of codes as vectors [tokens, D]: what is no code is far from all of them."""
    far = 10 * vectors.abs().max()
    return torch.cat([vectors, far.expand(tokens - len(vectors), vectors.shape[1])])


def groups(vectors: Tensor, tokens: int, dimensions: int = 8) -> np.ndarray:
    """Indicators bool [G, tokens], G <= dimensions: whether a code's k-th coordinate is above its median."""
    first = vectors.detach().float().cpu().numpy()[:, :dimensions]
    return np.pad((first > np.median(first, axis=0)).T, ((0, 0), (0, tokens - len(vectors))))
