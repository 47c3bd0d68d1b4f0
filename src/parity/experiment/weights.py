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
    """Modules of models/<kind> that declare FAMILY."""
    return tuple(m for m in modules(f"models/{kind}") if read_constant(f"models/{kind}", m, "FAMILY") is not None)


def find_kind(family: str, where: str = "family") -> str:
    """The kind of a family's models; ConfigError for a family that is not there."""
    kind = next((kind for kind in KINDS if family in list_families(kind)), None)
    if kind is None:
        allowed = ", ".join(name for kind in KINDS for name in list_families(kind))
        raise ConfigError(f"{where} = {family!r}: unknown family; allowed: {allowed}")
    return kind


def read_family(family: str) -> dict[str, Any]:
    """A family's FAMILY; ConfigError for one that is not there, or lacks a key."""
    kind = find_kind(family)
    values = read_constant(f"models/{kind}", family, "FAMILY")
    if lacks := [key for key in DECLARED[kind] if key not in values]:
        raise ConfigError(
            f"src/parity/models/{kind}/{family}.py: FAMILY has no {lacks[0]!r}; needed: {', '.join(DECLARED[kind])}"
        )
    return values


def models(config: Config, kind: str) -> dict[str, ModelSpec]:
    """An experiment's models of a kind by name: those that it names, or the embedded one."""
    chosen = {name: spec for name, spec in config.models.items() if find_kind(spec.family) == kind}
    name, family = DEFAULT[kind]
    return chosen or {name: ModelSpec(family=family)}


def list_embedded_files(spec: ModelSpec) -> dict[str, str]:
    """Files of an embedded model by part; the transformer's name ends in its grid where that is not 16."""
    files = read_family(spec.family)["embedded"]
    if not files:
        raise ConfigError(f"family = {spec.family!r}: no model of it is embedded; allowed: source hub, or files")
    transformer = f"{files['transformer']}{'' if spec.grid == 16 else spec.grid}"
    return {part: f"{transformer if part == 'transformer' else file}.safetensors" for part, file in files.items()}


def sizes(spec: ModelSpec) -> dict[str, Any]:
    """A model's sizes, as far as they are known without published files; of text models none."""
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
    """The tokens of square pictures, `grid` a side; or of rows and columns of codes, `line` tokens behind each row and
    `end` behind the last."""
    known = sizes(spec)
    rows, columns = (int(known.get(key, known.get("grid", 1))) for key in ("rows", "columns"))
    width = columns + int(known.get("line", 0))
    return Places(rows, width, rows * width + int(known.get("end", 0)))


def check_network(model: str, spec: ModelSpec) -> None:
    """ConfigError for sizes of a published model that its family does not have, or that no network has."""
    family = read_family(spec.family)
    known = family.get("sizes", {})
    if spec.source == "embedded" or not known:
        return
    values = {**known, **spec.network}

    def refuse(key: str, allowed: str) -> None:
        problem = "unknown size; allowed" if key not in known else "allowed"
        raise ConfigError(f"models.{model}.network.{key} = {values[key]}: {problem}: {allowed}")

    for key, value in spec.network.items():
        if key not in known:
            refuse(key, ", ".join(known))
        whole = isinstance(known[key], int)
        if (whole and not isinstance(value, int)) or not 0 <= value <= 10**9:
            refuse(key, f"{'a whole' if whole else 'a'} number, 0 to 1e9")
    for key, least in (("vocab", 2), ("grid", 1), ("rows", 1), ("columns", 1)):
        if values.get(key, least) < least:
            refuse(key, f"{least} or more")
    for key, most in family.get("at_most", {}).items():
        if values[key] > most:
            refuse(key, f"at most {most}")
    for key, step in family.get("multiples", {}).items():
        if values[key] % step and values.get("line"):
            refuse(key, f"a multiple of {step}")
    for key, of in family.get("divides", {}).items():
        if not values[key] or values[of] % values[key]:
            refuse(key, f"a divisor of {of}, {values[of]}")


