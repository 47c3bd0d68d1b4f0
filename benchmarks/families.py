"""Published families of discrete models as targets: their own networks, tiny and random, of images so small that
all of them can be listed.

Each is read as a user's model: a stand-in in the released format, verified and loaded, under a caption's last tokens,
with guidance and top-k. Its images are 2 x 2 codes of four, with its grammar's tokens between and after them; the
joint distribution of the codes is the network's. Its speculators are random, too, and often wrong: a drafter in the
format released for LlamaGen or Anole; for the others, and as draft model, a second network of the family.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from parity_certify.joint_tests import digits
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled
from parity_decoders.noise import Noise
from torch import Tensor

from parity.base.errors import ParityError
from parity.base.weights import sha256
from parity.decode.discrete import Decoded, record
from parity.equality.targets import Decoder, Enumerated
from parity.equality.targets.discrete import compute_sequence_probs
from parity.models import fetch
from parity.models.discrete.load import Loaded, load, load_encoder
from parity.models.discrete.tabular import TabularDrafter
from parity.stand_ins import write
from parity.stand_ins.discrete import sharpen

DRAWS = 1999
FAMILY = "targets"
CODES = 4  # codes in the codebook of the image tokenizer
SIDE = 2  # codes along a side of an image
PROMPT_LENGTH = 8  # this many last tokens of a prompt are read; those that begin an image are among them
CAPTION = "a red ball"
SAMPLING = TokenSampling(guidance=2.0, top_k=3)
SQUARE = {"rows": SIDE, "columns": SIDE}
WIDTHS = {"dim": 64, "layers": 2, "heads": 1, "grid": SIDE, "prefix": PROMPT_LENGTH, "caption_dim": 32}  # for LlamaGen
STAND_INS: dict[str, dict[str, Any]] = {  # `sizes` of the files, `network` of the entry, format of a drafter
    "llamagen": {
        "family": "llamagen", "sizes": {"side": SIDE, "sizes": {"prefix": PROMPT_LENGTH}}, "network": WIDTHS,
        "drafter": {"eagle_drafter": {"grid": SIDE}},
    },
    "chameleon": {"family": "chameleon", "sizes": {"side": SIDE}, "network": SQUARE},  # Lumina-mGPT is of this family
    "anole": {
        "family": "chameleon", "sizes": {"side": SIDE}, "network": SQUARE | {"line": 0},
        "drafter": {"anole_drafter": {}},
    },
    "emu3": {"family": "emu3", "sizes": {}, "network": SQUARE},
    "janus": {"family": "janus", "sizes": {"side": SIDE}, "network": SQUARE},
}  # fmt: skip


def write_stand_in(name: str, folder: Path) -> dict[str, Any]:
    """Write a random network in a family's released format, and a drafter if one was released; return a manifest."""
    stand_in = STAND_INS[name]
    paths: dict[str, Path] = {}
    for format_name, sizes in {name: stand_in["sizes"], **stand_in.get("drafter", {})}.items():
        paths |= write(format_name, folder, codes=CODES, **sizes)
    files = {network: folder / path for network, path in paths.items()}
    entry = {"family": stand_in["family"], "source": "files", "network": {"vocab": CODES, **stand_in["network"]}}
    entry |= {"files": {network: str(path) for network, path in files.items()}}
    entry |= {"sha256": {network: sha256(path) for network, path in files.items()}}
    return fetch.make_manifest("discrete", name, entry, folder / "read")


@dataclass(frozen=True)
class Target(Enumerated):
    """A stand-in under a caption, in float32 as users decode; `second`, the same with other weights, drafts for it."""

    name: str
    loaded: Loaded
    second: Loaded
    inputs: dict[str, Tensor]  # the caption, encoded

    length: ClassVar[int] = SIDE**2  # codes of an image
    shape: ClassVar[tuple[int, int]] = (CODES, SIDE**2)

    @torch.inference_mode()
    def model(self, rows: int) -> Sampled:
        """Make the model of `rows` images of the caption, with the settings of SAMPLING. The second network is its
        draft model, and drafts in place of a drafter if the family has none."""
        inputs = {name: column.repeat_interleave(rows, 0) for name, column in self.inputs.items()}
        nets = self.loaded.nets | {"draft": self.second.nets["net"]}
        target, speculators = self.loaded.family.condition(nets, inputs, SAMPLING.guidance != 1)
        return Sampled(target, SAMPLING, {"drafter": TabularDrafter(speculators["draft"]), **speculators})

    @cached_property
    def forced(self) -> Tensor:
        """Tokens [L] that the grammar forces, -1 where a code is drawn."""
        return self.model(1).forced

    @cached_property
    def probs(self) -> np.ndarray:
        """Distribution [CODES^4] of an image's codes, the first most significant, computed from whole images in one
        pass."""
        codes = torch.from_numpy(digits(CODES, self.length))
        cells = self.forced.repeat(len(codes), 1)
        cells[:, self.forced < 0] = codes
        return compute_sequence_probs(self.name, self.model(len(cells)), cells)

    def decode_codes(self, decoder: Decoder, noise: Noise, options: dict[str, Any]) -> np.ndarray:
        """Decode an image for each key of the noise, and return its codes as a number [n]. Raises ParityError for an
        image that breaks the grammar, or that took more passes than it has codes."""
        model, start = self.model(len(noise.keys)), torch.zeros_like(noise.keys)
        result = record(model, start, decoder(model, start, noise=noise, **options))
        check_grammar(result, self.forced)
        return (result.tokens[:, self.forced < 0] * CODES ** torch.arange(self.length - 1, -1, -1)).sum(1).numpy()


def check_grammar(result: Decoded, forced: Tensor) -> None:
    """Raise ParityError if an image lacks a forced token [L], has one in place of a code, or took too many passes."""
    is_wrong = torch.where(forced < 0, result.tokens >= CODES, result.tokens != forced)
    if is_wrong.any():
        row, position = is_wrong.nonzero()[0].tolist()
        token = int(result.tokens[row, position])
        forced_token = int(forced[position])
        allowed = f"a code, 0 to {CODES - 1}" if forced_token < 0 else f"{forced_token}, which the grammar forces"
        raise ParityError(f"row {row}, position {position}: token {token}; allowed: {allowed}")
    codes = int((forced < 0).sum())
    if (result.nfe > codes).any():
        row = int(result.nfe.argmax())
        raise ParityError(f"row {row}: {int(result.nfe[row])} passes for {codes} codes; allowed: as many, at most")


def make_targets(folder: Path, names: Sequence[str] = tuple(STAND_INS)) -> list[Target]:
    """Write stand-ins of the named families to `folder`; load each, and a copy with other weights, as a target."""
    result = []
    for name in names:
        manifest = write_stand_in(name, folder / name)
        inputs = {key: x[:, -PROMPT_LENGTH:] for key, x in load_encoder(manifest)([CAPTION]).items()}
        loaded = load(manifest, needs="drafter" if "drafter" in manifest["files"] else "")
        net = copy.deepcopy(loaded.nets["net"])
        sharpen(net, seed=3)
        second = replace(loaded, nets={"net": net, "vq": loaded.nets["vq"]})
        result.append(Target(name, loaded, second, inputs))
    return result
