"""Models of text and their judge: the any-subset model, a folder of XLNetLMHeadModel, and GPT-2, each with a tokenizer
made from the stories of this repository."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

from parity.base.weights import save_weights
from parity.embedded import stories
from parity.models.anysubset import causal
from parity.models.anysubset import mdlm as masked_diffusion
from parity.models.anysubset.xlnet import xlnet as xlnet_network

WRITES = ("xlnet", "gpt2", "gpt2_small", "mdlm")
PUBLISHED: dict[str, dict[str, Any]] = {  # the arguments of a function with which it writes the sizes of its authors
    "xlnet": {"vocab": 32000, "width": 768, "layers": 12, "heads": 12},
    "gpt2": {"sizes": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 1280, "n_layer": 36, "n_head": 20}},
    "gpt2_small": {"sizes": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}},
    "mdlm": {"vocab": 50258, "width": 768, "condition": 128, "blocks": 12, "heads": 12},
}
END = "<|endoftext|>"  # GPT-2 has no other special token
MARKS = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")  # XLNet's tokens begin so
SPACE = "▁"


def draw_state(net: nn.Module, seed: int, std: float = 0.05) -> dict[str, Tensor]:
    """Draw a state for a network by a seed: normal numbers with deviation `std`, around 0, or around the present value
    where all numbers of a tensor are equal, as in norms. Integers are copied. torch's random state is not used."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in net.state_dict().items():
        if not value.is_floating_point():
            state[name] = value.clone()
            continue
        is_constant = bool((value == value.flatten()[0]).all())  # norms begin constant, other weights at random
        base = value if is_constant else torch.zeros_like(value)
        state[name] = base + std * torch.randn(value.shape, generator=generator)
    return state


def train_byte_pairs(marks: Sequence[str], size: int) -> Tokenizer:
    """Train a byte-level BPE, as GPT-2's, of at most `size` pieces on our stories; add `marks` as special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([" ".join(stories.draw_text(i)) for i in range(20)], trainer)
    tokenizer.add_special_tokens(list(marks))
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, config: dict[str, Any]) -> None:
    """Save a tokenizer as transformers does: tokenizer.json, and `config` as tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def make_xlnet_tokenizer() -> Tokenizer:
    """Make a tokenizer of XLNet's kind: its marks, single letters, and 150 words of our stories."""
    text = [stories.draw_text(i) for i in range(20)]
    letters = sorted({letter for words in text for word in words for letter in word} | {chr(c) for c in range(33, 127)})
    common_words = sorted({w for words in text for w in words if w.isalpha()})[:150]
    scored = [(mark, 0.0) for mark in MARKS] + [(SPACE, -3.0)]
    scored += [(letter, -8.0) for letter in letters] + [(SPACE + word, -5.0) for word in common_words]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=0))
    tokenizer.normalizer = normalizers.Replace("\n", " ")  # XLNet's tokenizer has no line ends
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.add_special_tokens(list(MARKS))
    return tokenizer


def xlnet(folder: Path, vocab: int = 0, width: int = 32, layers: int = 2, heads: int = 2) -> dict[str, str]:
    """Write a random any-subset model, a folder of XLNetLMHeadModel, and its tokenizer's; return their names. vocab:
    pieces that the network has; 0 for the tokenizer's."""
    tokenizer = make_xlnet_tokenizer()
    marks = {mark.strip("</>") + "_token": mark for mark in ("<unk>", "<cls>", "<sep>", "<pad>", "<mask>")}
    config = {"tokenizer_class": "XLNetTokenizer", "bos_token": "<s>", "eos_token": "</s>", **marks}
    save_tokenizer(tokenizer, folder / "xlnet-base-cased", config)
    net = xlnet_network(vocab or tokenizer.get_vocab_size(), width, layers, heads)
    net.load_state_dict(draw_state(net, 8, 0.2))
    net.save_pretrained(folder / "ASARM")
    return {"xlnet": "ASARM", "tokenizer": "xlnet-base-cased"}


def write_gpt2_tokenizer(folder: Path) -> Tokenizer:
    """Write a tokenizer of GPT-2's kind to a folder, and return it."""
    tokenizer = train_byte_pairs((END,), 320)
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": END, "eos_token": END, "unk_token": END}
    save_tokenizer(tokenizer, folder, config)
    return tokenizer


def gpt2(folder: Path, sizes: Mapping[str, int] = MappingProxyType({})) -> dict[str, str]:
    """Write the judge, a folder of a random GPT-2, with its tokenizer in two formats; return {"judge": its name}.
    sizes: of the network, in place of small ones."""
    return {"judge": write_gpt2(folder / "gpt2-large", sizes, 9)}


def gpt2_small(folder: Path, sizes: Mapping[str, int] = MappingProxyType({})) -> dict[str, str]:
    """Write another random GPT-2 with its tokenizer, the baseline beside any-subset models; return {"gpt2": its name}.
    sizes: of the network, in place of small ones."""
    # it decodes as long texts as the published one, where the judge reads a text in pieces
    return {"gpt2": write_gpt2(folder / "gpt2-small", {"n_positions": 1024, **sizes}, 10)}


def mdlm(
    folder: Path, vocab: int = 0, width: int = 32, condition: int = 16, blocks: int = 2, heads: int = 2
) -> dict[str, str]:
    """Write a random MDLM, and GPT-2's tokenizer, which has no mask; return their names. vocab: pieces that the network
    has; 0 for the tokenizer's and the mask."""
    tokenizer = write_gpt2_tokenizer(folder / "gpt2-tokenizer")
    sizes = {"vocab_size": vocab or tokenizer.get_vocab_size() + 1, "hidden_dim": width, "cond_dim": condition}
    sizes |= {"n_blocks": blocks, "n_heads": heads}
    net = masked_diffusion.build(sizes)
    computed = {"backbone.rotary_emb.inv_freq": torch.ones(width // heads // 2)}  # the released network has it as well
    (folder / "mdlm-owt").mkdir(exist_ok=True)
    save_weights(draw_state(net, 11, 0.2) | computed, folder / "mdlm-owt/model.safetensors", {})
    written = {"model_type": "mdlm", "time_conditioning": False, **sizes}
    (folder / "mdlm-owt/config.json").write_text(json.dumps(written), encoding="utf-8")
    return {"mdlm": "mdlm-owt", "tokenizer": "gpt2-tokenizer"}


def write_gpt2(folder: Path, sizes: Mapping[str, int], seed: int) -> str:
    """Write a random GPT-2 of a seed, with its tokenizer in two formats, to a folder; return the folder's name."""
    tokenizer = write_gpt2_tokenizer(folder)
    model = json.loads(tokenizer.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), encoding="utf-8")
    merges = "".join(" ".join(pair) + "\n" for pair in model["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    vocab = tokenizer.get_vocab_size()
    small = {"vocab_size": vocab, "n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 2}
    net = causal.build({**small, **sizes, "bos_token_id": vocab - 1, "eos_token_id": vocab - 1})
    net.load_state_dict(draw_state(net, seed, 0.2))
    net.save_pretrained(folder)
    return folder.name