def check_files(model: str, spec: ModelSpec) -> None:
    """ConfigError for parts that a published model's family needs and are not named, for files that are not there, and
    for an address or a repository that cannot be one."""
    if spec.source == "embedded" or spec.folder:
        return
    family, where = read_family(spec.family), f"models.{model}.files"
    needed = family.get("files", ("target",))
    allowed = (*needed, *family.get("also", ("draft", "kl", "tokenizer")))
    classes = {**family.get("sizes", {}), **spec.network}.get("classes")
    for part in needed:
        if part not in spec.files and not (part == "text" and classes):
            raise ConfigError(f"{where} = {sorted(spec.files)}: needs {part}")
    for part, file in spec.files.items():
        if part not in allowed:
            raise ConfigError(f"{where}.{part}: {spec.family} has no such part; allowed: {', '.join(allowed)}")
        remote = file.startswith(("https://", "http://", HUB))
        # the digests of a text model's folders are taken here; a tokenizer's folder has no weights
        unsigned = part == "tokenizer" or (find_kind(spec.family) == "anysubset" and not remote)
        if part not in spec.sha256 and not unsigned:
            raise ConfigError(f"models.{model}.sha256: needs {part}; `python -m parity.models pin` finds it")
        if remote and not PINNED.fullmatch(file) and not re.fullmatch(r"https?://[^/@\s]+/[^\s]+", file):
            raise ConfigError(
                f"{where}.{part} = {file!r}: allowed: https://host/file, or hub:owner/name@commit:path with the 40-hex"
                " commit; a branch would move"
            )
        here = spec.source == "files" or Path(file).is_absolute() or (part == "text" and not file.endswith("/"))
        if here and not remote and not Path(file).exists():
            raise ConfigError(f"{where}.{part} = {file!r}: no such file")


