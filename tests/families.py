"""Stand-ins of published families beside transformers' own network of the same files, in float64."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from parity_decoders.noise import counted_noise
from parity_decoders.sampling import Sampled, TokenSampling
from torch import Tensor

from parity.decode.discrete import Decoded, record
from parity.models.discrete.cached import Cached
from parity.models.discrete.load import Loaded, load, load_encoder
from parity.stand_ins import write

# stand-ins to their families
LAYOUTS = {"chameleon": "chameleon", "anole": "chameleon", "emu3": "emu3", "janus": "janus"}
PIXELS = 64
ROWS = {"chameleon": {"rows": 4, "columns": 6}, "emu3": {"rows": 5, "columns": 3}}  # some pictures are not square
CAPTIONS = ["a red ball", "two cats on a mat, one of them asleep", "#1"]  # of different lengths


def manifest(layout: str, folder: Path) -> dict[str, Any]:
    """Of a stand-in that is written here: what `parity models add` and the checkpoint rule say of such files."""
    family = LAYOUTS[layout]
    written = write(layout, folder)
    files = {part: str(folder / path) for part, path in written.items()}
    sizes = importlib.import_module(f"parity.models.discrete.{family}").read_sizes(Path(files["model"]), PIXELS)
    sizes |= ROWS.get(layout, {})
    return {"family": family, "source": "files", "files": files, "sha256": {}, "network": sizes}


def in_its_dtype(norm: Any) -> None:
    """transformers' RMSNorm computes in float32 whatever the dtype; here in float64, so that 1e-9 means something."""
    norm.forward = lambda x: norm.weight * (x * (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt())


@dataclass
class Whole:
    """A stand-in: ours, loaded as a user's is, and transformers' of the same folder; both float64."""

    layout: str
    loaded: Loaded
    theirs: Any
    inputs: dict[str, Tensor]  # of CAPTIONS

    def model(self, rows: Any = slice(None), guided: bool = True, **changed: Tensor) -> Cached:
        """The token model of some of the captions."""
        given = {k: v[rows] for k, v in (self.inputs | changed).items()}
        return self.loaded.family.condition(self.loaded.nets, given, guided)

    @property
    def language(self) -> Any:
        """transformers' causal network: embeddings to hidden states."""
        part = {"emu3": "text_model", "janus": "language_model"}.get(self.layout)
        return getattr(self.theirs.model, part) if part else self.theirs.model

    @property
    def nets(self) -> dict[str, Any]:
        return self.loaded.nets

    @property
    def codes(self) -> int:
        return self.nets["vq"].size["vocab"]

    @property
    def ids(self) -> Tensor:
        """[V] what transformers calls our tokens."""
        return self.nets["net"].output.ids

    def read(self, tokens: Tensor) -> Any:
        if self.layout == "janus":
            return self.theirs.prepare_embeddings_for_image_generation(tokens)
        return self.language.get_input_embeddings()(self.ids[tokens])

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [.., C] of the codes, by transformers."""
        if self.layout == "janus":
            return self.theirs.model.generation_head(hidden)
        return self.theirs.lm_head(hidden)[..., self.ids[: self.codes]]

    @torch.inference_mode()
    def laws(self, tokens: Tensor, which: str = "words", rows: Any = slice(None)) -> Tensor:
        """Logits [B, n + 1, C] of positions 0 to n, given tokens [B, n], of a plain forward of whole sequences."""
        valid = self.inputs["valid" if which == "words" else f"{which}_valid"][rows]
        words = self.language.get_input_embeddings()(self.inputs[which][rows])
        mask = torch.cat([valid, torch.ones_like(tokens)], 1)
        places = (mask.cumsum(1) - 1).clamp(min=0)
        hidden = self.language(
            inputs_embeds=torch.cat([words, self.read(tokens)], 1), attention_mask=mask, position_ids=places
        ).last_hidden_state
        return self.head(hidden[:, valid.shape[1] - 1 :])

    def both(self, tokens: Tensor, rows: Any = slice(None)) -> Tensor:
        """The laws of conditional rows, then unconditional ones."""
        return torch.cat([self.laws(tokens, which, rows) for which in ("words", "negative")])


def whole(layout: str, folder: Path) -> Whole:
    import transformers

    said = manifest(layout, folder)
    loaded = load(said, dtype=torch.float64)
    kind = getattr(transformers, f"{said['family'].title()}ForConditionalGeneration")
    theirs = kind.from_pretrained(said["files"]["model"], dtype=torch.float64).eval()
    for module in (*theirs.modules(), *loaded.nets["net"].modules()):
        if type(module).__name__.endswith("RMSNorm"):
            in_its_dtype(module)
    inputs = load_encoder(said)(CAPTIONS)
    most = 2 + int(inputs["valid"].sum(1).max())  # the padding of a thousand places costs time
    short = {k: v[:, -most:] for k, v in inputs.items()}
    return Whole(layout, loaded, theirs, short)


def decoded(model: Cached, decoder: Any, rows: Any, sampling: TokenSampling, **options: Any) -> Decoded:
    """A decoder's run; the noise of a row is that of its number."""
    start = torch.zeros(len(rows), dtype=torch.int64)
    law = Sampled(model, sampling)
    noise = counted_noise(1, rows, dtype=torch.float64)
    return record(law, start, decoder(law, start, noise=noise, **options))
