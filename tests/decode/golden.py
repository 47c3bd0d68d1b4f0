"""What every decoder draws on every family of models: digests of its tokens, and what they cost.

`tests/decode/golden.json` has a line for each case: the first 12 digits of the SHA-256 of its tokens as little-endian
int64, then passes and nodes (of texts: words of the auxiliary drafter; of continuous models: accepted drafts, -1 an
image without), summed over rows.
Vectors are rounded to 1e-6. All are computed in float64 on a CPU, so that the order of sums does not matter.

Its first entry is ENGINE of `parity.experiment.code_digest`, the number that names samples: cases that change where the
number does not are not written, unless (--own) the decoder's or family's own module has changed, which names them too.

python -m tests.decode.golden --write                  compute all cases and rewrite the file
python -m tests.decode.golden --write --own            the same after an edit of decoders or families alone
python -m tests.decode.golden --write anole janus      compute those of some families alone
"""

import hashlib
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from parity.base.digests import sha256
from parity.base.files import dump_canonical, read_json
from parity.base.weights import read_shapes, save_weights
from parity.decode import loop
from parity.experiment import options
from parity.experiment.code_digest import ENGINE
from parity.inputs import tasks
from parity.models import add, fetch
from parity.models.discrete.load import load_encoder
from parity.stand_ins import write
from parity.stand_ins.discrete import CODES, PIXELS

GOLDEN = Path(__file__).with_suffix(".json")
Case = list[str | int]  # digest of the tokens, passes and nodes
RANDOM = ("llamagen", "llamagen_c2i", "chameleon", "anole", "emu3", "emu3p5", "janus", "janus_released")
EMBEDDED = {"embedded8": 8, "embedded16": 16}  # tokens a side
CONTINUOUS = ("gmm", "mar", "xar", "harmon")
FAMILIES = (*RANDOM, *EMBEDDED, "xlnet", *CONTINUOUS)
LONG = ("embedded8", "embedded16", "mar", "xar", "harmon")  # trained and slow: a test that is `long`
FEW = {"janus_released": ("ar", "sjd", "eagle", "spec")}  # the network is that of `janus`, in another layout
SIDE = 4  # tokens a side of images, except for these, of which most are not square
NETWORK = {
    "chameleon": {"rows": 2, "columns": 8}, "anole": {"rows": 4, "columns": 4}, "emu3": {"rows": 3, "columns": 5},
    "emu3p5": {"rows": 3, "columns": 4},
}  # fmt: skip
DIM = 64  # the width of all random networks
NEAR = 0.3  # how far a draft model's weights are from its target's
SAMPLING: dict[str, dict[str, Any]] = {
    "discrete": {"guidance": 2.0, "temperature": 2.0, "top_k": 40, "top_p": 0.95}, "anysubset": {},
    "continuous": {"temperature": 1.0, "steps": 4},
}  # fmt: skip
OPTIONS = {"gsd": {"distance": 1.2}}  # random codes have no neighbours at the default
CAPTIONS = ["a red ball", "two cats on a mat, one of them asleep", "a hat", "two dogs on a bed, one of them red", "fog"]
SCENES = ["a small red circle", "a blue ring left of a small striped pink cross", "two large squares"]
LABELS = ["3", "17", "999"]
ROWS = 3  # of a case, decoded together
REFILLED = {"anole": ("sjd", "sjd_coupled", "mtj", "mtj_heads", "spec", "eagle", "vvs"), "llamagen": ("mtj", "eagle")}
AT_ONCE = 2  # rows of a batch that is refilled until all CAPTIONS are decoded
TASK = {"rows": ROWS, "data": "", "length": 24, "masked": 0.8, "prompt": "scattered"}
COUNTS = {"discrete": ("nfe", "nodes"), "anysubset": ("nfe", "aux"), "continuous": ("steps", "accepted_drafts")}


