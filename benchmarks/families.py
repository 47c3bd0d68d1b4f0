"""Published families of discrete models as targets: their own networks, tiny and random, of pictures so small that
every one of them can be listed.

Each is read as a user's is: a stand-in in the released format, verified and loaded, under a caption's last tokens, with
guidance and top-k. Its pictures are 2 x 2 codes of four, its grammar's tokens between and behind them; the joint law of
the codes is the network's own. What drafts for it is random, too, and often wrong: a drafter in the format released for
LlamaGen or Anole; for the others, and as draft model, a second network of the same family.
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
from parity_decoders.noise import Noise
from parity_decoders.sampling import Sampled, TokenSampling
from torch import Tensor

from parity.base.errors import ParityError
from parity.base.weights import sha256
from parity.decode.discrete import Decoded, record
from parity.equality.targets import Decoder, Enumerated
from parity.equality.targets.discrete import law_of
from parity.models import fetch
from parity.models.discrete.cached import Cached, EagleDrafter, Layers
from parity.models.discrete.load import Loaded, load, load_encoder
from parity.models.discrete.tabular import TabularDrafter
from parity.stand_ins import write
from parity.stand_ins.discrete import sharpen

DRAWS = 1999
FAMILY = "targets"
CODES, SIDE = 4, 2  # codes of the image tokenizer; of a side of a picture
READ = 8  # of a prompt: its last tokens, those that begin a picture among them
CAPTION = "a red ball"
SAMPLING = TokenSampling(guidance=2.0, top_k=3)
SQUARE = {"rows": SIDE, "columns": SIDE}
WIDTHS = {"dim": 64, "layers": 2, "heads": 1, "grid": SIDE, "prefix": READ, "caption_dim": 32}  # LlamaGen's
STAND_INS: dict[str, dict[str, Any]] = {  # family, sizes that are written, what is said of the network, its drafter
    "llamagen": {
        "family": "llamagen", "sizes": {"side": SIDE, "prefix": READ}, "network": WIDTHS,
        "drafter": {"eagle_drafter": {"grid": SIDE}},
    },
    "chameleon": {"family": "chameleon", "sizes": {"side": SIDE}, "network": SQUARE},  # Lumina-mGPT
    "anole": {
        "family": "chameleon", "sizes": {"side": SIDE}, "network": SQUARE | {"line": 0},
        "drafter": {"anole_drafter": {}},
    },
    "emu3": {"family": "emu3", "sizes": {}, "network": SQUARE},
    "janus": {"family": "janus", "sizes": {"side": SIDE}, "network": SQUARE},
}  # fmt: skip


def manifest(name: str, folder: Path) -> dict[str, Any]:
    """Of a stand-in that is written to `folder`, and of a drafter if one was released."""
    own = STAND_INS[name]
    written: dict[str, Path] = {}
    for stand_in, sizes in {name: own["sizes"], **own.get("drafter", {})}.items():
        written |= write(stand_in, folder, codes=CODES, **sizes)
    files = {part: folder / path for part, path in written.items()}
    given = {"family": own["family"], "source": "files", "network": {"vocab": CODES, **own["network"]}}
    given |= {"files": {part: str(path) for part, path in files.items()}}
    given |= {"sha256": {part: sha256(path) for part, path in files.items()}}
    return fetch.make_manifest("discrete", name, given, folder / "read")


@dataclass(frozen=True)
class Target(Enumerated):
    """A stand-in under a caption, in float32 as users decode; `second`, the same with other weights, drafts for it."""

    name: str
    loaded: Loaded
    second: Loaded
    inputs: dict[str, Tensor]  # of one caption

    length: ClassVar[int] = SIDE**2  # codes of a picture
    shape: ClassVar[tuple[int, int]] = (CODES, SIDE**2)

    @cached_property
    @torch.inference_mode()
    def read(self) -> tuple[Cached, Cached]:
        """The network and the second one for one picture, guided, the prompt read."""
        guided = SAMPLING.guidance != 1
        return tuple(of.family.condition(of.nets, self.inputs, guided) for of in (self.loaded, self.second))

    @torch.inference_mode()
    def model(self, rows: int) -> Sampled:
        """The network, ready for so many pictures, under its settings; the second one beside it as companion."""
        model, draft = (widened(one, rows) for one in self.read)
        draft.returns = True
        model.draft, model.drafter = draft, model.drafter or TabularDrafter(draft)
        return Sampled(model, SAMPLING)

    @cached_property
    def forced(self) -> Tensor:
        """[L] what the grammar forces, -1 at a code."""
        return self.read[0].forced

    @cached_property
    def law(self) -> np.ndarray:
        """Of the codes [CODES^4], first one most significant, by whole pictures in one pass."""
        codes = torch.from_numpy(digits(CODES, self.length))
        cells = self.forced.repeat(len(codes), 1)
        cells[:, self.forced < 0] = codes
        return law_of(self.name, self.model(len(cells)), cells)

    def codes(self, decoder: Decoder, noise: Noise, options: dict[str, Any]) -> np.ndarray:
        """Of pictures' codes. ParityError for a picture that breaks the grammar, or took more passes than it has codes:
        what the grammar forces costs none."""
        model, start = self.model(len(noise.keys)), torch.zeros_like(noise.keys)
        done = record(model, start, decoder(model, start, noise=noise, **options))
        check_grammar(done, self.forced)
        return (done.tokens[:, self.forced < 0] * CODES ** torch.arange(self.length - 1, -1, -1)).sum(1).numpy()


def repeated(cache: Layers, rows: int) -> Layers:
    return [(keys.repeat_interleave(rows, 0), values.repeat_interleave(rows, 0)) for keys, values in cache]


def widened(one: Cached, rows: int) -> Cached:
    """A model that has read one prompt, for so many pictures of it; its drafter too, if it has one of its own."""
    many = copy.copy(one)
    for name in ("on", "last", "prefix_states", "shift"):
        setattr(many, name, getattr(one, name).repeat_interleave(rows, 0))
    many.cache = repeated(one.cache, rows)
    many.going = torch.arange(len(many.last))
    if isinstance(one.drafter, EagleDrafter) and one.features is not None:
        many.drafter = drafter = copy.copy(one.drafter)
        drafter.cache = repeated(drafter.cache, rows)
        for name in ("on", "shift"):
            setattr(drafter, name, getattr(drafter, name).repeat_interleave(rows, 0))
        drafter.features = many.features = one.features.repeat_interleave(rows, 0)
        drafter.target, drafter.going = many, many.going.clone()  # rows leave each in place
    return many


def check_grammar(done: Decoded, forced: Tensor) -> None:
    """ParityError for a picture that lacks a forced token or holds one among its codes, or that took a pass for one."""
    wrong = torch.where(forced < 0, done.tokens >= CODES, done.tokens != forced)
    if wrong.any():
        row, position = wrong.nonzero()[0].tolist()
        own, wanted = int(done.tokens[row, position]), int(forced[position])
        what = f"a code, 0 to {CODES - 1}" if wanted < 0 else f"{wanted}, which the grammar forces"
        raise ParityError(f"row {row}, position {position}: token {own}; allowed: {what}")
    codes = int((forced < 0).sum())
    if (done.nfe > codes).any():
        row = int(done.nfe.argmax())
        raise ParityError(f"row {row}: {int(done.nfe[row])} passes for {codes} codes; allowed: as many, at most")


def targets(folder: Path, names: Sequence[str] = tuple(STAND_INS)) -> list[Target]:
    """Those of `names`, their files written to `folder`."""
    result = []
    for name in names:
        said = manifest(name, folder / name)
        told = {key: x[:, -READ:] for key, x in load_encoder(said)([CAPTION]).items()}
        loaded = load(said, needs="drafter" if "drafter" in said["files"] else "")
        other = copy.deepcopy(loaded.nets["net"])
        sharpen(other, seed=3)
        second = replace(loaded, nets={"net": other, "vq": loaded.nets["vq"]})
        result.append(Target(name, loaded, second, told))
    return result
