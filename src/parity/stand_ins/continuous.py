"""Pairs of models of continuous tokens: a target, its draft, and MAR's autoencoder, kl16.ckpt, of two levels in place
of five, so two pixels a token each way."""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parity.models.continuous.harmon import HarmonConfig, HarmonNet
from parity.models.continuous.kl import KL, KLConfig
from parity.models.continuous.mar import MARConfig, MARNet
from parity.models.continuous.xar import XARConfig, XARNet
from parity.stand_ins.discrete import diffusion_name
from parity.stand_ins.text import draw_state, save_tokenizer, train_byte_pairs

WRITES = ("mar", "xar", "xar_tokens", "harmon")
CELLS = {"xar_tokens": ("xar", 1)}  # the family of a stand-in of another name, and the cell with which it is read
KL_SIZES = KLConfig(ch=32, ch_mult=(1, 1), res_blocks=1)
L = {"width": 1024, "encoder": 16, "decoder": 16, "heads": 16}
PUBLISHED: dict[str, dict[str, Any]] = {  # the arguments of a function with which it writes its authors' L and B
    "mar": {
        "target": MARConfig(**L, head_width=1280, head_depth=8), "draft": MARConfig(), "kl": KLConfig(),
    },
    "xar": {"target": XARConfig(**L), "draft": XARConfig(), "kl": KLConfig()},
    "xar_tokens": {"target": XARConfig(**L), "draft": XARConfig(), "kl": KLConfig()},
}  # fmt: skip
QWEN_MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_kl16_tensors(sizes: KLConfig = KL_SIZES) -> dict[str, Tensor]:
    """Make the tensors of a random autoencoder, by latent diffusion's names."""
    return {diffusion_name(name, len(sizes.ch_mult)): value for name, value in draw_state(KL(sizes), 7).items()}


def write_kl16(folder: Path, sizes: KLConfig = KL_SIZES) -> dict[str, str]:
    """Write the random autoencoder as {"model": tensors}, with one of its training loss; return {"kl": "kl16.ckpt"}."""
    torch.save({"model": {**make_kl16_tensors(sizes), "loss.logvar": torch.zeros(1)}}, folder / "kl16.ckpt")
    return {"kl": "kl16.ckpt"}


def make_mar_sizes(blocks: int, grid: int = 4) -> MARConfig:
    """Make sizes of a MAR with one attention head of 64 numbers, and `blocks` layers in encoder, decoder and head."""
    trunk = {"width": 64, "heads": 1, "encoder": blocks, "decoder": blocks, "buffer": 8}
    return MARConfig(grid=grid, **trunk, head_width=32, head_depth=blocks)


SMALL_MAR = make_mar_sizes(2), make_mar_sizes(1)
SMALL_XAR = tuple(XARConfig(width=64, heads=1, encoder=blocks, decoder=blocks) for blocks in (2, 1))
FEW_TOKENS = tuple(replace(sizes, grid=4, cell=4) for sizes in SMALL_XAR)


def mar(
    folder: Path,
    target: MARConfig = SMALL_MAR[0],
    draft: MARConfig = SMALL_MAR[1],
    kl: KLConfig = KL_SIZES,
) -> dict[str, str]:
    """Write a target and a draft as MAR's training saves them (weights, moving average, optimizer, arguments), and the
    autoencoder. Return their paths in `folder` by part."""
    files = write_kl16(folder, kl)
    for component, name, sizes, seed in (("target", "mar_huge", target, 1), ("draft", "mar_base", draft, 2)):
        average = draw_state(MARNet(sizes), seed)
        plain = {k: v + 0.01 for k, v in average.items()}
        optimizer = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-4, "params": [0]}]}
        arguments = argparse.Namespace(model=name, ema_rate=0.9999, diffloss_d=sizes.head_depth)
        (folder / name).mkdir()
        checkpoint = {"model": plain, "model_ema": average, "optimizer": optimizer, "epoch": 399, "args": arguments}
        torch.save(checkpoint, folder / name / "checkpoint-last.pth")
        files[component] = f"{name}/checkpoint-last.pth"
    return files


def xar(
    folder: Path,
    target: XARConfig = SMALL_XAR[0],
    draft: XARConfig = SMALL_XAR[1],
    kl: KLConfig = KL_SIZES,
) -> dict[str, str]:
    """Write a target and a draft as bare tensors, with the buffers that the released network computes, and the
    autoencoder. Return their paths in `folder` by part. An image has four cells of 8 x 8 tokens, as released."""
    files = write_kl16(folder, kl)
    for component, name, sizes, seed in (("target", "xAR-H", target, 3), ("draft", "xAR-B", draft, 4)):
        state = draw_state(XARNet(sizes), seed)
        computed = {"mask": torch.ones(1, 1, 256, 256), "rope.freqs_cos": torch.ones(256, 64)}
        torch.save({**state, **computed}, folder / f"{name}.pth")
        files[component] = f"{name}.pth"
    return files


# This writes what `xar` writes, of 4 x 4 tokens, which are read one at a time.
xar_tokens = partial(xar, target=FEW_TOKENS[0], draft=FEW_TOKENS[1])


def make_harmon_sizes(blocks: int, heads: int, vocab: int) -> HarmonConfig:
    """Make the sizes of a Harmon: a MAR of 2 x 2 tokens with `blocks` layers, a language model of two layers."""
    language: dict[str, Any] = {
        "hidden": 64 * heads,
        "intermediate": 64,
        "attention_heads": heads,
        "key_value_heads": 1,
    }
    return HarmonConfig(**vars(make_mar_sizes(blocks, 2)), **language, layers=2, vocab=vocab)


def make_harmon_tensors(blocks: int, heads: int, vocab: int, seed: int) -> dict[str, Tensor]:
    """Make the random tensors of a Harmon as its released files hold them: language model in bfloat16, with its output
    layer, MAR, and the autoencoder under "vae."."""
    state = draw_state(HarmonNet(make_harmon_sizes(blocks, heads, vocab)), seed)
    state["llm.lm_head.weight"] = state["llm.model.embed_tokens.weight"].clone()
    state = {k: v.bfloat16() if k.startswith("llm.") else v for k, v in state.items()}
    return state | {f"vae.{k}": v for k, v in make_kl16_tensors().items()}


def harmon(folder: Path) -> dict[str, str]:
    """Write a target, a draft, the folder of their tokenizer, as Qwen2.5's, and the autoencoder; return their paths in
    `folder` by part. The tables of positions are of 2 x 2 tokens, so `convert` makes models of 4 x 4."""
    name = "Qwen2.5-0.5B-Instruct"
    tokenizer = train_byte_pairs(QWEN_MARKS, 320)
    save_tokenizer(tokenizer, folder / name, {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"})
    vocab = tokenizer.get_vocab_size() + 5  # the published table of embeddings has unused entries too
    for file, blocks, heads, seed in (("harmon_1.5b.pth", 2, 2, 5), ("harmon_0.5b.pth", 1, 1, 6)):
        torch.save(make_harmon_tensors(blocks, heads, vocab, seed), folder / file)
    return write_kl16(folder) | {"target": "harmon_1.5b.pth", "draft": "harmon_0.5b.pth", "tokenizer": name}
