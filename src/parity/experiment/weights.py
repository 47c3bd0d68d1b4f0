"""The models that an experiment names: their families, files, sizes and revisions. Imports no torch; what is checked
before any job is in `model_checks`."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from parity.base.errors import ConfigError
from parity.base.files import digest, header, sums
from parity.experiment.module_metadata import PACKAGE, modules, read_constant
from parity.experiment.options import KINDS, methods
from parity.experiment.schema import HUB, Config, ModelSpec, NetworkSpec, PromptSpec

ROOT = PACKAGE / "embedded/weights"
EMBEDDED = ROOT / "discrete"
SPECULATORS = ("drafter", "draft", "heads")  # the networks that a method may need beside the target
DECLARED = {  # keys that FAMILY of a module of models/<kind> must have; models/<kind>/__init__.py explains them
    "discrete": ("files", "also", "embedded", "network"),
    "anysubset": ("files", "also"),
    "continuous": ("condition", "causal", "single_path", "samplers", "schedules", "reads"),
}
DEFAULT = {"discrete": ("scenes", "llamagen"), "anysubset": ("xlnet", "xlnet"), "continuous": ("mar", "mar")}


@cache
def list_families(kind: str) -> tuple[str, ...]:
    """List the modules of models/<kind> that declare FAMILY."""
    return tuple(m for m in modules(f"models/{kind}") if read_constant(f"models/{kind}", m, "FAMILY") is not None)


def find_kind(family: str, label: str = "family") -> str:
    """Find the kind of a family's models. Raises ConfigError, which begins with `label`, for an unknown family."""
    kind = next((kind for kind in KINDS if family in list_families(kind)), None)
    if kind is None:
        allowed = ", ".join(name for kind in KINDS for name in list_families(kind))
        raise ConfigError(f"{label} = {family!r}: unknown family; allowed: {allowed}")
    return kind


def read_family(family: str) -> dict[str, Any]:
    """Read what a family's module declares as FAMILY. Raises ConfigError for an unknown family, or a missing key."""
    kind = find_kind(family)
    values = read_constant(f"models/{kind}", family, "FAMILY")
    if lacks := [key for key in DECLARED[kind] if key not in values]:
        raise ConfigError(
            f"src/parity/models/{kind}/{family}.py: FAMILY has no {lacks[0]!r}; needed: {', '.join(DECLARED[kind])}"
        )
    return values


def list_text_methods(spec: ModelSpec) -> tuple[str, ...]:
    """List our decoders that a text model runs: those that its entry names, or its family, or all."""
    return tuple(spec.methods) or read_family(spec.family).get("methods") or methods("anysubset")


def runs_method(spec: ModelSpec, method: str) -> bool:
    """Return whether a text model runs a decoder; one of others runs where no list is given."""
    is_limited = bool(spec.methods or read_family(spec.family).get("methods"))
    return method in list_text_methods(spec) or not (is_limited or method in methods("anysubset"))


def list_models(config: Config, kind: str) -> dict[str, ModelSpec]:
    """List an experiment's models of a kind by name: those that it names or, if it names none, the embedded one."""
    chosen = {name: spec for name, spec in config.models.items() if find_kind(spec.family) == kind}
    name, family = DEFAULT[kind]
    return chosen or {name: ModelSpec(family=family)}


def list_embedded_files(spec: ModelSpec) -> dict[str, str]:
    """List the file names of an embedded image model by component; the transformer's ends in its grid if that is not
    16. Raises ConfigError if the family has no embedded model."""
    files = read_family(spec.family)["embedded"]
    if not files:
        raise ConfigError(f"family = {spec.family!r}: no model of it is embedded; allowed: source hub, or files")
    transformer = f"{files['transformer']}{'' if spec.grid == 16 else spec.grid}"
    names = {**files, "transformer": transformer}
    return {component: f"{name}.safetensors" for component, name in names.items()}


def read_sizes(spec: ModelSpec) -> dict[str, Any]:
    """Read a model's sizes (grid, vocab, ...), as far as they are known without published files: the family's defaults
    with `network`, or the header of an embedded or converted file."""
    if spec.source != "embedded" and not spec.folder:
        family = read_family(spec.family)
        return {**family.get("network", family.get("released", {})), **spec.network}
    if find_kind(spec.family) == "continuous":
        return header(find_pair_folder(spec) / f"{spec.family}.safetensors")
    return {"grid": spec.grid, "vocab": 1024} | header(EMBEDDED / list_embedded_files(spec)["transformer"])


class Places(NamedTuple):
    """The tokens of a model's images, those of its grammar included."""

    rows: int
    width: int  # number of tokens of a row
    length: int


