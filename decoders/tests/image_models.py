"""Small image models of transformers with random weights, and random requests to them."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GlmImageConfig, GlmImageForConditionalGeneration


def spread_weights(model: torch.nn.Module, std: float = 0.25) -> torch.nn.Module:
    """Draw larger weights in place, so that distributions are far from uniform; return the model."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, std)
    return model.eval()


@dataclass
class Request:
    """A call of `generate`: input_ids [B, P], its other keywords, and the most tokens that a row may get."""

    ids: torch.Tensor
    keywords: dict[str, Any]
    length: int


class GlmImage:
    """GLM-Image: a preview and an image, or with source images the image alone."""

    CODES, START, END, PLACE, PAD = 40, 40, 41, 90, 95

    def __init__(self, patch_size: int = 4) -> None:
        text = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
        text |= {"num_attention_heads": 3, "num_key_value_heads": 1, "vision_vocab_size": 48, "pad_token_id": self.PAD}
        text |= {"max_position_embeddings": 512, "eos_token_id": self.END}
        text["rope_parameters"] = {
            "rope_theta": 100.0, "rope_type": "default", "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5,
        }  # fmt: skip
        vision = {"hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2, "image_size": 64}
        config = GlmImageConfig(
            text_config=text,
            vision_config=vision | {"patch_size": patch_size},
            vq_config={"embed_dim": 16, "num_embeddings": self.CODES, "latent_channels": 32},
            image_token_id=self.PLACE, image_start_token_id=self.START, image_end_token_id=self.END,
        )  # fmt: skip
        self.model: Any = spread_weights(GlmImageForConditionalGeneration(config))
        self.patch = 3 * self.model.config.vision_config.patch_size**2

    def make_request(self, seed: int, rows: int = 0, sources: int | None = None, same: bool = False) -> Request:
        """Make a request: text to image or with up to two source images a row, rows of several lengths padded on the
        left; all rows of the same grids if `same`, as of GlmImageProcessor."""
        rng = random.Random(seed)
        rows = rows or rng.randint(1, 3)
        n_sources = rng.choice([0, 0, 1, 2]) if sources is None else sources
        large, small = (rng.randint(2, 5), rng.randint(2, 5)), (rng.randint(1, 3), rng.randint(1, 3))
        prompts, grids, counts, pixels, lengths = [], [], [], [], []
        for _ in range(rows):
            prompt = [rng.randrange(50, 85) for _ in range(rng.randint(1, 6))]
            own = []
            for _ in range(n_sources):
                h, w = rng.randint(1, 3), rng.randint(1, 3)
                prompt += [self.START, *[self.PLACE] * (h * w), self.END, rng.randrange(50, 85)]
                own.append([1, h, w])
                pixels.append(
                    torch.randn(h * w, self.patch, generator=torch.Generator().manual_seed(rng.randrange(99)))
                )
            if not same:
                large, small = (rng.randint(2, 5), rng.randint(2, 5)), (rng.randint(1, 3), rng.randint(1, 3))
            targets = [[1, *large]] if n_sources else [[1, *large], [1, *small]]
            lengths.append(sum(h * w for _, h, w in targets))
            prompts.append([*prompt, self.START])
            grids += own + targets
            counts.append(len(own) + len(targets))
        longest = max(map(len, prompts))
        ids = torch.tensor([[self.PAD] * (longest - len(p)) + p for p in prompts])
        keywords: dict[str, Any] = {
            "attention_mask": torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
            "image_grid_thw": torch.tensor(grids),
            "images_per_sample": torch.tensor(counts),
        }
        if n_sources:
            keywords["pixel_values"] = torch.cat(pixels).to(self.model.dtype)
        length = max(lengths) + 1
        return Request(ids, keywords | {"max_new_tokens": length}, length)

    @torch.no_grad()
    def compute_logits(self, request: Request, row: int, tokens: torch.Tensor) -> torch.Tensor:
        """Compute the logits [n + 1, V] after the prompt of one row alone and after each of tokens [n], by the model's
        own forward over all of them at once."""
        model, keywords = self.model.model, request.keywords
        unpadded = keywords["attention_mask"][row].bool()
        counts = keywords["images_per_sample"].tolist()
        grids = keywords["image_grid_thw"].split(counts)[row]
        prompt = request.ids[row, unpadded][None]
        own = {"image_grid_thw": grids, "images_per_sample": torch.tensor([len(grids)])}
        if "pixel_values" in keywords:
            sizes = [int(g[:-1].prod(1).sum()) for g in keywords["image_grid_thw"].split(counts)]
            pixels = keywords["pixel_values"].split(sizes)[row]
            features = self.model.get_image_features(pixels, grids, own["images_per_sample"]).pooler_output
            codes = self.model.get_image_tokens(features).flatten()
            prompt = prompt.masked_scatter(prompt == self.PLACE, codes)
        positions, _ = model.get_rope_index(prompt, attention_mask=torch.ones_like(prompt), **own)
        new = model._cached_decode_position_ids[0][:, None, : len(tokens)]
        ids = torch.cat([prompt, tokens[None].to(prompt)], 1)
        out = self.model(input_ids=ids, position_ids=torch.cat([positions, new], 2), use_cache=False)
        return out.logits[0, prompt.shape[1] - 1 :]
