"""The models that an experiment names: their families, files, digests and sizes, and what is checked before any job.
Imports no torch."""

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from parity.base import digests
from parity.base.errors import ConfigError
from parity.base.files import digest, foreign_json, header, sums
from parity.experiment.module_metadata import PACKAGE, modules, read_constant
from parity.experiment.options import KINDS, needs
from parity.experiment.schema import HUB, PINNED, Config, ModelSpec, NetworkSpec, PromptSpec

ROOT = PACKAGE / "embedded/weights"
EMBEDDED = ROOT / "discrete"
COMPANIONS = ("drafter", "draft")  # networks that some methods need beside the target
DECLARED = {  # keys of a family's declaration; their meanings stand in models/<kind>/protocol.py
    "discrete": ("files", "also", "embedded", "network"),
    "anysubset": ("files", "also"),
    "continuous": ("condition", "causal", "single_path", "samplers", "schedules", "reads"),
}
DEFAULT = {"discrete": ("scenes", "llamagen"), "anysubset": ("xlnet", "xlnet"), "continuous": ("mar", "mar")}
# keys of config.json that a drafter has in common with its target
WORDS = ("model_type", "vocab_size", "hidden_size", "num_attention_heads")
TOKENS = {"t2i": 256, "t2i2": 1024, "c2i": 576}  # of a picture, by a released drafter's input_type


@cache
def list_families(kind: str) -> tuple[str, ...]:
    """List the modules of models/<kind> that declare FAMILY."""
    return tuple(m for m in modules(f"models/{kind}") if read_constant(f"models/{kind}", m, "FAMILY") is not None)


def find_kind(family: str, label: str = "family") -> str:
    """Find the kind of a family's models. Raises ConfigError for an unknown family."""
    kind = next((kind for kind in KINDS if family in list_families(kind)), None)
    if kind is None:
        allowed = ", ".join(name for kind in KINDS for name in list_families(kind))
        raise ConfigError(f"{label} = {family!r}: unknown family; allowed: {allowed}")
    return kind


def read_family(family: str) -> dict[str, Any]:
    """Read a family's FAMILY. Raises ConfigError for an unknown family, or one that lacks a key."""
    kind = find_kind(family)
    values = read_constant(f"models/{kind}", family, "FAMILY")
    if lacks := [key for key in DECLARED[kind] if key not in values]:
        raise ConfigError(
            f"src/parity/models/{kind}/{family}.py: FAMILY has no {lacks[0]!r}; needed: {', '.join(DECLARED[kind])}"
        )
    return values


def models(config: Config, kind: str) -> dict[str, ModelSpec]:
    """List an experiment's models of a kind by name: those that it names, or the embedded one."""
    chosen = {name: spec for name, spec in config.models.items() if find_kind(spec.family) == kind}
    name, family = DEFAULT[kind]
    return chosen or {name: ModelSpec(family=family)}


def list_embedded_files(spec: ModelSpec) -> dict[str, str]:
    """List the files of an embedded model by component; the transformer's name ends in its grid if that is not 16."""
    files = read_family(spec.family)["embedded"]
    if not files:
        raise ConfigError(f"family = {spec.family!r}: no model of it is embedded; allowed: source hub, or files")
    transformer = f"{files['transformer']}{'' if spec.grid == 16 else spec.grid}"
    names = {**files, "transformer": transformer}
    return {component: f"{name}.safetensors" for component, name in names.items()}


def sizes(spec: ModelSpec) -> dict[str, Any]:
    """Read a model's sizes, as far as they are known without published files; none of text models."""
    if spec.source != "embedded" and not spec.folder:
        family = read_family(spec.family)
        return {**family.get("network", family.get("released", {})), **spec.network}
    if find_kind(spec.family) == "continuous":
        return header(pair_folder(spec) / f"{spec.family}.safetensors")
    return {"grid": spec.grid, "vocab": 1024} | header(EMBEDDED / list_embedded_files(spec)["transformer"])


class Places(NamedTuple):
    """The tokens of a model's pictures, those of its grammar included."""

    rows: int
    width: int  # of a row
    length: int


def count_positions(spec: ModelSpec) -> Places:
    """Count the tokens of square pictures, `grid` a side; or of rows and columns of codes, `line` tokens after each row
    and `end` after the last."""
    model_sizes = sizes(spec)
    rows, columns = (int(model_sizes.get(key, model_sizes.get("grid", 1))) for key in ("rows", "columns"))
    width = columns + int(model_sizes.get("line", 0))
    return Places(rows, width, rows * width + int(model_sizes.get("end", 0)))