def list_code_sizes(spec: ModelSpec) -> dict[str, int]:
    """List what an image model's images are made of: `vocab` codes in `rows` and `columns`, `grid` of each in square
    ones, `line` tokens after each row, and `end` after the last."""
    sizes = read_sizes(spec)
    sizes = {"rows": sizes.get("grid", 1), "columns": sizes.get("grid", 1), "line": 0, "end": 0, **sizes}
    return {name: int(sizes[name]) for name in ("vocab", "rows", "columns", "line", "end")}


def count_positions(spec: ModelSpec) -> Places:
    """Count the tokens of a model's images (`list_code_sizes`)."""
    codes = list_code_sizes(spec)
    width = codes["columns"] + codes["line"]
    return Places(codes["rows"], width, codes["rows"] * width + codes["end"])


def list_option_sizes(spec: ModelSpec) -> dict[str, int]:
    """List the sizes of a model that bound options (SIZES of `parity_decoders.counts`): "length" in positions, or in
    groups that are drawn at once; of an image model also "row" and "vocab". {} for a text model."""
    kind = find_kind(spec.family)
    if kind == "anysubset":
        return {}
    if kind == "continuous":
        model_sizes = read_sizes(spec)
        return {"length": (model_sizes["grid"] // model_sizes.get("cell", 1)) ** 2}
    positions, vocab = count_positions(spec), list_code_sizes(spec)["vocab"]
    return {"length": positions.length, "row": positions.width, "vocab": vocab, "vocab - 1": vocab - 1}


def compute_revision(spec: ModelSpec, captions: PromptSpec | None = None) -> str:
    """Compute the digest that identifies a model: of its files' digests, its sizes, and the captions that it reads;
    "untrained" if it is embedded and the package has no weights of it."""
    kind = find_kind(spec.family)
    if kind == "continuous":
        return compute_pair_revision(spec, captions)
    if spec.source != "embedded":
        is_text = kind == "anysubset"
        return compute_text_revision(spec) if is_text else digest([spec.revision, spec.network, spec.sha256])
    digests_by_file = sums(EMBEDDED if kind == "discrete" else ROOT / kind)
    files_used = list_embedded_files(spec).values() if kind == "discrete" else digests_by_file
    lines = "".join(f"{total}  {file}\n" for file, total in digests_by_file.items() if file in files_used)
    return hashlib.sha256(lines.encode()).hexdigest()[:8] if digests_by_file else "untrained"


def compute_pair_revision(spec: ModelSpec, captions: PromptSpec | None) -> str:
    """Compute the digest that identifies a continuous model, draft and autoencoder, and the captions that it reads."""
    name, read = spec.family, None
    if captions:
        from parity.base.digests import digest_file

        read = [captions.model_dump(exclude={"shards", "jobs", "repeats"}), digest_file(Path(captions.file))]
    if spec.source != "embedded" and not spec.folder:
        return digest([name, spec.sha256, spec.network, read])
    digests_by_file = sums(find_pair_folder(spec))
    files = [digests_by_file.get(f"{stem}.safetensors") for stem in ("kl", name, f"{name}-draft")]
    tokenizer = digests_by_file.get(f"{name}-tokenizer.json")
    return digest([*files, *([tokenizer] if tokenizer else []), *([read] if read else [])])


def compute_text_revision(spec: ModelSpec) -> str:
    """Compute the digest that identifies a text model that is not embedded: of its weights and its tokenizer."""
    from parity.base.digests import sha256

    components = read_family(spec.family)["files"]
    totals = [spec.sha256.get(name) or sha256(Path(spec.files[name])) for name in components]
    return digest([totals, [f if f.startswith(HUB) else digest_tokenizer(f) for f in spec.files.values()]])


def compute_network_revision(spec: NetworkSpec) -> str:
    """Compute the digest that identifies a network that judges images, of its file's digest and its architecture."""
    return digest([spec.sha256, spec.architecture])


def read_protocols() -> dict[str, Any]:
    """Read the recipes by which images of published models are measured, by name, from `metrics/protocols.py`."""
    return read_constant("metrics", "protocols", "PROTOCOLS")


def list_protocol_networks(protocol: str) -> dict[str, dict[str, str]]:
    """List the entries of `networks` that a protocol needs, by name; {} for an unknown protocol."""
    published = read_constant("metrics", "protocols", "NETWORKS")
    clip = read_protocols().get(protocol, {}).get("clip")
    names = read_constant("metrics", "protocols", "JUDGES").get(protocol, ())
    return {name: dict(published[clip if name == "clip" else name]) for name in names}


def digest_tokenizer(folder: str) -> dict[str, str]:
    """Digest each file of a folder that belongs to its tokenizer. Returns the digests by file name."""
    from parity.base.digests import digest_file

    words = [f for p in ("*token*", "*.model", "vocab*", "merges*") for f in sorted(Path(folder).glob(p))]
    return {file.name: digest_file(file) for file in words}


def find_pair_folder(spec: ModelSpec) -> Path:
    """Return the folder of a continuous pair's weights: the one that `convert` wrote, or that of the embedded ones."""
    return Path(spec.folder or ROOT / "continuous")
