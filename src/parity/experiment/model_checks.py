"""Check the models that a configuration names before any job: sizes, files, speculators, captions, text folders, pairs.
Every check raises ConfigError. Imports no torch."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from parity.base.errors import ConfigError
from parity.base.files import foreign_json, header, sums
from parity.base.text_files import describe_missing
from parity.experiment import weights
from parity.experiment.module_metadata import read_constant
from parity.experiment.options import needs
from parity.experiment.schema import HUB, PINNED, ModelSpec, PromptSpec
from parity.experiment.weights import find_kind, find_pair_folder, list_embedded_files, read_family, read_sizes

# Keys of config.json in which a drafter must agree with its target.
WORDS = ("model_type", "vocab_size", "hidden_size", "num_attention_heads")
TOKENS = {"t2i": 256, "t2i2": 1024, "c2i": 576}  # tokens of an image, by the input_type of a released drafter


# --- Checks of sizes


def check_network(model: str, spec: ModelSpec) -> None:
    """Check that a published model's `network` names sizes of its family alone, with values that a network can have."""
    family = read_family(spec.family)
    if spec.source == "embedded" or not family.get("sizes"):
        return
    for key, allowed in chain(list_wrong_values(family, spec.network), list_wrong_relations(family, spec.network)):
        value = {**family["sizes"], **spec.network}[key]
        raise ConfigError(f"models.{model}.network.{key} = {value}: {allowed}")


