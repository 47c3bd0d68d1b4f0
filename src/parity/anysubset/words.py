"""Text models from files: the embedded ones with their list of words, or published ones from a folder of transformers' format."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase, XLNetConfig, XLNetLMHeadModel

from parity.anysubset.causal import Causal
from parity.anysubset.xlnet import CachedXLNet, XLNet
from parity.config import EMBEDDED, ConfigError
from parity.embedded import stories

WEIGHTS = EMBEDDED / "words"


class Words:
    """Texts as numbers of whole words; a published model has its tokenizer instead (`Pieces`)."""

    def __init__(self, words: list[str]):
        self.words, self.number = words, {w: i for i, w in enumerate(words)}
        self.mask, self.separator, self.vocab = self.number[stories.MASK], self.number[stories.SEPARATOR], len(words)

    def encode(self, text: str) -> list[int]:
        """ValueError that names the first word the model does not know."""
        found = []
        for word in text.split():
            if word not in self.number:
                raise ValueError(f"word {word!r} is not in the vocabulary of {self.vocab} words; give a model that knows it, or another text")
            found.append(self.number[word])
        return found

    def decode(self, tokens: list[int]) -> str:
        return " ".join(self.words[t] for t in tokens)


class Pieces:
    """A published tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.mask = tokenizer.mask_token_id
        self.separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
        self.vocab = len(tokenizer)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens)


@dataclass
class TextModels:
    """The any-subset network, the judge, and the words of each."""

    net: XLNetLMHeadModel
    words: Words | Pieces
    judge: GPT2LMHeadModel
    judge_words: Words | Pieces

    def subset(self, cache: bool) -> XLNet | CachedXLNet:
        return (CachedXLNet if cache else XLNet)(self.net, self.words.mask)

    def causal(self, cache: bool) -> Causal:
        """The judge as a decoder. Its words must be those of the any-subset model, for prompts are given in them."""
        if self.judge_words.vocab != self.words.vocab:
            raise ConfigError(
                f"text.methods.gpt2: the judge has {self.judge_words.vocab} tokens, the any-subset model {self.words.vocab};"
                " allowed: two models with one vocabulary"
            )
        return Causal(self.judge, self.words.mask, self.words.separator, cache)


def embedded_file(name: str) -> Path:
    """A file of the embedded text models, its digest checked against the list that ships with it."""
    lock = WEIGHTS / "SHA256SUMS"
    if not lock.exists():
        raise ConfigError(f"text.model: {lock} is missing; run `snakemake train_words`, which writes it")
    sums = {file: total for total, file in (line.split() for line in lock.read_text().splitlines())}
    found = hashlib.sha256((WEIGHTS / name).read_bytes()).hexdigest()
    if found != sums[name]:
        raise ConfigError(f"text.model: {name} has SHA-256 {found[:16]}..., expected {sums[name][:16]}...; get the file again")
    return WEIGHTS / name


def load_embedded(file: Path) -> tuple[torch.nn.Module, Words]:
    """A network and its words from one of our own safetensors files; every weight must fit."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    said = json.loads(header["__metadata__"]["config"])
    net: XLNetLMHeadModel | GPT2LMHeadModel
    if said["network"]["model_type"] == "xlnet":
        net = XLNetLMHeadModel(XLNetConfig(**said["network"]))
    else:
        net = GPT2LMHeadModel(GPT2Config(**said["network"]))
    net.load_state_dict({k: v.float() for k, v in load_file(file).items()})
    return net.eval(), Words(list(said["words"]))


def load(xlnet: str = "", judge: str = "", device: str = "cpu") -> TextModels:
    """The embedded models, or those of two folders (config.json, *.safetensors, tokenizer files); nothing is downloaded."""
    found = []
    for name, folder, kind in (("xlnet", xlnet, XLNetLMHeadModel), ("judge", judge, GPT2LMHeadModel)):
        if not folder:
            net, words = load_embedded(embedded_file(f"{name}.safetensors"))
        elif not Path(folder, "config.json").is_file():
            raise ConfigError(f"text.model.{name} = {folder!r}: holds no config.json; allowed: a folder as transformers saves it")
        else:
            net = kind.from_pretrained(folder, local_files_only=True, use_safetensors=True)
            words = Pieces(AutoTokenizer.from_pretrained(folder, local_files_only=True))
        found += [net.to(device), words]
    return TextModels(*found)
