"""Any-subset models and their judge from their manifest: embedded ones with their list of words, or folders of
transformers' format."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from parity_decoders.protocols.anysubset import AnySubsetModel
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.base.files import foreign_json, header
from parity.base.weights import check, check_floating, read_shapes, tensors
from parity.models.anysubset import causal
from parity.models.anysubset.vocabulary import Pieces, Words, read_pieces

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

# these are tied to others, or derived
TIED = ("lm_loss.weight", "lm_head.weight", ".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")


@dataclass
class Loaded:
    """The any-subset network and the judge, each read on first use, and the words of both."""

    manifest: Mapping[str, Any]
    device: torch.device
    dtype: torch.dtype = torch.float32

    @property
    def family(self) -> Any:
        return importlib.import_module(f"parity.models.anysubset.{self.manifest['family']}")

    @property
    def network(self) -> str:
        """The name of the part that is the network: the family's first."""
        return self.family.FAMILY["files"][0]

    def file(self, component: str) -> Path:
        """Return the path of the network, "judge" or "tokenizer", embedded ones verified. Raises ParityError if it is
        gone."""
        file = Path(self.manifest["files"][component])
        if not file.exists():
            raise ParityError(f"{component} = {str(file)!r}: no such file; it was there when the run was planned")
        if self.manifest["source"] == "embedded":
            check(file, self.manifest["sha256"][component], component)
        return file

    def vocabulary(self, component: str) -> Words | Pieces:
        """Read the vocabulary of a component: words in its header, or the tokenizer in its folder or a separate one."""
        file = self.file(component)
        if not file.is_dir():
            return Words(header(file)["words"])
        has_tokenizer = component == self.network and "tokenizer" in self.manifest["files"]
        return read_pieces(self.file("tokenizer") if has_tokenizer else file)

    @cached_property
    def words(self) -> Words | Pieces:
        """The network's vocabulary. A tokenizer without a mask gets one: the number after its last piece's."""
        words = self.vocabulary(self.network)
        words.mask = words.vocab if words.mask is None else words.mask
        words.prompt = self.family.FAMILY.get("prompt", "")
        return words

    @cached_property
    def judge_words(self) -> Words | Pieces:
        return self.vocabulary("judge")

    @property
    def one_vocabulary(self) -> bool:
        """Whether the judge reads the any-subset model's tokens as they are."""
        words, judge = self.words, self.judge_words
        return isinstance(words, Words) and isinstance(judge, Words) and words.words == judge.words

    def read(self, component: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Read a component's configuration, and its weights by name. Raises ParityError for integers as weights."""
        file = self.file(component)
        config = foreign_json(file / "config.json") if file.is_dir() else header(file)["network"]
        weights = dict(tensors(file, str(self.device), self.dtype))
        for name, tensor in weights.items():
            if not name.endswith(TIED):
                check_floating(file, name, tensor)
        return config, weights

    @cached_property
    def subset_weights(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The any-subset network's configuration, and its weights, which all its models share."""
        config, weights = self.read(self.network)
        if self.manifest["source"] != "embedded":
            with torch.device("meta"):
                self.rename_weights(self.family.build(config), weights, self.network)
        return config, weights

    @cached_property
    def subset_network(self) -> Any:
        """The any-subset network of transformers, which models without a cache share."""
        config, weights = self.read(self.network)
        return self.fit_weights(self.family.build(config), weights, self.network)

    def subset(self, cache: bool) -> AnySubsetModel:
        """Make the any-subset model: our forward with its cache, or transformers'. Raises ParityError for other
        weights."""
        if hasattr(self.family, "wrap"):
            return self.family.wrap(self.subset_network, self.words, cache)
        if not cache:
            return self.family.plain(self.subset_network, self.words.mask)
        config, weights = self.subset_weights
        return self.family.cached(weights, config, self.words.mask)

    def causal(self, cache: bool) -> AnySubsetModel:
        """Load the judge as a decoder, with or without a cache. Raises ParityError unless its words are those of the
        any-subset model, because prompts consist of them."""
        if not self.one_vocabulary:
            raise ParityError(
                "text.methods.gpt2: the judge has another vocabulary than the any-subset model;"
                " allowed: two models with one"
            )
        return causal.Causal(self.gpt2, self.words.mask, self.words.separator, cache)

    @cached_property
    def gpt2(self) -> "GPT2LMHeadModel":
        """The judge."""
        config, weights = self.read("judge")
        return self.fit_weights(causal.build(config), weights, "judge")

    def take_speculator(self, name: str) -> "Loaded":
        """Return these models. Raises ParityError if there is no speculator of this name ("": none is needed)."""
        if name and name not in self.manifest["files"]:
            raise ParityError(f"text model: has no {name}; allowed: {', '.join(self.manifest['files'])}")
        return self

    def fit_weights(self, net: Any, weights: dict[str, Tensor], component: str) -> Any:
        """Load a component's weights into transformers' network, and return it on the device, for evaluation. Raises
        ParityError unless all fit, except tied and derived ones."""
        net.load_state_dict(self.rename_weights(net, weights, component), strict=False)
        getattr(net, "tie_weights", lambda: None)()
        return nn.Module.to(net, self.device, self.dtype).eval()

    def rename_weights(self, net: Any, weights: dict[str, Tensor], component: str) -> dict[str, Tensor]:
        """Add the prefix of the base model to names of weights that the network does not have, and return them all.
        Raises ParityError unless they are then its own names, except tied and derived ones."""
        expected = net.state_dict()
        prefix = getattr(net, "base_model_prefix", "")
        named = {k if k in expected else f"{prefix}.{k}": v for k, v in weights.items()}
        if bad := [k for k in sorted(expected.keys() ^ named.keys()) if not k.endswith(TIED)]:
            raise ParityError(
                f"text model: {self.file(component)} lacks or has too much: {', '.join(bad[:3])};"
                " allowed: the weights its configuration names"
            )
        return named


def check_shapes(manifest: Mapping[str, Any]) -> None:
    """Raise ParityError if the weights of the any-subset network or the judge do not fit its config.json. Their numbers
    are not read."""
    loaded = Loaded(manifest, torch.device("cpu"))
    for component, build in ((loaded.network, loaded.family.build), ("judge", causal.build)):
        folder = loaded.file(component)
        try:
            with torch.device("meta"):
                net = build(foreign_json(folder / "config.json"))
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:  # whatever a size of another type raises
            problem = " ".join(str(error).split())[:120]
            raise ParityError(
                f"{component}: {folder / 'config.json'}: no {component} can be built: {problem}"
            ) from None
        expected = net.state_dict()
        for name, tensor in loaded.rename_weights(net, read_shapes(folder), component).items():
            if name in expected and expected[name].shape != tensor.shape:
                raise ParityError(
                    f"{component}: {folder}: {name} is {[*tensor.shape]}, and its config.json makes it"
                    f" {[*expected[name].shape]}; allowed: the config.json of these weights"
                )


def load(
    manifest: Mapping[str, Any],
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    needs: str = "",
    fast: bool = False,
) -> Loaded:
    """Make the models of a manifest, which are read on first use. Raises ParityError if the component `needs` is not in
    it. `fast` is ignored: no pass is compiled, because its shape differs from pass to pass."""
    return Loaded(manifest, torch.device(device), dtype).take_speculator(needs)