def list_wrong_values(family: dict[str, Any], network: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of `network` that the family has not, or whose value is out of range, with what is allowed."""
    for key, value in network.items():
        is_integer = isinstance(family["sizes"].get(key), int)
        if key not in family["sizes"]:
            yield key, f"unknown size; allowed: {', '.join(family['sizes'])}"
        elif (is_integer and not isinstance(value, int)) or not 0 <= value <= 10**9:
            yield key, f"allowed: {'a whole' if is_integer else 'a'} number, 0 to 1e9"


def list_wrong_relations(family: dict[str, Any], network: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the sizes, the family's or those of `network`, that are too small, too large or do not divide others as the
    family says they must, with what is allowed."""
    values = {**family["sizes"], **network}
    for key, minimum in (("vocab", 2), ("grid", 1), ("rows", 1), ("columns", 1)):
        if values.get(key, minimum) < minimum:
            yield key, f"allowed: {minimum} or more"
    for key, maximum in family.get("at_most", {}).items():
        if values[key] > maximum:
            yield key, f"allowed: at most {maximum}"
    for key, step in family.get("multiples", {}).items():
        if values[key] % step and values.get("line"):
            yield key, f"allowed: a multiple of {step}"
    for key, multiple in family.get("divides", {}).items():
        if not values[key] or values[multiple] % values[key]:
            yield key, f"allowed: a divisor of {multiple}, {values[multiple]}"


# --- Checks of files


def check_files(model: str, spec: ModelSpec) -> None:
    """Check that a published model names every component that its family needs and no unknown one, with its digest, in
    files that exist or at addresses that do not move. Models that are embedded or in a folder pass."""
    if spec.source == "embedded" or spec.folder:
        return
    family = read_family(spec.family)
    needed = family.get("files", ("target",))
    classes = {**family.get("sizes", {}), **spec.network}.get("classes")
    for component in needed:
        if component not in spec.files and not (component == "text" and classes):
            raise ConfigError(f"models.{model}.files = {sorted(spec.files)}: needs {component}")
    allowed = (*needed, *family.get("also", ("draft", "kl", "tokenizer")))
    for component, file in spec.files.items():
        key = f"models.{model}.files.{component}"
        if component not in allowed:
            raise ConfigError(f"{key}: {spec.family} has no such part; allowed: {', '.join(allowed)}")
        check_signed(model, spec, component)
        if is_remote(file):
            check_address(key, file)
        elif is_local(spec, component) and not Path(file).exists():
            raise ConfigError(f"{key} = {file!r}: {describe_missing(Path(file))}")


def is_remote(file: str) -> bool:
    return file.startswith(("https://", "http://", HUB))


def is_local(spec: ModelSpec, component: str) -> bool:
    """Return whether a component is a file of this machine, and not one of the model's repository."""
    file = spec.files[component]
    return spec.source == "files" or Path(file).is_absolute() or (component == "text" and not file.endswith("/"))


def check_signed(model: str, spec: ModelSpec, component: str) -> None:
    """Check that a component's digest is given. None is needed for a text model's folders on this machine, which are
    digested when they are read, nor for a tokenizer, which has no weights."""
    is_own_folder = find_kind(spec.family) == "anysubset" and not is_remote(spec.files[component])
    if component not in spec.sha256 and component != "tokenizer" and not is_own_folder:
        raise ConfigError(f"models.{model}.sha256: needs {component}; `python -m parity.models pin` finds it")


def check_address(key: str, file: str) -> None:
    """Check that an address is a URL with host and file, or a repository at a commit. `key` begins the message."""
    if not PINNED.fullmatch(file) and not re.fullmatch(r"https?://[^/@\s]+/[^\s]+", file):
        raise ConfigError(
            f"{key} = {file!r}: allowed: https://host/file, or hub:owner/name@commit:path with the"
            " 40-hex commit; a branch would move"
        )


def check_trained(model: str, spec: ModelSpec) -> None:
    """Check that an embedded model is of a grid whose weights are in the package; other models pass."""
    if spec.source != "embedded":
        return
    file = list_embedded_files(spec)["transformer"]
    if spec.grid != 16 and not (weights.EMBEDDED / file).exists():
        raise ConfigError(
            f"models.{model}.grid = {spec.grid}: {file} is missing; allowed: 16, or make it with"
            " `snakemake train_embedded`"
        )


# --- Checks of drafters and draft models


def check_needs(method: str, model: str, spec: ModelSpec) -> None:
    """Check that an image model has the speculator that a method needs, if any, and that it was trained for it."""
    speculator = needs("discrete", method)
    if not speculator:
        return
    key = f"image.methods.{method}: models.{model}"
    if spec.source == "embedded":
        file = weights.EMBEDDED / f"{speculator}.safetensors"
        if spec.grid != 16:
            raise ConfigError(f"{key}.grid = {spec.grid} has no {speculator}; allowed: 16, or source files")
        if not file.exists():
            raise ConfigError(
                f"{key} has no {speculator} yet: {file.name} is missing; make it with `snakemake train_embedded`"
            )
    elif speculator not in spec.files:
        raise ConfigError(f"{key}.files = {sorted(spec.files)}: needs a {speculator} trained for this model")
    else:
        file = Path(spec.files[speculator])
    if spec.source != "hub" and file.exists():  # files of a hub are checked after the download
        check_speculator(model, spec, file, speculator)


def check_speculator(model: str, spec: ModelSpec, file: Path, component: str) -> None:
    """Check that the drafter or heads in `file` were trained for this target, or the draft model for one of its
    vocabulary and grid. `component`: "drafter", "heads" or "draft"."""
    trained_for = header(file) or read_target_sizes(file)
    in_folder = "model" in spec.files
    if component == "draft" and (in_folder or not trained_for):
        return  # a published model of the family, whose sizes are checked when it is fetched or loaded
    if in_folder:
        expected = {} if "target" in trained_for else read_target_sizes(Path(spec.files["model"]))
    else:
        sizes = read_sizes(spec)
        expected = {key: sizes[key] for key in ("vocab", "grid")}
    if component != "draft" and "input_type" not in trained_for and (not in_folder or "target" in trained_for):
        digests = sums(weights.EMBEDDED) if spec.source == "embedded" else spec.sha256
        name = list_embedded_files(spec)["transformer"] if spec.source == "embedded" else "transformer"
        expected["target"] = digests.get("model" if in_folder else name)
    for key, value in expected.items():
        if trained_for.get(key) != value:
            label = "the SHA-256 of its target" if key == "target" else f"its {key}"
            raise ConfigError(
                f"models.{model}: {component} {file.name} was trained for another target: {label} is"
                f" {str(trained_for.get(key))[:16]}; allowed: {str(value)[:16]}"
            )


def read_target_sizes(path: Path) -> dict[str, Any]:
    """Read what a released drafter's config.json, in the folder `path` or beside the file, says of its target: values
    of WORDS in transformers' layout, else vocabulary, grid and input_type; {} if it cannot be read."""
    try:
        config = foreign_json((path if path.is_dir() else path.parent) / "config.json")
        if "input_type" not in config:
            return {word: config[word] for word in WORDS}
        tokens = config.get("block_size") or TOKENS[config["input_type"]]
        return {"vocab": config["vocab_size"], "grid": round(tokens**0.5), "input_type": config["input_type"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


# --- Checks of text models


def check_text_folders(model: str, files: dict[str, str], network: str) -> None:
    """Check that a text model's folders, by component, hold config.json and tokenizer, which may lie in a folder of its
    own for the component `network`; those in repositories pass."""
    for component, folder in files.items():
        if folder.startswith(HUB):
            continue
        if component in ("tokenizer", "judge") or (component == network and "tokenizer" not in files):
            check_tokenizer(Path(folder), f"models.{model}.files.{component}")
        if component != "tokenizer" and not Path(folder, "config.json").is_file():
            raise ConfigError(
                f"models.{model}.files.{component} = {folder!r}: needs config.json; allowed: a folder as transformers"
                " saves it, or hub:owner/name@commit"
            )


def check_tokenizer(folder: Path, label: str) -> None:
    """Check that a folder holds tokenizer.json or vocab.json. `label` begins the message of the ConfigError."""
    if not any(Path(folder, name).is_file() for name in ("tokenizer.json", "vocab.json")):
        hint = " of its spiece.model (docs/howto/checkpoint.md says how)" if list(folder.glob("spiece.model")) else ""
        raise ConfigError(f"{label} = {str(folder)!r}: needs a tokenizer; allowed: a folder with tokenizer.json{hint}")


# --- Checks of continuous models


def check_captions(model: str, spec: ModelSpec, captions: PromptSpec | None) -> None:
    """Check that captions are given if a model reads them, and none if it does not, as embedded models do not."""
    is_embedded = spec.source == "embedded"
    reads = not is_embedded and read_constant("models/continuous", spec.family, "PROMPT") is not None
    if reads and captions is None:
        raise ConfigError(f"continuous.captions: {model} reads captions; needed: {{file: captions, one a line}}")
    if captions is not None and not reads:
        problem = "reads no captions of yours" if is_embedded else "reads no captions"
        raise ConfigError(f"continuous.captions.file = {captions.file!r}: {model} {problem}; allowed: no captions")


def check_pair(model: str, has_draft: bool, spec: ModelSpec) -> None:
    """Check that the files of a continuous model and, if a method drafts, of its draft model exist or are named, and
    that their sizes fit."""
    if spec.source != "embedded" and not spec.folder:
        check_published_pair(f"models.{model}", has_draft, spec)
    else:
        check_pair_folder(f"models.{model}", has_draft, spec)


def check_published_pair(key: str, has_draft: bool, spec: ModelSpec) -> None:
    """Check that a published pair names the draft model's file, if a method drafts, and allowed sizes. `key` begins the
    message."""
    if "released" not in read_family(spec.family):
        raise ConfigError(f"{key}.source = {spec.source!r}: {spec.family} has no published files; allowed: embedded")
    if has_draft and "draft" not in spec.files:
        raise ConfigError(f"{key}.files = {sorted(spec.files)}: needs draft, for a method that drafts")
    for name, value in spec.network.items():
        if name not in ("grid", "cell") or not isinstance(value, int) or not 1 <= value <= 256:
            raise ConfigError(f"{key}.network.{name} = {value}: allowed: grid and cell, 1 to 256")
    sizes = read_sizes(spec)
    if sizes["grid"] % sizes.get("cell", 1):
        raise ConfigError(f"{key}.network = {sizes}: grid; allowed: a multiple of cell")


def check_pair_folder(key: str, has_draft: bool, spec: ModelSpec) -> None:
    """Check a pair in a folder: its files exist, their headers say their sizes, and those of target and, if a method
    drafts, draft model agree. `key` begins the message."""
    folder = find_pair_folder(spec)
    if spec.folder and not (folder / "SHA256SUMS").exists():
        raise ConfigError(
            f"{key}.folder = {spec.folder!r}: no SHA256SUMS in it; allowed: a folder that `convert` wrote"
        )
    target = read_pair_header(key, folder / f"{spec.family}.safetensors", spec)
    if not has_draft:
        return
    draft = read_pair_header(key, folder / f"{spec.family}-draft.safetensors", spec)
    nouns = {"grid": "tokens a side", "dim": "numbers a token", "classes": "classes", "latents": "latents"}
    for name, noun in nouns.items():
        if str(draft.get(name)) != str(target.get(name)):
            raise ConfigError(
                f"{key}: draft and target differ in {noun}: {draft.get(name)} and {target.get(name)}; allowed: the same"
            )


def read_pair_header(key: str, file: Path, spec: ModelSpec) -> dict[str, Any]:
    """Read the sizes in the header of one file of a pair. Raises ConfigError if the file is missing or has none."""
    if not file.exists():
        remedy = f"allowed: what {file.parent} holds" if spec.folder else "make it with `snakemake train_continuous`"
        raise ConfigError(f"{key}: {file.name} is missing; {remedy}")
    sizes = header(file)
    if "grid" not in sizes:
        raise ConfigError(f"{key}: {file} says nothing of its sizes; allowed: a file that `convert` or a recipe wrote")
    return sizes
