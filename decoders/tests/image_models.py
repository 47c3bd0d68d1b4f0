"""Small image models of transformers with random weights, and random requests to them."""

import copy
import random
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    Emu3Config,
    Emu3ForConditionalGeneration,
    GemmaConfig,
    GemmaForCausalLM,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    ImageGPTConfig,
    ImageGPTForCausalImageModeling,
    JanusConfig,
    JanusForConditionalGeneration,
)

from parity_decoders.families import emu3p5
from parity_decoders.families.emu3p5_prompts import SPECIAL, START
from parity_decoders.images import image_model

TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
PAD, BOS, EOS, LINE, BEGIN = 0, 1, 2, 11, 13


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
    tokens = range(40)

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

    def make_request(
        self, seed: int, rows: int = 0, sources: int | None = None, same: bool = False, **_: Any
    ) -> Request:
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

    def copy_in_double(self) -> "GlmImage":
        """Return a copy whose model is in float64."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model).double()
        return other

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


class Captioned:
    """A model whose prompts are captions, padded on the left, with unconditional prompts of another length."""

    WORDS = range(3, 10)
    owner: Any  # the model of transformers whose image model is tested
    model: Any  # the causal model that `generate` draws images with
    tokens: range  # those of the image tokenizer

    def make_images(self, rng: random.Random) -> Any:
        """Make the image model, of a random size if the family has several."""
        return image_model(self.owner)

    def make_request(self, seed: int, rows: int = 0, guided: bool | None = None, **_: Any) -> Request:
        """Make a request of one to three captions of several lengths, guided or not."""
        rng = random.Random(seed)
        images = self.make_images(rng)
        rows = rows or rng.randint(1, 3)
        inputs = self.make_prompts([[rng.choice(self.WORDS) for _ in range(rng.randint(1, 6))] for _ in range(rows)])
        guided = rng.random() < 0.5 if guided is None else guided
        empty = self.make_prompts([[9, 4]] * rows) if guided else None
        keywords = images.make_request(inputs, empty) | {"pad_token_id": PAD}
        ids = keywords.pop("input_ids")
        return Request(ids, keywords, images.length)

    def make_prompts(self, captions: list[list[int]]) -> dict[str, torch.Tensor]:
        """Make prompts of captions, that begin with BOS and end where an image begins."""
        longest = max(map(len, captions))
        rows = [[PAD] * (longest - len(c)) + [BOS, *c, BEGIN] for c in captions]
        ids = torch.tensor(rows)
        return {"input_ids": ids, "attention_mask": (ids != PAD).long()}

    @torch.no_grad()
    def compute_logits(self, request: Request, row: int, tokens: torch.Tensor) -> torch.Tensor:
        """Compute the logits [n + 1, V] after the prompt of one row alone and after each of tokens [n], by the forward
        of the owner over all of them at once."""
        prompt = request.ids[row, request.keywords["attention_mask"][row].bool()][None]
        ids = torch.cat([prompt, tokens[None].to(prompt)], 1)
        return self.run_owner(ids)[0, prompt.shape[1] - 1 :]

    def run_owner(self, ids: torch.Tensor) -> torch.Tensor:
        """Compute the owner's logits [B, S, V] of ids [B, S]."""
        return self.owner(input_ids=ids, use_cache=False).logits

    def copy_in_double(self) -> Any:
        """Return a copy whose model is in float64."""
        other = copy.copy(self)
        other.owner = copy.deepcopy(self.owner).double()
        other.model = other.make_images(random.Random(0)).model
        return other


class Emu3(Captioned):
    """Emu3: rows of visual tokens, each with a separator."""

    tokens = range(20, 52)

    def __init__(self) -> None:
        names = {"<image>": 10, "<|extra_200|>": LINE}
        names |= {f"<|visual token {i:06}|>": t for i, t in enumerate(self.tokens)}
        vq = {"codebook_size": 32, "embed_dim": 4, "latent_channels": 4, "base_channels": 32, "num_res_blocks": 1}
        vq |= {"channel_multiplier": [1, 1], "hidden_size": 32, "attn_resolutions": []}
        text = TEXT | {"vocab_size": 60, "num_key_value_heads": 2, "pad_token_id": PAD, "bos_token_id": BOS}
        config = Emu3Config(text_config=text | {"eos_token_id": EOS}, vq_config=vq, vocabulary_map=names)
        self.owner = spread_weights(Emu3ForConditionalGeneration(config))
        self.model = self.owner

    def make_images(self, rng: random.Random) -> Any:
        return image_model(self.owner, rows=rng.randint(2, 4), columns=rng.randint(2, 4))


