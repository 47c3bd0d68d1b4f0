"""Stand-ins of published families beside transformers' own network of the same files, in float64."""

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from parity_decoders.engine import Network
from parity_decoders.families.emu3p5 import load_emu3p5
from torch import Tensor

from parity.models.discrete.load import Loaded, load, load_encoder
from parity.stand_ins import write

# stand-ins and the family that each belongs to
LAYOUTS = {"chameleon": "chameleon", "anole": "chameleon", "emu3": "emu3", "emu3p5": "emu3p5", "janus": "janus"}
PIXELS = 64
ROWS = {
    "chameleon": {"rows": 4, "columns": 6},
    "emu3": {"rows": 5, "columns": 3},
    "emu3p5": {"rows": 3},
}  # some images are not square
CAPTIONS = ["a red ball", "two cats on a mat, one of them asleep", "#1"]  # captions of different lengths


def make_manifest(layout: str, folder: Path) -> dict[str, Any]:
    """Write a stand-in and make its manifest, as `parity models add` and the checkpoint rule do."""
    family = LAYOUTS[layout]
    written = write(layout, folder)
    files = {name: str(folder / path) for name, path in written.items()}
    sizes = importlib.import_module(f"parity.models.discrete.{family}").read_sizes(Path(files["model"]), PIXELS)
    sizes |= ROWS.get(layout, {})
    return {"family": family, "source": "files", "files": files, "sha256": {}, "network": sizes}


def keep_dtype(norm: Any) -> None:
    """Make transformers' RMSNorm compute in its input's dtype, not float32, so that 1e-9 means something."""
    norm.forward = lambda x: norm.weight * (x * (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt())


@dataclass
class FamilyPair:
    """Our network of a stand-in, loaded as a user's is, and transformers' of the same folder; both float64."""

    layout: str
    loaded: Loaded
    theirs: Any
    inputs: dict[str, Tensor]  # the CAPTIONS, encoded

    def make_model(self, rows: Any = slice(None), guided: bool = True, **replaced: Tensor) -> Network:
        """Make our model of the captions `rows`, which has read them; `replaced` replace encoded inputs."""
        inputs = {k: v[rows] for k, v in (self.inputs | replaced).items()}
        target: Network = self.loaded.family.condition(self.loaded.nets, inputs, guided).target
        return target

    @property
    def language(self) -> Any:
        name = {"emu3": "text_model", "janus": "language_model"}.get(self.layout)
        return getattr(self.theirs.model, name) if name else self.theirs.model

    @property
    def nets(self) -> dict[str, Any]:
        return self.loaded.nets

    @property
    def codes(self) -> int:
        return self.nets["vq"].size["vocab"]

    @property
    def ids(self) -> Tensor:
        """[V] transformers' numbers of our tokens."""
        return self.nets["net"].output.ids

    def embed_tokens(self, tokens: Tensor) -> Any:
        if self.layout == "janus":
            return self.theirs.prepare_embeddings_for_image_generation(tokens)
        return self.language.get_input_embeddings()(self.ids[tokens])

    def compute_head_logits(self, hidden: Tensor) -> Tensor:
        if self.layout == "janus":
            return self.theirs.model.generation_head(hidden)
        return self.theirs.lm_head(hidden)[..., self.ids[: self.codes]]

    @torch.inference_mode()
    def compute_logits(self, tokens: Tensor, which: str = "words", rows: Any = slice(None)) -> Tensor:
        """Compute transformers' logits [B, n + 1, C] of positions 0 to n in one pass, given tokens [B, n] after the
        captions `rows`, or after negative prompts if `which` is "negative"."""
        valid = self.inputs["valid" if which == "words" else f"{which}_valid"][rows]
        words = self.language.get_input_embeddings()(self.inputs[which][rows])
        mask = torch.cat([valid, torch.ones_like(tokens)], 1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        hidden = self.language(
            inputs_embeds=torch.cat([words, self.embed_tokens(tokens)], 1), attention_mask=mask, position_ids=positions
        ).last_hidden_state
        return self.compute_head_logits(hidden[:, valid.shape[1] - 1 :])

    def compute_guided_logits(self, tokens: Tensor, rows: Any = slice(None)) -> Tensor:
        """Compute `compute_logits` with the captions, then with the negative prompts, as one batch."""
        return torch.cat([self.compute_logits(tokens, which, rows) for which in ("words", "negative")])


def load_pair(layout: str, folder: Path, **changed: Any) -> FamilyPair:
    """Write a stand-in and load it with our code and with transformers; `changed` replaces entries of config.json."""
    import transformers

    manifest = make_manifest(layout, folder)
    config = Path(manifest["files"]["model"], "config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | changed))
    loaded = load(manifest, dtype=torch.float64)
    if layout == "emu3p5":  # transformers has its network by another name
        theirs = load_emu3p5(manifest["files"]["model"], dtype=torch.float64)
    else:
        family_class = getattr(transformers, f"{manifest['family'].title()}ForConditionalGeneration")
        theirs = family_class.from_pretrained(manifest["files"]["model"], dtype=torch.float64).eval()
    for module in (*theirs.modules(), *loaded.nets["net"].modules()):
        if type(module).__name__.endswith("RMSNorm"):
            keep_dtype(module)
    inputs = load_encoder(manifest)(CAPTIONS)
    longest = 2 + int(inputs["valid"].sum(1).max())  # most of the padding is cut, as a thousand places cost time
    short = {k: v[:, -longest:] for k, v in inputs.items()}
    return FamilyPair(layout, loaded, theirs, short)