def list_option_sizes(spec: ModelSpec) -> dict[str, int]:
    """The sizes of a model that bound options (`parity_decoders.counts.SIZES`): positions, or groups that are drawn at
    once; positions of a row; tokens. None of a text model."""
    kind = find_kind(spec.family)
    if kind == "anysubset":
        return {}
    known = sizes(spec)
    if kind == "continuous":
        return {"length": (known["grid"] // known.get("cell", 1)) ** 2}
    places, vocab = count_positions(spec), int(known["vocab"])
    return {"length": places.length, "row": places.width, "vocab": vocab, "vocab - 1": vocab - 1}


def compute_revision(spec: ModelSpec, captions: PromptSpec | None = None) -> str:
    """What identifies a model: the digest of its files' digests, and of the captions that it reads."""
    kind, embedded, name = find_kind(spec.family), spec.source == "embedded", spec.family
    if kind == "continuous":
        read = captions and [
            captions.model_dump(exclude={"shards", "jobs", "repeats"}),
            digests.digest_file(Path(captions.file)),
        ]
        if not embedded and not spec.folder:
            return digest([name, spec.sha256, spec.network, read])
        known = sums(pair_folder(spec))
        files = [known.get(f"{part}.safetensors") for part in ("kl", name, f"{name}-draft")]
        words = known.get(f"{name}-tokenizer.json")
        return digest([*files, *([words] if words else []), *([read] if read else [])])
    if kind == "anysubset" and not embedded:
        totals = [
            spec.sha256.get(part) or digests.sha256(Path(spec.files[part])) for part in read_family(name)["files"]
        ]
        return digest([totals, [f if f.startswith(HUB) else digest_tokenizer(f) for f in spec.files.values()]])
    if not embedded:
        return digest([spec.revision, spec.network, spec.sha256])
    known = sums(EMBEDDED if kind == "discrete" else ROOT / kind)
    wanted = list_embedded_files(spec).values() if kind == "discrete" else known
    lines = "".join(f"{total}  {file}\n" for file, total in known.items() if file in wanted)
    return hashlib.sha256(lines.encode()).hexdigest()[:8] if known else "untrained"


def check_trained(model: str, spec: ModelSpec) -> None:
    """ConfigError for an embedded model of a size that was not trained here."""
    if spec.source != "embedded":
        return
    file = list_embedded_files(spec)["transformer"]
    if spec.grid != 16 and not (EMBEDDED / file).exists():
        raise ConfigError(
            f"models.{model}.grid = {spec.grid}: {file} is missing; allowed: 16, or make it with"
            " `snakemake train_embedded`"
        )


def read_target_sizes(path: Path) -> dict[str, Any]:
    """Sizes of its target in the config.json of a released drafter, a folder or the file's: WORDS, where both are
    folders in transformers' layout; {} where there are none."""
    try:
        config = foreign_json((path if path.is_dir() else path.parent) / "config.json")
        if "input_type" not in config:
            return {word: config[word] for word in WORDS}
        tokens = config.get("block_size") or TOKENS[config["input_type"]]
        return {"vocab": config["vocab_size"], "grid": round(tokens**0.5), "input_type": config["input_type"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def check_companion(model: str, spec: ModelSpec, file: Path, part: str) -> None:
    """ConfigError for a drafter, or a draft model, that was trained for another target. A draft model fits every target
    of its size."""
    trained_for, at = header(file) or read_target_sizes(file), sizes(spec)
    wanted = (
        read_target_sizes(Path(spec.files["model"])) if "model" in spec.files else {k: at[k] for k in ("vocab", "grid")}
    )
    if part == "drafter" and "grid" in wanted and "input_type" not in trained_for:
        embedded = spec.source == "embedded"
        wanted["target"] = (
            sums(EMBEDDED).get(list_embedded_files(spec)["transformer"]) if embedded else spec.sha256.get("transformer")
        )
    for key, value in wanted.items():
        if trained_for.get(key) != value:
            what = "the SHA-256 of its target" if key == "target" else f"its {key}"
            raise ConfigError(
                f"models.{model}: {part} {file.name} was trained for another target: {what} is"
                f" {str(trained_for.get(key))[:16]}; allowed: {str(value)[:16]}"
            )


def check_needs(method: str, model: str, spec: ModelSpec) -> None:
    """ConfigError if a method needs a companion that a model does not have, or that is another model's."""
    part, where = needs("discrete", method), f"image.methods.{method}: models.{model}"
    if not part:
        return
    file = EMBEDDED / f"{part}.safetensors" if spec.source == "embedded" else Path(spec.files.get(part, ""))
    if spec.source == "embedded" and spec.grid != 16:
        raise ConfigError(f"{where}.grid = {spec.grid} has no {part}; allowed: 16, or source files")
    if spec.source == "embedded" and not file.exists():
        raise ConfigError(f"{where} has no {part} yet: {file.name} is missing; make it with `snakemake train_embedded`")
    if spec.source != "embedded" and part not in spec.files:
        raise ConfigError(f"{where}.files = {sorted(spec.files)}: needs a {part} trained for this model")
    if spec.source != "hub" and file.exists():  # else it is checked when it has been downloaded
        check_companion(model, spec, file, part)


def compute_network_revision(spec: NetworkSpec) -> str:
    """What identifies a network that judges pictures."""
    return digest([spec.sha256, spec.architecture])


def read_protocols() -> dict[str, Any]:
    """The recipes by which pictures of published models are measured, as their module declares them."""
    return read_constant("metrics", "protocols", "PROTOCOLS")


def digest_tokenizer(where: str) -> dict[str, str]:
    """Digests of the files of a folder that make its tokenizer, by name."""
    words = [f for p in ("*token*", "*.model", "vocab*", "merges*") for f in sorted(Path(where).glob(p))]
    return {file.name: digests.digest_file(file) for file in words}


def check_text_folders(model: str, files: dict[str, str]) -> None:
    """ConfigError for folders of a text model, by part, without what transformers saves."""
    for part, where in files.items():
        if where.startswith(HUB):
            continue
        if part == "tokenizer" or (part == "xlnet" and "tokenizer" not in files) or part == "judge":
            check_tokenizer(Path(where), f"models.{model}.files.{part}")
        if part != "tokenizer" and not Path(where, "config.json").is_file():
            raise ConfigError(
                f"models.{model}.files.{part} = {where!r}: needs config.json; allowed: a folder as transformers saves"
                " it, or hub:owner/name@commit"
            )


def check_tokenizer(folder: Path, what: str) -> None:
    """ConfigError, which begins with `what`, for a folder without a tokenizer that can be read."""
    if not any(Path(folder, name).is_file() for name in ("tokenizer.json", "vocab.json")):
        alone = " of its spiece.model (docs/howto/checkpoint.md says how)" if list(folder.glob("spiece.model")) else ""
        raise ConfigError(f"{what} = {str(folder)!r}: needs a tokenizer; allowed: a folder with tokenizer.json{alone}")


def pair_folder(spec: ModelSpec) -> Path:
    """The folder of a continuous pair's weights: the embedded ones', or what `convert` wrote."""
    return Path(spec.folder or ROOT / "continuous")


def check_captions(model: str, spec: ModelSpec, captions: PromptSpec | None) -> None:
    """ConfigError for a published model that reads captions without any, or for captions of a model that reads none."""
    embedded = spec.source == "embedded"
    reads = not embedded and read_constant("models/continuous", spec.family, "PROMPT") is not None
    if reads and captions is None:
        raise ConfigError(f"continuous.captions: {model} reads captions; needed: {{file: captions, one a line}}")
    if captions is not None and not reads:
        problem = "reads no captions of yours" if embedded else "reads no captions"
        raise ConfigError(f"continuous.captions.file = {captions.file!r}: {model} {problem}; allowed: no captions")


def check_pair(model: str, draft: bool, spec: ModelSpec) -> None:
    """ConfigError for files that are missing or say nothing of their sizes, for sizes that no network has, and for a
    draft of other tokens, latents or classes."""
    where, family, known = f"models.{model}", read_family(spec.family), sizes(spec)
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
        if known["grid"] % known.get("cell", 1):
            raise ConfigError(f"{where}.network = {known}: grid; allowed: a multiple of cell")
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
        target, *others = (str(h.get(key)) for h in headers)
        if others and others[0] != target:
            raise ConfigError(
                f"{where}: draft and target differ in {noun}: {others[0]} and {target}; allowed: the same"
            )
