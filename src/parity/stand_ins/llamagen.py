"""LlamaGen's released files for captions: the transformer and the tokenizer, pickled, and a folder of a T5 encoder."""

from pathlib import Path
from typing import Any

import torch

from parity.stand_ins.words import sharpen, write_json, write_tokenizer

CODES, GRID, TEXT = 64, 8, 32  # codes; of a picture's side; width of the text encoder


def pickled(folder: Path, transformer: str, vq: str, codes: int = CODES, grid: int = GRID, **sizes: Any) -> None:
    """The two networks under the published names, each in a dict under "model"."""
    from parity.models.discrete.llamagen import LlamaGenConfig, Transformer
    from parity.models.discrete.vq import VQ, VQConfig

    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        net = Transformer(LlamaGenConfig(vocab=codes, dim=64, layers=2, heads=1, grid=grid, **sizes))
        tokenizer = VQ(VQConfig(codes, 8, 32, (1, 1, 1, 1, 1), 1, 32))
    for seed, part in enumerate((net, tokenizer)):
        sharpen(part, seed)
    torch.save({"model": net.state_dict()}, folder / transformer)
    state = tokenizer.state_dict() | {"quantize.codebook_used": torch.zeros(65536)}
    torch.save({"model": state}, folder / vq)


def text_encoder(folder: Path) -> None:
    """A T5 encoder as transformers saves it."""
    from transformers import T5Config, T5EncoderModel

    from parity.stand_ins.words import save

    words = write_tokenizer(folder, ["<pad>", "</s>", "<unk>"])
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"})
    small: Any = {"d_model": TEXT, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = T5EncoderModel(T5Config(vocab_size=len(words), **small, feed_forward_proj="gated-gelu", dropout_rate=0.0))
    save(net, folder, net.state_dict())


def entry_of(folder: Path, files: dict[str, Path]) -> dict[str, Any]:
    """What an experiment says of LlamaGen's files."""
    from parity.base.weights import sha256, shapes
    from parity.models.discrete.llamagen import read_sizes

    own = {part: folder / path for part, path in files.items()}
    sizes = read_sizes({k: tuple(v.shape) for k, v in shapes(own["transformer"]).items()}, GRID)
    digests = {part: sha256(path) for part, path in own.items()}
    named = {part: str(path) for part, path in own.items()}
    return {"family": "llamagen", "source": "files", "files": named, "sha256": digests, "network": sizes}


def write(folder: Path, codes: int = CODES, side: int = GRID, **sizes: Any) -> dict[str, Path]:
    """Stage 1 of LlamaGen-XL, whose pictures here have 8 x 8 tokens; `sizes`, of the transformer, if not XL's."""
    files = {"transformer": Path("t2i_XL_stage1_256.pt"), "vq": Path("vq_ds16_t2i.pt"), "text": Path("flan-t5-xl")}
    pickled(folder, str(files["transformer"]), str(files["vq"]), codes, side, caption_dim=TEXT, **sizes)
    text_encoder(folder / files["text"])
    return files


def entry(folder: Path) -> dict[str, Any]:
    """The stand-in, written, as an experiment's model."""
    return entry_of(folder, write(folder))