def check_network(model: str, spec: ModelSpec) -> None:
    """Raise ConfigError for sizes of a published model that its family does not have, or that no network has."""
    family = read_family(spec.family)
    family_sizes = family.get("sizes", {})
    if spec.source == "embedded" or not family_sizes:
        return
    values = {**family_sizes, **spec.network}

    def refuse(key: str, allowed: str) -> None:
        problem = "unknown size; allowed" if key not in family_sizes else "allowed"
        raise ConfigError(f"models.{model}.network.{key} = {values[key]}: {problem}: {allowed}")

    for key, value in spec.network.items():
        if key not in family_sizes:
            refuse(key, ", ".join(family_sizes))
        is_integer = isinstance(family_sizes[key], int)
        if (is_integer and not isinstance(value, int)) or not 0 <= value <= 10**9:
            refuse(key, f"{'a whole' if is_integer else 'a'} number, 0 to 1e9")
    for key, minimum in (("vocab", 2), ("grid", 1), ("rows", 1), ("columns", 1)):
        if values.get(key, minimum) < minimum:
            refuse(key, f"{minimum} or more")
    for key, maximum in family.get("at_most", {}).items():
        if values[key] > maximum:
            refuse(key, f"at most {maximum}")
    for key, step in family.get("multiples", {}).items():
        if values[key] % step and values.get("line"):
            refuse(key, f"a multiple of {step}")
    for key, multiple in family.get("divides", {}).items():
        if not values[key] or values[multiple] % values[key]:
            refuse(key, f"a divisor of {multiple}, {values[multiple]}")


def check_files(model: str, spec: ModelSpec) -> None:
    """Raise ConfigError for components that a published model's family needs and that are not named, for files that do
    not exist, and for an invalid address or repository."""
    if spec.source == "embedded" or spec.folder:
        return
    family = read_family(spec.family)
    key = f"models.{model}.files"
    needed = family.get("files", ("target",))
    allowed = (*needed, *family.get("also", ("draft", "kl", "tokenizer")))
    classes = {**family.get("sizes", {}), **spec.network}.get("classes")
    for component in needed:
        if component not in spec.files and not (component == "text" and classes):
            raise ConfigError(f"{key} = {sorted(spec.files)}: needs {component}")
    for component, file in spec.files.items():
        if component not in allowed:
            raise ConfigError(f"{key}.{component}: {spec.family} has no such part; allowed: {', '.join(allowed)}")
        remote = file.startswith(("https://", "http://", HUB))
        # the digests of a text model's folders are taken here; a tokenizer's folder has no weights
        unsigned = component == "tokenizer" or (find_kind(spec.family) == "anysubset" and not remote)
        if component not in spec.sha256 and not unsigned:
            raise ConfigError(f"models.{model}.sha256: needs {component}; `python -m parity.models pin` finds it")
        if remote and not PINNED.fullmatch(file) and not re.fullmatch(r"https?://[^/@\s]+/[^\s]+", file):
            raise ConfigError(
                f"{key}.{component} = {file!r}: allowed: https://host/file, or hub:owner/name@commit:path with the"
                " 40-hex commit; a branch would move"
            )
        is_local = (
            spec.source == "files" or Path(file).is_absolute() or (component == "text" and not file.endswith("/"))
        )
        if is_local and not remote and not Path(file).exists():
            raise ConfigError(f"{key}.{component} = {file!r}: no such file")


