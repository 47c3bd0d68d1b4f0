"""GLM-Image: a small preview and then the image in one sequence, or with source images the image alone.

A token has three positions: those of the prompt are the model's own (`compute_3d_position_ids`); a grid of h rows and w
columns that begins at s has (s, s + row, s + column), and the next one begins at s + max(h, w).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from parity_decoders.errors import DecodingError
from parity_decoders.families.inputs import Inputs
from parity_decoders.grid import make_grid
from parity_decoders.images import ImageModel, lay_out_rows
from parity_decoders.slots import name_cache

KEYWORDS = ("image_grid_thw", "images_per_sample", "pixel_values", "mm_encoder_outputs")


def check_inputs(images: ImageModel, inputs: Mapping[str, Any]) -> None:
    """Raise DecodingError for source images without their grids, which `generate` encodes before a decoder is called,
    and for grids of another size than the image model's."""
    grids, has_sources = inputs.get("image_grid_thw"), inputs.get("pixel_values") is not None
    if grids is None:
        if has_sources:
            raise DecodingError("pixel_values without image_grid_thw; allowed: both of GlmImageProcessor, or neither")
        return
    counts = inputs.get("images_per_sample")
    for own in grids.split([len(grids)] if counts is None else counts.tolist()):
        targets = own[-1:] if has_sources else own  # the image, and without source images its preview
        if int(targets[:, 1:].prod(1).sum()) + 1 != images.length or int(targets[0, 2]) != images.width:
            raise DecodingError(
                f"image_grid_thw: {targets[:, 1:].tolist()} for an image model of {images.length} tokens, "
                f"{images.width} in a row; allowed: rows, columns and preview of image_model"
            )


def read_inputs(model: Any, ids: Tensor, unpadded: Tensor, keywords: dict[str, Any], length: int) -> Inputs:
    """Read what GlmImageProcessor returns, which `generate` hands over. See `families.inputs.read_inputs`.

    The model keeps `rope_deltas` and the positions of new tokens, as after plain `generate`.
    """
    config = model.config
    grids, counts = keywords.get("image_grid_thw"), keywords.get("images_per_sample")
    if grids is None:
        raise DecodingError("image_grid_thw: none; allowed: that of GlmImageProcessor")
    ids = put_source_tokens(model, ids, keywords)
    if counts is not None and (len(counts) != len(ids) or int(counts.sum()) != len(grids)):
        raise DecodingError(
            f"images_per_sample {counts.tolist()} of {len(ids)} rows and {len(grids)} grids of image_grid_thw; "
            f"allowed: a number for each row, {len(grids)} in all"
        )
    sizes = [(int(h), int(w)) for _, h, w in grids.tolist()]
    counts = [len(sizes)] * len(ids) if counts is None else counts.tolist()
    first, targets, n_sources = 0, [], []
    for row, count in enumerate(counts):
        found = int((ids[row, unpadded[row]] == config.image_end_token_id).sum())  # source images in the prompt
        if found >= count:
            raise DecodingError(f"image_grid_thw: {count} grids in row {row} with {found} source images; allowed: more")
        targets.append(sizes[first + found : first + count][::-1])  # the preview, which is last, is drawn first
        n_sources.append(found)
        first += count if keywords.get("images_per_sample") is not None else 0
    if 0 < n_sources.count(0) < len(ids):
        raise DecodingError(f"source images: {n_sources} in the rows; allowed: some in each row, or in none")
    longest = max(sum(h * w for h, w in grid) for grid in targets)
    if length > longest + 2:
        raise DecodingError(
            f"max_new_tokens {length} with image_grid_thw {grids.tolist()}; allowed: at most {longest + 1}, "
            "the tokens of the grids and an end token"
        )
    prompt = model.model.compute_3d_position_ids(
        input_ids=ids,
        image_grid_thw=keywords["image_grid_thw"],
        images_per_sample=keywords.get("images_per_sample"),
        inputs_embeds=None,
        attention_mask=unpadded.long(),
        **{name_cache(model): None},
    )
    starts = prompt[0, :, -1] + 1
    new = [find_positions(int(start), grid, length) for start, grid in zip(starts, targets, strict=True)]
    position_ids = torch.cat([prompt, torch.stack(new, 1).to(prompt)], 2)
    return Inputs(ids, position_ids, make_grid(targets, length, ids.device))


def make_image_model(
    model: Any, rows: int = 32, columns: int = 32, preview: tuple[int, int] | None = (16, 16)
) -> ImageModel:
    """Make the image model of a GlmImageForConditionalGeneration, for images of as many rows and columns as
    `image_grid_thw` of its processor says (32 pixels each). preview: the rows and columns of the preview; None with
    source images. The end token may stand anywhere.

    Its images are what GlmImagePipeline of diffusers takes as `prior_token_ids` [B, 4 rows columns]: each token twice
    each way. The pipeline makes pixels of them.
    """
    first = 0 if preview is None else len(lay_out_rows(*preview))
    size = len(lay_out_rows(rows, columns))

    def decode(tokens: Tensor) -> Tensor:
        """Repeat the image's tokens of [B, L]."""
        grid = tokens[:, first : first + size].view(-1, rows, columns)
        return grid.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)

    return ImageModel(model, torch.full((first + size + 1,), -1), None, columns, decode)


def put_source_tokens(model: Any, ids: Tensor, keywords: dict[str, Any]) -> Tensor:
    """Put the tokens of source images where the prompts ids [B, P] hold place for them. `generate` has computed their
    features. Raises DecodingError if there are not as many places as tokens."""
    n_places = int((ids == model.config.image_token_id).sum())
    features = (keywords.get("mm_encoder_outputs") or {}).get("image")
    if features is None:
        if n_places:
            raise DecodingError(f"pixel_values: none for {n_places} tokens of source images; allowed: their pixels")
        return ids
    tokens = model.get_image_tokens(features.pooler_output).flatten().to(ids)
    if len(tokens) != n_places:
        raise DecodingError(f"pixel_values of {len(tokens)} tokens for {n_places} in input_ids; allowed: as many")
    return ids.masked_scatter(ids == model.config.image_token_id, tokens)


def find_positions(start: int, grids: list[tuple[int, int]], length: int) -> Tensor:
    """Find the positions [3, length] of new tokens: from `start` on those of `grids` (rows, columns) in order, then
    the end token's for all others.
    """
    parts = []
    for h, w in grids:
        rows, columns = torch.arange(h).repeat_interleave(w), torch.arange(w).repeat(h)
        parts.append(start + torch.stack([torch.zeros_like(rows), rows, columns]))
        start += max(h, w)
    new = torch.cat(parts, 1)[:, :length]
    return pad(new, (0, length - new.shape[1]), value=start)
