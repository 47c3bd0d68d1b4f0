"""The text encoder: T5, freshly initialised for training, or read from files, which reads captions that are cleaned
(`parity.experiment.caption_cleaning`)."""

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from parity_decoders.protocols.discrete import Encoder
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.weights import tensors
from parity.embedded.tokenizer import VOCAB, encode
from parity.experiment.caption_cleaning import SPACE, UNKNOWN, clean
from parity.experiment.model_checks import check_tokenizer
from parity.models.discrete import llama

if TYPE_CHECKING:
    from transformers import T5EncoderModel


HEADS, LAYERS = 4, 2  # of the embedded encoder


def make_t5_encoder() -> "T5EncoderModel":
    """Build the embedded encoder with random weights; 0.6 M parameters."""
    from transformers import T5Config, T5EncoderModel

    sizes: Any = {"d_model": 128, "d_kv": 32, "d_ff": 384, "num_layers": LAYERS, "num_heads": HEADS}
    return T5EncoderModel(T5Config(vocab_size=VOCAB, **sizes, feed_forward_proj="gated-gelu", dropout_rate=0.0))


def choose_buckets(length: int, device: torch.device) -> Tensor:
    """Choose the bucket [length, length] of each distance from query to key: of T5's 32, half for later keys, each half
    exact below 8 and then logarithmic up to 128."""
    place = torch.arange(length, device=device)
    offset = place[None] - place[:, None]
    distance = offset.abs()
    far = 8 + (torch.log(distance.float() / 8) / math.log(128 / 8) * 8).long()
    return 16 * (offset > 0) + torch.where(distance < 8, distance, far.clamp(max=15))


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def encode_embedded(weights: Mapping[str, Tensor], ids: Tensor, valid: Tensor) -> Tensor:
    """Run the embedded encoder on ids [B, T] where valid [B, T]: hidden states [B, T, D], bit by bit those of
    `make_t5_encoder`, without the import of transformers, which takes longer than all else in a short command."""
    x = F.embedding(ids, weights["shared.weight"])
    table = weights["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    bias = F.embedding(choose_buckets(ids.shape[1], ids.device), table).permute(2, 0, 1)[None]
    bias = bias.masked_fill(valid[:, None, None] == 0, torch.finfo(x.dtype).min)
    for block in range(LAYERS):
        attention, mlp = (f"encoder.block.{block}.layer.{i}" for i in range(2))
        normed = norm(x, weights[f"{attention}.layer_norm.weight"])
        qkv = (F.linear(normed, weights[f"{attention}.SelfAttention.{letter}.weight"]) for letter in "qkv")
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in qkv)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0).transpose(1, 2).flatten(2)
        x = x + F.linear(mixed, weights[f"{attention}.SelfAttention.o.weight"])
        normed = norm(x, weights[f"{mlp}.layer_norm.weight"])
        gate, value = (F.linear(normed, weights[f"{mlp}.DenseReluDense.wi_{i}.weight"]) for i in range(2))
        gate = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        x = x + F.linear(gate * value, weights[f"{mlp}.DenseReluDense.wo.weight"])
    return norm(x, weights["encoder.final_layer_norm.weight"])


def pad_left(embeddings: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Move the padding of encoder output [B, T, D] and mask [B, T] from right to left, where LlamaGen reads it, as
    0."""
    T = valid.shape[1]
    order = (torch.arange(T, device=valid.device)[None] + valid.sum(1, keepdim=True)) % T
    embeddings = (embeddings * valid[..., None]).gather(1, order[..., None].expand_as(embeddings))
    return embeddings, valid.gather(1, order)


def load_encoder(path: Path, device: str = "cpu") -> "T5EncoderModel":
    """Load the encoder in a folder of transformers' layout, in float32, one tensor at a time; on the device "meta"
    without numbers. Raises ParityError if the folder is incomplete or is not a T5 encoder."""
    from transformers import T5EncoderModel

    config = llama.read_config(path, "t5", "T5Config")

    def build() -> "T5EncoderModel":
        net = T5EncoderModel(config)
        net.encoder.embed_tokens = nn.Identity()  # type: ignore[assignment]
        return net

    def rename(name: str) -> str | None:
        is_of_encoder = name.startswith(("shared.", "encoder.")) and name != "encoder.embed_tokens.weight"
        return name if is_of_encoder else None

    net = llama.fill(build, path, rename, device, torch.float32)
    net.encoder.embed_tokens = net.shared
    return net


def load_tokenizer(path: Path, length: int) -> Callable[[list[str]], Any]:
    """Load the tokenizer of a published encoder's folder, as a function that cleans captions and returns input_ids and
    attention_mask [B, length]. Raises ParityError if the folder has none; the function does for a caption of which
    nothing is read."""
    from transformers import AutoTokenizer

    check_tokenizer(path, "text")
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    unread = {*tokenizer.all_special_ids, tokenizer.convert_tokens_to_ids(SPACE)}

    def words(captions: list[str]) -> Any:
        """Clean captions and encode them, cut at `length` tokens; print how many were cut."""
        cleaned = [clean(c) for c in captions]
        cut = sum(len(ids) > length for ids in tokenizer(cleaned)["input_ids"])
        if cut:
            warning = f"captions: {cut} of {len(captions)} are longer than {length} tokens and are cut there"
            print(warning, file=sys.stderr, flush=True)
        batch = tokenizer(cleaned, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        for caption, ids in zip(captions, batch["input_ids"].tolist(), strict=True):
            if not set(ids) - unread:
                raise ParityError(f"caption {caption[:60]!r} {UNKNOWN}")
        return batch

    return words


def read_encoder(path: Path, length: int, device: str = "cpu") -> Encoder:
    """Load the embedded encoder from its file, or a published one from its folder: a function of captions that returns
    left-padded "embeddings" [B, length, D] float32 and their mask "valid" [B, length].

    A published encoder reads captions cleaned (`clean`) and cut at `length` tokens, as its authors do; how many were
    cut is printed. The embedded one does neither: ParityError for a caption of more tokens.
    """
    tokenizer: Callable[[list[str]], Any]
    run: Callable[[Tensor, Tensor], Tensor]
    if path.is_dir():
        tokenizer = load_tokenizer(path, length)
        net: Any = load_encoder(path, device)
        run = lambda ids, valid: net(input_ids=ids, attention_mask=valid).last_hidden_state  # noqa: E731
    else:
        tokenizer = partial(encode, max_length=length)
        run = partial(encode_embedded, dict(tensors(path, device)))

    @torch.inference_mode()
    def encoded(captions: list[str]) -> dict[str, Tensor]:
        words = tokenizer(captions)
        ids, valid = words["input_ids"].to(device), words["attention_mask"].to(device)
        hidden, mask = pad_left(run(ids, valid), valid)
        return {"embeddings": hidden.float(), "valid": mask}

    return encoded