def list_option_sizes(spec: ModelSpec) -> dict[str, int]:
    """List the sizes of a model that bound options (`parity.base.counts.SIZES`): positions, or groups that are drawn at
    once; positions of a row; tokens. None for a text model."""
    kind = find_kind(spec.family)
    if kind == "anysubset":
        return {}
    model_sizes = sizes(spec)
    if kind == "continuous":
        return {"length": (model_sizes["grid"] // model_sizes.get("cell", 1)) ** 2}
    positions = count_positions(spec)
    vocab = int(model_sizes["vocab"])
    return {"length": positions.length, "row": positions.width, "vocab": vocab, "vocab - 1": vocab - 1}


def compute_revision(spec: ModelSpec, captions: PromptSpec | None = None) -> str:
    """Compute what identifies a model: the digest of its files' digests, and of the captions that it reads."""
    kind = find_kind(spec.family)
    embedded = spec.source == "embedded"
    name = spec.family
    if kind == "continuous":
        read = captions and [
            captions.model_dump(exclude={"shards", "jobs", "repeats"}),
            digests.digest_file(Path(captions.file)),
        ]
        if not embedded and not spec.folder:
            return digest([name, spec.sha256, spec.network, read])
        digests_by_file = sums(pair_folder(spec))
        files = [digests_by_file.get(f"{stem}.safetensors") for stem in ("kl", name, f"{name}-draft")]
        words = digests_by_file.get(f"{name}-tokenizer.json")
        return digest([*files, *([words] if words else []), *([read] if read else [])])
    if kind == "anysubset" and not embedded:
        totals = [
            spec.sha256.get(component) or digests.sha256(Path(spec.files[component]))
            for component in read_family(name)["files"]
        ]
        return digest([totals, [f if f.startswith(HUB) else digest_tokenizer(f) for f in spec.files.values()]])
    if not embedded:
        return digest([spec.revision, spec.network, spec.sha256])
    digests_by_file = sums(EMBEDDED if kind == "discrete" else ROOT / kind)
    files_used = list_embedded_files(spec).values() if kind == "discrete" else digests_by_file
    lines = "".join(f"{total}  {file}\n" for file, total in digests_by_file.items() if file in files_used)
    return hashlib.sha256(lines.encode()).hexdigest()[:8] if digests_by_file else "untrained"


def check_trained(model: str, spec: ModelSpec) -> None:
    """Raise ConfigError for an embedded model of a size that was not trained here."""
    if spec.source != "embedded":
        return
    file = list_embedded_files(spec)["transformer"]
    if spec.grid != 16 and not (EMBEDDED / file).exists():
        raise ConfigError(
            f"models.{model}.grid = {spec.grid}: {file} is missing; allowed: 16, or make it with"
            " `snakemake train_embedded`"
        )


def read_target_sizes(path: Path) -> dict[str, Any]:
    """Read the sizes of its target from the config.json of a released drafter, a folder or the file's: WORDS, if both
    are folders in transformers' layout; {} if there are none."""
    try:
        config = foreign_json((path if path.is_dir() else path.parent) / "config.json")
        if "input_type" not in config:
            return {word: config[word] for word in WORDS}
        tokens = config.get("block_size") or TOKENS[config["input_type"]]
        return {"vocab": config["vocab_size"], "grid": round(tokens**0.5), "input_type": config["input_type"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def check_companion(model: str, spec: ModelSpec, file: Path, component: str) -> None:
    """Raise ConfigError for a drafter, or a draft model, that was trained for another target. A draft model fits every
    target of its size."""
    trained_for = header(file) or read_target_sizes(file)
    target_sizes = sizes(spec)
    expected = (
        read_target_sizes(Path(spec.files["model"]))
        if "model" in spec.files
        else {k: target_sizes[k] for k in ("vocab", "grid")}
    )
    if component == "drafter" and "grid" in expected and "input_type" not in trained_for:
        embedded = spec.source == "embedded"
        expected["target"] = (
            sums(EMBEDDED).get(list_embedded_files(spec)["transformer"]) if embedded else spec.sha256.get("transformer")
        )
    for key, value in expected.items():
        if trained_for.get(key) != value:
            label = "the SHA-256 of its target" if key == "target" else f"its {key}"
            raise ConfigError(
                f"models.{model}: {component} {file.name} was trained for another target: {label} is"
                f" {str(trained_for.get(key))[:16]}; allowed: {str(value)[:16]}"
            )


def check_needs(method: str, model: str, spec: ModelSpec) -> None:
    """Raise ConfigError if a method needs a companion that a model does not have, or that is another model's."""
    companion = needs("discrete", method)
    key = f"image.methods.{method}: models.{model}"
    if not companion:
        return
    file = EMBEDDED / f"{companion}.safetensors" if spec.source == "embedded" else Path(spec.files.get(companion, ""))
    if spec.source == "embedded" and spec.grid != 16:
        raise ConfigError(f"{key}.grid = {spec.grid} has no {companion}; allowed: 16, or source files")
    if spec.source == "embedded" and not file.exists():
        raise ConfigError(
            f"{key} has no {companion} yet: {file.name} is missing; make it with `snakemake train_embedded`"
        )
    if spec.source != "embedded" and companion not in spec.files:
        raise ConfigError(f"{key}.files = {sorted(spec.files)}: needs a {companion} trained for this model")
    if spec.source != "hub" and file.exists():  # else it is checked when it has been downloaded
        check_companion(model, spec, file, companion)


def compute_network_revision(spec: NetworkSpec) -> str:
    """Compute what identifies a network that judges pictures."""
    return digest([spec.sha256, spec.architecture])


def read_protocols() -> dict[str, Any]:
    """Read the recipes by which pictures of published models are measured, as their module declares them."""
    return read_constant("metrics", "protocols", "PROTOCOLS")


def digest_tokenizer(folder: str) -> dict[str, str]:
    """Digest the files of a folder that make its tokenizer, by name."""
    words = [f for p in ("*token*", "*.model", "vocab*", "merges*") for f in sorted(Path(folder).glob(p))]
    return {file.name: digests.digest_file(file) for file in words}


def check_text_folders(model: str, files: dict[str, str]) -> None:
    """Raise ConfigError for folders of a text model, by component, that are not as transformers saves them."""
    for component, folder in files.items():
        if folder.startswith(HUB):
            continue
        if component == "tokenizer" or (component == "xlnet" and "tokenizer" not in files) or component == "judge":
            check_tokenizer(Path(folder), f"models.{model}.files.{component}")
        if component != "tokenizer" and not Path(folder, "config.json").is_file():
            raise ConfigError(
                f"models.{model}.files.{component} = {folder!r}: needs config.json; allowed: a folder as transformers"
                " saves it, or hub:owner/name@commit"
            )


def check_tokenizer(folder: Path, label: str) -> None:
    """Raise ConfigError, which begins with `label`, for a folder without a readable tokenizer."""
    if not any(Path(folder, name).is_file() for name in ("tokenizer.json", "vocab.json")):
        hint = " of its spiece.model (docs/howto/checkpoint.md says how)" if list(folder.glob("spiece.model")) else ""
        raise ConfigError(f"{label} = {str(folder)!r}: needs a tokenizer; allowed: a folder with tokenizer.json{hint}")


def pair_folder(spec: ModelSpec) -> Path:
    """Return the folder of a continuous pair's weights: the embedded ones', or what `convert` wrote."""
    return Path(spec.folder or ROOT / "continuous")


def check_captions(model: str, spec: ModelSpec, captions: PromptSpec | None) -> None:
    """Raise ConfigError for a published model that reads captions without any, or for captions of a model that reads
    none."""
    embedded = spec.source == "embedded"
    reads = not embedded and read_constant("models/continuous", spec.family, "PROMPT") is not None
    if reads and captions is None:
        raise ConfigError(f"continuous.captions: {model} reads captions; needed: {{file: captions, one a line}}")
    if captions is not None and not reads:
        problem = "reads no captions of yours" if embedded else "reads no captions"
        raise ConfigError(f"continuous.captions.file = {captions.file!r}: {model} {problem}; allowed: no captions")


def check_pair(model: str, draft: bool, spec: ModelSpec) -> None:
    """Raise ConfigError for files that are missing or have no sizes, for sizes that no network has, and for a draft of
    other tokens, latents or classes."""
    where = f"models.{model}"
    family = read_family(spec.family)
    model_sizes = sizes(spec)
    if spec.source != "embedded" and not spec.folder:
        if "released" not in family:
            raise ConfigError(
                f"{where}.source = {spec.source!r}: {spec.family} has no published files; allowed: embedded"
            )
        if draft and "draft" not in spec.files:
            raise ConfigError(f"{where}.files = {sorted(spec.files)}: needs draft, for a method that drafts")
        for key, value in spec.network.items():
            if key not in ("grid", "cell") or not isinstance(value, int) or not 1 <= value <= 256:
                raise ConfigError(f"{where}.network.{key} = {value}: allowed: grid and cell, 1 to 256")
        if model_sizes["grid"] % model_sizes.get("cell", 1):
            raise ConfigError(f"{where}.network = {model_sizes}: grid; allowed: a multiple of cell")
        return
    folder = pair_folder(spec)
    if spec.folder and not (folder / "SHA256SUMS").exists():
        raise ConfigError(
            f"{where}.folder = {spec.folder!r}: no SHA256SUMS in it; allowed: a folder that `convert` wrote"
        )
    headers = []
    for name in (spec.family, *([f"{spec.family}-draft"] if draft else [])):
        file = folder / f"{name}.safetensors"
        if not file.exists():
            remedy = f"allowed: what {folder} holds" if spec.folder else "make it with `snakemake train_continuous`"
            raise ConfigError(f"{where}: {file.name} is missing; {remedy}")
        headers.append(header(file))
        if "grid" not in headers[-1]:
            raise ConfigError(
                f"{where}: {file} says nothing of its sizes; allowed: a file that `convert` or a recipe wrote"
            )
    nouns = {"grid": "tokens a side", "dim": "numbers a token", "classes": "classes", "latents": "latents"}
    for key, noun in nouns.items():
        target, *drafts = (str(h.get(key)) for h in headers)
        if drafts and drafts[0] != target:
            raise ConfigError(
                f"{where}: draft and target differ in {noun}: {drafts[0]} and {target}; allowed: the same"
            )