class Emu3p5(Captioned):
    """Emu3.5: rows of codes with a separator between them, and the image's end; without most of its special tokens."""

    tokens = range(21, 53)

    def __init__(self) -> None:
        bos = self.tokens[0] - len(SPECIAL) + SPECIAL.index(START)
        sizes = TEXT | {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": self.tokens.stop, "pad_token_id": PAD}
        self.owner = spread_weights(emu3p5.Emu3p5(emu3p5.Emu3p5Config(**sizes, bos_token_id=bos, eos_token_id=EOS)))
        with torch.no_grad():  # sharper attention, so that positions matter
            for layer in self.owner.model.layers:
                layer.self_attn.q_norm.weight.mul_(3)
        self.model = self.owner

    def make_images(self, rng: random.Random) -> Any:
        return image_model(self.owner, rows=rng.randint(2, 4), columns=rng.randint(2, 4))


class Janus(Captioned):
    """Janus: the head and embeddings of image tokens beside those of the text."""

    tokens = range(40, 64)

    def __init__(self) -> None:
        vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64}
        vision |= {"projection_dim": 32, "num_image_tokens": 16, "patch_size": 16}
        vq = {"embed_dim": 8, "num_embeddings": 24, "latent_channels": 8, "base_channels": 32, "num_res_blocks": 1}
        vq |= {"channel_multiplier": (1, 1), "num_patches": 4, "projection_dim": 32, "image_token_embed_dim": 32}
        text = TEXT | {"model_type": "llama", "vocab_size": 40, "pad_token_id": PAD, "bos_token_id": BOS}
        owner = JanusForConditionalGeneration(JanusConfig(text_config=text, vision_config=vision, vq_config=vq))
        owner.generation_config.generation_kwargs = {"boi_token_id": BEGIN}
        self.owner = spread_weights(owner)
        self.model = image_model(self.owner).model

    def run_owner(self, ids: torch.Tensor) -> torch.Tensor:
        inner, n_words = self.owner.model, 40
        words, codes = ids.clamp(max=n_words - 1), (ids - n_words).clamp(min=0)
        drawn = self.owner.prepare_embeddings_for_image_generation(codes.flatten()).view(*ids.shape, -1)
        embedded = torch.where((ids < n_words)[..., None], inner.language_model.embed_tokens(words), drawn)
        hidden = inner.language_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        logits = inner.generation_head(hidden)
        least = torch.finfo(torch.float32).min
        return torch.nn.functional.pad(logits, (n_words, 0), value=least)


class Chameleon(Captioned):
    """Chameleon, with separators, as Lumina-mGPT has them, or without, as Anole."""

    tokens = range(20, 44)

    def __init__(self) -> None:
        letters = [f"IMGIMG{''.join(chr(ord('A') + int(d)) for d in str(n))}Z" for n in range(24)]
        names = {"<image>": 10} | {name: 20 + n for n, name in enumerate(letters)}
        vq = {"embed_dim": 8, "num_embeddings": 24, "latent_channels": 8, "base_channels": 32, "num_res_blocks": 1}
        vq |= {"channel_multiplier": [1, 1], "resolution": 8, "attn_resolutions": []}
        text = TEXT | {"num_key_value_heads": 4, "vocab_size": 48, "pad_token_id": PAD, "bos_token_id": BOS}
        config = ChameleonConfig(**text, eos_token_id=EOS, vq_config=vq, vocabulary_map=names)
        self.owner = spread_weights(ChameleonForConditionalGeneration(config))
        with torch.no_grad():  # sharper attention, so that positions matter
            for layer in self.owner.model.layers:
                layer.self_attn.q_norm.weight.mul_(8)
                layer.self_attn.k_norm.weight.mul_(8)
        self.model = image_model(self.owner).model

    def make_images(self, rng: random.Random) -> Any:
        separator = rng.choice([None, LINE])
        return image_model(self.owner, rows=rng.randint(2, 4), columns=rng.randint(2, 4), separator=separator)

    def run_owner(self, ids: torch.Tensor) -> torch.Tensor:
        return self.owner.lm_head(self.owner.model(input_ids=ids, use_cache=False)[0])


class Liquid(Captioned):
    """Liquid: a Gemma with image tokens after its words."""

    tokens = range(20, 52)

    def __init__(self) -> None:
        text = TEXT | {"num_key_value_heads": 1, "head_dim": 8, "vocab_size": 52, "pad_token_id": PAD}
        self.owner = spread_weights(GemmaForCausalLM(GemmaConfig(**text, bos_token_id=BOS, eos_token_id=EOS)))
        self.model = self.owner

    def make_images(self, rng: random.Random) -> Any:
        return image_model(self.owner, rows=rng.randint(2, 4), columns=rng.randint(2, 4), n_words=20)


class ImageGPT(Captioned):
    """ImageGPT: no caption, colours as tokens."""

    tokens = range(40)

    def __init__(self) -> None:
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "vocab_size": 41}
        self.owner = spread_weights(ImageGPTForCausalImageModeling(ImageGPTConfig(**sizes)))
        self.model = self.make_images(random.Random(0)).model

    def make_images(self, rng: random.Random) -> Any:
        clusters = torch.rand(40, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
        return image_model(self.owner, clusters=clusters, rows=4, columns=4)

    def make_request(self, seed: int, rows: int = 0, guided: bool | None = None, **more: Any) -> Request:
        return super().make_request(seed, rows, guided=False)

    def make_prompts(self, captions: list[list[int]]) -> dict[str, torch.Tensor]:
        ids = torch.full((len(captions), 1), 40)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
