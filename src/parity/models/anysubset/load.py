"""Text models from files: the embedded ones with their list of words, or published ones from a folder of transformers' format."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from parity.base.errors import ConfigError
from parity.base.files import sums
from parity.embedded import stories
from parity.experiment.config import EMBEDDED
from parity.models.anysubset.causal import Causal
from parity.models.anysubset.xlnet import CachedXLNet, XLNet

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase

WEIGHTS = EMBEDDED.parent / "anysubset"


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
                raise ValueError(
                    f"word {word!r} is not in the vocabulary of {self.vocab} words; give a model that knows it, or another text"
                )
            found.append(self.number[word])
        return found

    def decode(self, tokens: list[int]) -> str:
        return " ".join(self.words[t] for t in tokens)


class Pieces:
    """A published tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase"):
        self.tokenizer = tokenizer
        self.mask = tokenizer.mask_token_id
        self.separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
        self.vocab = len(tokenizer)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens))


@dataclass
class TextModels:
    """The any-subset network and the judge, each loaded when it is first asked for, and the words of both.

    xlnet, judge  folders as transformers saves them (config.json, *.safetensors, tokenizer files), or "" for the embedded ones
    """

    xlnet: str = ""
    judge: str = ""
    device: str = "cpu"

    @cached_property
    def words(self) -> Words | Pieces:
        return vocabulary(self.xlnet, "xlnet")

    @cached_property
    def judge_words(self) -> Words | Pieces:
        return vocabulary(self.judge, "judge")

    def subset(self, cache: bool) -> XLNet | CachedXLNet:
        """The any-subset model: our forward with its cache, or transformers' without one."""
        config, weights = read(self.xlnet, "xlnet", self.device)
        if cache:
            return CachedXLNet(weights, config, self.words.mask)
        from transformers import XLNetConfig, XLNetLMHeadModel

        net = XLNetLMHeadModel(XLNetConfig(**config))
        fit(net, weights, self.xlnet or "xlnet")
        torch.nn.Module.to(net, self.device)
        return XLNet(net, self.words.mask)

    @cached_property
    def gpt2(self) -> "GPT2LMHeadModel":
        from transformers import GPT2Config, GPT2LMHeadModel

        config, weights = read(self.judge, "judge", self.device)
        net = GPT2LMHeadModel(GPT2Config(**config))
        fit(net, weights, self.judge or "judge")
        torch.nn.Module.to(net, self.device)
        return net.eval()

    @property
    def one_vocabulary(self) -> bool:
        """Whether the judge reads the any-subset model's tokens as they are."""
        return (
            isinstance(self.words, Words)
            and isinstance(self.judge_words, Words)
            and self.words.words == self.judge_words.words
        )

    def causal(self, cache: bool) -> Causal:
        """The judge as a decoder. Its words must be those of the any-subset model, for prompts are given in them."""
        if not self.one_vocabulary:
            raise ConfigError(
                "text.methods.gpt2: the judge has another vocabulary than the any-subset model; allowed: two models with one"
            )
        return Causal(self.gpt2, self.words.mask, self.words.separator, cache)


def fit(net: torch.nn.Module, weights: dict[str, Tensor], what: str) -> None:
    """Load weights; ConfigError unless every one fits, tied and derived ones aside."""
    prefix = getattr(net, "base_model_prefix", "")
    own = net.state_dict()
    given = {k if k in own else f"{prefix}.{k}": v for k, v in weights.items()}
    missing, unexpected = net.load_state_dict(given, strict=False)
    tied = ("lm_loss.weight", "lm_head.weight", ".attn.bias", ".attn.masked_bias")
    bad = [k for k in [*missing, *unexpected] if not k.endswith(tied)]
    if bad:
        raise ConfigError(
            f"text.model: {what} lacks or has too much: {', '.join(bad[:3])}; allowed: the weights its configuration names"
        )
    net.tie_weights()  # type: ignore[operator]


def embedded_file(name: str) -> Path:
    """A file of the embedded text models, its digest checked against the list that ships with it."""
    known = sums(WEIGHTS)
    if not known:
        raise ConfigError(
            f"text.model: {WEIGHTS / 'SHA256SUMS'} is missing; run `snakemake train_words`, which writes it"
        )
    found = hashlib.sha256((WEIGHTS / name).read_bytes()).hexdigest()
    if found != known[name]:
        raise ConfigError(
            f"text.model: {name} has SHA-256 {found[:16]}..., expected {known[name][:16]}...; get the file again"
        )
    return WEIGHTS / name


def header(file: Path) -> dict[str, Any]:
    """What one of our own safetensors files says of itself."""
    with file.open("rb") as stream:
        said = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return json.loads(said["__metadata__"]["config"])


def folder_files(folder: str, part: str) -> list[Path]:
    files = sorted(Path(folder).glob("*.safetensors"))
    if not Path(folder, "config.json").is_file() or not files:
        raise ConfigError(
            f"text.model.{part} = {folder!r}: needs config.json and *.safetensors; allowed: a folder as transformers saves it"
        )
    return files


def vocabulary(folder: str, part: str) -> Words | Pieces:
    if not folder:
        return Words(list(header(embedded_file(f"{part}.safetensors"))["words"]))
    folder_files(folder, part)
    from transformers import AutoTokenizer

    return Pieces(AutoTokenizer.from_pretrained(folder, local_files_only=True))


def read(folder: str, part: str, device: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and weights (float32) of a model."""
    if not folder:
        file = embedded_file(f"{part}.safetensors")
        config, files = header(file)["network"], [file]
    else:
        files = folder_files(folder, part)
        config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    weights = {
        k: v.float() if v.is_floating_point() else v for f in files for k, v in load_file(f, device=device).items()
    }
    return config, weights