def draw(network: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a weight by numpy's generator, whose seed is the names of network and weight: matrices are scaled by their
    width, embeddings not; vectors are near 1 (weights) or 0 (biases)."""
    values = np.random.default_rng([*f"{network} {name}".encode()]).standard_normal(shape)
    if len(shape) < 2 or "norm" in name:
        return float(name.endswith("weight")) + 0.1 * values
    return values * (1.0 if "embed" in name else 1.5 * shape[1] ** -0.5)


def draw_state(network: str, state: Mapping[str, Any], target: str = "") -> dict[str, Any]:
    """Draw weights of the names, shapes and types of a state, near those of `target` if it is given.
    Convolutions, which no token depends on, stay as they are."""
    drawn = dict(state)
    for name, tensor in state.items():
        if tensor.ndim in (1, 2) and tensor.is_floating_point():
            values = draw(network, name, tuple(tensor.shape))
            if target:
                values = NEAR * values + (1 - NEAR) * draw(target, name, tuple(tensor.shape))
            drawn[name] = torch.from_numpy(values).to(tensor.dtype)
    return drawn


def write_drawn(stand_in: str, folder: Path, network: str = "", target: str = "") -> dict[str, Path]:
    """Write a stand-in whose weights are drawn as those of `network`, by default its name; return the paths of its
    parts. target: as of `draw_state`."""
    sizes = {"eagle_drafter": {"grid": SIDE}} | {name: {"side": SIDE} for name in ("llamagen", "llamagen_c2i", "janus")}
    parts = write(stand_in, folder, **sizes.get(stand_in, {}))
    for file in folder.rglob("*"):
        if file.suffix == ".safetensors":
            save_file(draw_state(network or stand_in, load_file(file), target), file, {"format": "pt"})
        elif file.suffix in (".pt", ".bin", ".ckpt"):
            content = torch.load(file, weights_only=True)
            key = next((k for k in ("model", "state_dict") if k in content), "")
            drawn = draw_state(network or stand_in, content[key] if key else content, target)
            torch.save({key: drawn} if key else drawn, file)
    return {part: folder / path for part, path in parts.items()}


def list_head_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """List the shapes of a target's heads by name; hidden: the width inside its feed-forward."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head, n_inputs in (("below", 1), ("right", 2)):
        shapes |= {f"{head}.fc.weight": (DIM, n_inputs * DIM), f"{head}.feed_forward.w2.weight": (DIM, hidden)}
        shapes |= {f"{head}.feed_forward.{name}.weight": (hidden, DIM) for name in ("w1", "w3")}
        shapes |= {f"{head}.{name}.weight": (DIM,) for name in ("ffn_norm", "norm")}
    return shapes


def write_speculators(family: str, target: Path, folder: Path) -> dict[str, Path]:
    """Write draft model, drafter and heads of a random target; return their paths. The drafter is in its released
    layout for the families that have one, else as `parity train` writes it."""
    draft = write_drawn(family, folder / "draft", f"{family} draft", family)
    paths = {"draft": draft["model" if target.is_dir() else "transformer"]}
    states = {"heads": list_head_shapes(96 if target.is_dir() else 256)}
    released = {"anole": "anole_drafter", "llamagen": "eagle_drafter"}
    if family in released:
        paths["drafter"] = write_drawn(released[family], folder / "drafter")["drafter"]
    else:
        shapes = {name: tuple(x.shape) for name, x in read_shapes(target).items() if "vision" not in name}
        layer = {m[1]: s for name, s in shapes.items() if (m := re.search(r"(?<!aligner\.)\blayers\.0\.(.*)", name))}
        states["drafter"] = {f"layer.{name}": shape for name, shape in layer.items()}
        states["drafter"] |= {"fc.weight": (DIM, 2 * DIM), "norm.weight": (DIM,)}
    config = {"vocab": CODES, "grid": SIDE, "dim": DIM, "heads": 1, "target": sha256(target)}
    for component, listed in states.items():
        drawn = {name: torch.from_numpy(draw(f"{family} {component}", name, s)).float() for name, s in listed.items()}
        paths[component] = folder / f"{component}.safetensors"
        save_weights(drawn, paths[component], config if not target.is_dir() else {"target": config["target"]})
    return paths


def make_manifest(family: str, folder: Path) -> dict[str, Any]:
    """Make the manifest of a family: its embedded model, or a random one of its published format with all speculators,
    which is written to `folder`."""
    if family not in RANDOM:
        entry = {"family": "llamagen", "grid": EMBEDDED[family]} if family in EMBEDDED else {"family": family}
        return fetch.make_manifest(find_kind(family), family, entry, folder)
    paths = write_drawn(family, folder / "target")
    target = paths.get("model", paths.get("transformer", folder))
    elsewhere = write_speculators(family, target, folder / "speculators")
    if target.is_dir() and "vq" in paths:
        elsewhere["vq"] = paths["vq"]
    source = target if target.is_dir() else folder / "target"
    entry = add.find(str(source), None if target.is_dir() else SIDE, elsewhere, PIXELS.get(family)).entry
    entry["files"] = {component: str(folder / "target" / path) for component, path in entry["files"].items()}
    entry["network"] |= NETWORK.get(family, {})
    return fetch.make_manifest("discrete", family, entry, folder / "out")


def find_kind(family: str) -> str:
    return "continuous" if family in CONTINUOUS else "anysubset" if family == "xlnet" else "discrete"


class Golden:
    """The cases of one family."""

    def __init__(self, family: str, folder: Path):
        self.family, self.kind, self.manifest = family, find_kind(family), make_manifest(family, folder)
        self.loaded: dict[str, Any] = {}  # by the speculator that is loaded with the target

    def list_methods(self) -> list[str]:
        """List the methods of this family's cases; those that need a speculator are on `embedded16` alone."""
        methods = options.methods(self.kind)
        if self.family in EMBEDDED:
            return [m for m in methods if bool(options.needs(self.kind, m)) == (self.family == "embedded16")]
        return list(FEW.get(self.family, methods))

    def make_rows(self, method: str, captions: list[str]) -> dict[str, np.ndarray]:
        """Make the rows of a case: captions, encoded; texts with missing words; or numbers of images."""
        if self.kind == "continuous":
            return {"ids": np.arange(ROWS).astype(str)}
        if self.kind == "anysubset":
            prompt = options.declaration(self.kind, method).PROMPT or TASK["prompt"]
            task = tasks.build("infilling", TASK | {"prompt": prompt}, tasks.load_vocabulary(self.manifest))
            return {"ids": np.array(task.ids), "tokens": task.tokens, "known": task.known, "end": task.end}
        encoded = load_encoder(self.manifest)(captions)
        ids = np.arange(len(captions)).astype(str)
        return {"ids": ids, "captions": np.array(captions), **{name: x.numpy() for name, x in encoded.items()}}

    def compute(self, method: str, refill: bool = False, **changed: Any) -> Case:
        """Compute a case; `changed` replaces entries of its specification."""
        chosen = options.options(self.kind, method, OPTIONS.get(method, {}))
        if self.family not in EMBEDDED:
            chosen = options.cap_small(self.kind, method, chosen)
        spec = {"method": method, "options": chosen, "sampling": SAMPLING[self.kind], "seed": 7, "dtype": "float64"}
        spec |= {"cache": True, **changed}
        needs = options.needs(self.kind, method)
        if needs not in self.loaded:
            self.loaded[needs] = loop.load(self.kind, self.manifest, spec)
        captions = SCENES if self.family in EMBEDDED else LABELS if self.family == "llamagen_c2i" else CAPTIONS
        rows = self.make_rows(method, captions if refill else captions[:ROWS])
        shard = loop.decode(self.kind, self.loaded[needs], spec, rows, AT_ONCE if refill else ROWS, refill)
        tokens = np.rint(1e6 * shard.tokens) if self.kind == "continuous" else shard.tokens
        digest = hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest()[:12]
        return [digest, *(int(shard.columns[name].sum()) for name in COUNTS[self.kind])]

    def generate(self) -> Iterator[tuple[str, Case]]:
        for method in self.list_methods():
            yield f"{self.family} {method}", self.compute(method)
        for method in REFILLED.get(self.family, ()):
            yield f"{self.family} {method} refilled", self.compute(method, refill=True)


def list_differences(recorded: Mapping[str, Case], computed: Mapping[str, Case]) -> list[str]:
    """List the cases that differ, sorted by name, each with what of it does: tokens, passes or nodes."""
    lines = []
    for name in sorted(recorded.keys() | computed.keys()):
        if name not in recorded or name not in computed:
            lines.append(f"{name}: not {'computed' if name in recorded else 'recorded'}")
            continue
        pairs = zip(("tokens", "passes", "nodes"), recorded[name], computed[name], strict=True)
        if changed := [f"{what} {new}, not {old}" for what, old, new in pairs if new != old]:
            lines.append(f"{name}: {'; '.join(changed)}")
    return lines


def read_golden(family: str) -> dict[str, Case]:
    """Read the recorded cases of a family by name."""
    return {name: case for name, case in read_json(GOLDEN).items() if name.split()[0] == family}


def main() -> None:
    """Compute the cases of the families that the command names, or of all, and rewrite the file with them."""
    flag, *families = [word for word in sys.argv[1:] if word != "--own"] or [""]
    if flag != "--write" or set(families) - set(FAMILIES):
        sys.exit(f"{' '.join(sys.argv[1:])}: allowed: --write, then names of {', '.join(FAMILIES)}")
    cases: dict[str, Case] = {}
    for family in FAMILIES:
        if families and family not in families:
            cases |= read_golden(family)
            continue
        with tempfile.TemporaryDirectory() as folder:
            cases |= Golden(family, Path(folder)).generate()
    recorded = read_json(GOLDEN)
    shared = {name: case for name, case in recorded.items() if name in cases}
    changed = list_differences(shared, {name: cases[name] for name in shared})
    if changed and recorded["ENGINE"] == [ENGINE] and "--own" not in sys.argv:
        sys.exit("\n".join([*changed, "error: raise ENGINE in src/parity/experiment/code_digest.py, or --own"]))
    cases = {"ENGINE": [ENGINE], **cases}
    lines = ",\n".join(f"{dump_canonical(name)}: {dump_canonical(case)}" for name, case in cases.items())
    GOLDEN.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
