"""Which weights an experiment names: their folders, digests, and the sizes in their headers. Imports no torch."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from parity.base import digests
from parity.base.errors import ConfigError
from parity.base.files import digest, header, sums
from parity.experiment.config_types import HUB
from parity.experiment.module_metadata import PACKAGE, constant, modules
from parity.experiment.options import needs
from parity.experiment.prompt_specs import NetworkSpec
from parity.experiment.remote_parts import check_place, released
from parity.experiment.repositories import TextModel
from parity.experiment.schema import ContinuousSection, ModelSpec

ROOT = PACKAGE / "embedded/weights"
EMBEDDED = ROOT / "discrete"
COMPANIONS = ("drafter", "draft")  # networks that some methods need beside the target
TEXT_PARTS = ("xlnet", "judge")
SAYS = {  # keys of a family's declaration; their meanings stand in models/<kind>/protocol.py
    "discrete": ("files", "also", "embedded", "network"),
    "anysubset": ("files",),
    "continuous": ("condition", "causal", "single_path", "samplers", "schedules", "reads"),
}


def families(kind: str) -> tuple[str, ...]:
    """Modules of models/<kind> that declare FAMILY."""
    return tuple(m for m in modules(f"models/{kind}") if constant(f"models/{kind}", m, "FAMILY") is not None)


def family(kind: str, name: str, where: str) -> dict[str, Any]:
    """What a family declares of itself; ConfigError for one that is not there."""
    if name not in families(kind):
        raise ConfigError(f"{where} = {name!r}: unknown family; allowed: {', '.join(families(kind))}")
    said = constant(f"models/{kind}", name, "FAMILY")
    if lacks := [key for key in SAYS[kind] if key not in said]:
        raise ConfigError(
            f"src/parity/models/{kind}/{name}.py: FAMILY has no {lacks[0]!r}; needed: {', '.join(SAYS[kind])}"
        )
    return said


def embedded_files(spec: ModelSpec) -> dict[str, str]:
    """Files of an embedded model by part; the transformer's name ends in its grid where that is not 16."""
    named = family("discrete", spec.family, "family")["embedded"]
    if not named:
        raise ConfigError(f"family = {spec.family!r}: no model of it is embedded; allowed: source hub, or files")
    sized = f"{named['transformer']}{'' if spec.grid == 16 else spec.grid}"
    return {part: f"{sized if part == 'transformer' else file}.safetensors" for part, file in named.items()}


def network(spec: ModelSpec) -> dict[str, Any]:
    """A transformer's configuration, as far as it is known before the file is to hand."""
    if spec.source != "embedded":
        return {**family("discrete", spec.family, "family")["network"], **spec.network}
    return {"grid": spec.grid, "vocab": 1024} | header(EMBEDDED / embedded_files(spec)["transformer"])


class Places(NamedTuple):
    """Where the tokens of a model's pictures stand: its grammar's, too."""

    rows: int
    width: int  # in a row, the separators' included
    length: int


def places_of(spec: ModelSpec) -> Places:
    """Of square pictures of `grid` tokens a side; or of rows and columns of codes, `line` tokens behind each row and
    `end` behind the last."""
    said = network(spec)
    rows, columns = (int(said.get(key, said.get("grid", 1))) for key in ("rows", "columns"))
    width = columns + int(said.get("line", 0))
    return Places(rows, width, rows * width + int(said.get("end", 0)))


def check_network(model: str, spec: ModelSpec) -> None:
    """ConfigError for sizes of a published model that its family does not have, or that no network has."""
    said, where = family("discrete", spec.family, "family"), f"image.models.{model}.network"
    known = said.get("sizes", {})
    if spec.source == "embedded" or not known:
        return
    for key, value in spec.network.items():
        if key not in known:
            raise ConfigError(f"{where}.{key} = {value}: unknown size; allowed: {', '.join(known)}")
        whole = isinstance(known[key], int)
        if (whole and not isinstance(value, int)) or not 0 <= value <= 10**9:
            raise ConfigError(f"{where}.{key} = {value}: allowed: {'a whole' if whole else 'a'} number, 0 to 1e9")
    sizes = {**known, **spec.network}
    for key, least in (("vocab", 2), ("grid", 1), ("rows", 1), ("columns", 1)):
        if sizes.get(key, least) < least:
            raise ConfigError(f"{where}.{key} = {sizes[key]}: allowed: {least} or more")
    for key, most in said.get("at_most", {}).items():
        if sizes[key] > most:
            raise ConfigError(f"{where}.{key} = {sizes[key]}: allowed: at most {most}")
    for key, step in said.get("multiples", {}).items():
        if sizes[key] % step and sizes.get("line"):
            raise ConfigError(f"{where}.{key} = {sizes[key]}: allowed: a multiple of {step}")
    for part, of in said.get("divides", {}).items():
        if not sizes[part] or sizes[of] % sizes[part]:
            raise ConfigError(f"{where}.{part} = {sizes[part]}: allowed: a divisor of {of}, {sizes[of]}")


def check_files(model: str, spec: ModelSpec) -> None:
    """ConfigError for parts that a published model's family needs and are not named, and for files that are not
    there."""
    said, where = family("discrete", spec.family, "family"), f"image.models.{model}.files"
    if spec.source == "embedded":
        return
    classes = {**said.get("sizes", {}), **spec.network}.get("classes")
    for part in said["files"]:
        if part not in spec.files and not (part == "text" and classes):
            raise ConfigError(f"{where} = {sorted(spec.files)}: needs {part}")
    allowed = (*said["files"], *said["also"])
    for part, file in spec.files.items():
        if part not in allowed:
            raise ConfigError(f"{where}.{part}: {spec.family} has no such part; allowed: {', '.join(allowed)}")
        if file.startswith(("https://", "http://", "hub:")):
            check_place(file, f"{where}.{part}")
            continue
        here = spec.source == "files" or Path(file).is_absolute() or (part == "text" and not file.endswith("/"))
        if here and not Path(file).exists():
            raise ConfigError(f"{where}.{part} = {file!r}: no such file")


def largest(spec: ModelSpec) -> dict[str, int]:
    """The largest value a model admits of an option: no window longer than the sequence, no lead longer than a row, no
    group larger than the codebook."""
    at, vocab = places_of(spec), int(network(spec)["vocab"])
    return {"window": at.length, "ahead": at.width, "group": vocab, "k": vocab - 1, "top_k": vocab}


def revision(spec: ModelSpec) -> str:
    """What identifies a discrete model's weights: the digest of its files' digests."""
    if spec.source != "embedded":
        return digest([spec.revision, spec.network, spec.sha256])
    known = sums(EMBEDDED)
    if not known:
        return "untrained"
    wanted = embedded_files(spec).values()
    lines = [f"{total}  {name}\n" for name, total in known.items() if name in wanted]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:8]


def check_trained(model: str, spec: ModelSpec) -> None:
    """ConfigError for an embedded model of a size that was not trained here."""
    if spec.source != "embedded":
        return
    file = embedded_files(spec)["transformer"]
    if spec.grid != 16 and not (EMBEDDED / file).exists():
        raise ConfigError(
            f"image.models.{model}.grid = {spec.grid}: {file} is missing; allowed: 16, or make it with"
            f" `python -m parity.training {file.removesuffix('.safetensors')}`, or all with `snakemake train_embedded`"
        )


def check_companion(model: str, spec: ModelSpec, file: Path, part: str) -> None:
    """ConfigError for a drafter or draft model that was trained for another target. A draft model fits every target of
    its size."""
    said, at = header(file) or released(file), network(spec)
    wanted = released(Path(spec.files["model"])) if "model" in spec.files else {k: at[k] for k in ("vocab", "grid")}
    if part == "drafter" and "grid" in wanted and "input_type" not in said:
        embedded = spec.source == "embedded"
        wanted["target"] = (
            sums(EMBEDDED).get(embedded_files(spec)["transformer"]) if embedded else spec.sha256.get("transformer")
        )
    for key, value in wanted.items():
        if said.get(key) != value:
            what = "the SHA-256 of its target" if key == "target" else f"its {key}"
            raise ConfigError(
                f"image.models.{model}: {part} {file.name} was trained for another target: {what} is"
                f" {str(said.get(key))[:16]}; allowed: {str(value)[:16]}"
            )


def check_needs(method: str, model: str, spec: ModelSpec) -> None:
    """ConfigError if a method needs a companion that a model does not have, or that is another model's."""
    part, where = needs("discrete", method), f"image.methods.{method}: image.models.{model}"
    if not part:
        return
    named = next((file for key, file in spec.files.items() if key == part), "")
    file = EMBEDDED / f"{part}.safetensors" if spec.source == "embedded" else Path(named)
    if spec.source == "embedded" and spec.grid != 16:
        raise ConfigError(f"{where}.grid = {spec.grid} has no {part}; allowed: 16, or source files")
    if spec.source == "embedded" and not file.exists():
        raise ConfigError(
            f"{where} has no {part} yet: {file.name} is missing; make it with"
            f" `python -m parity.training {part}`, or all with `snakemake train_embedded`"
        )
    if spec.source != "embedded" and not named:
        raise ConfigError(f"{where}.files = {sorted(spec.files)}: needs a {part} trained for this model")
    if spec.source != "hub" and file.exists():  # else it is checked when it has been downloaded
        check_companion(model, spec, file, part)


def network_revision(spec: NetworkSpec) -> str:
    """What identifies a network that judges pictures."""
    return digest([spec.sha256, spec.architecture])


def protocols() -> dict[str, Any]:
    """The recipes by which pictures of published models are measured, as their module declares them."""
    return constant("metrics", "protocols", "PROTOCOLS")


def words_of(where: str) -> dict[str, str]:
    """Digests of the files of a folder that make its tokenizer, by name; none of a repository, whose commit says it."""
    found = [f for p in ("*token*", "*.model", "vocab*", "merges*") for f in sorted(Path(where).glob(p))]
    return {file.name: digests.of_file(file) for file in found}


def total(folder: str) -> str:
    """The digest of a folder's weights, taken once for as long as they stay as they are."""
    stats = [file.stat() for file in digests.parts(Path(folder))]
    return _total(folder, tuple((s.st_size, s.st_mtime_ns) for s in stats))


@cache
def _total(folder: str, stamps: tuple[tuple[int, int], ...]) -> str:
    return digests.sha256(Path(folder))


def text_revision(model: TextModel) -> str:
    """What identifies the text models' weights: the digest of the embedded list, or of what is given in their place."""
    check_text_model(model)
    if model.xlnet:
        known: dict[Any, str] = model.sha256
        given = [f for f in (model.xlnet, model.judge, model.tokenizer) if f]
        read = [known.get(part) or total(getattr(model, part)) for part in TEXT_PARTS]
        return digest([read, [f if f.startswith(HUB) else words_of(f) for f in given]])
    lock = ROOT / "anysubset/SHA256SUMS"
    return hashlib.sha256(lock.read_bytes()).hexdigest()[:8] if lock.exists() else "untrained"


def check_text_model(model: TextModel) -> None:
    """ConfigError for one of two, and for folders that are not there, or do not hold what transformers saves."""
    if bool(model.xlnet) != bool(model.judge):
        raise ConfigError(f"text.model.{'judge' if model.xlnet else 'xlnet'} = '': allowed: both folders, or neither")
    for part in (*TEXT_PARTS, "tokenizer"):
        where = getattr(model, part)
        if where.startswith(HUB) or not where:
            continue
        folder = Path(where)
        holds = (
            any(any(folder.glob(p)) for p in ("tokenizer.json", "*.model", "vocab.json"))
            if part == "tokenizer"
            else (folder / "config.json").is_file() and any(any(folder.glob(p)) for p in digests.KINDS)
        )
        if not holds:
            wanted = "a tokenizer" if part == "tokenizer" else f"config.json and {' or '.join(digests.KINDS)}"
            raise ConfigError(
                f"text.model.{part} = {where!r}: needs {wanted}; allowed: a folder as transformers saves it,"
                " or hub:owner/name@commit"
            )


def continuous_folder(section: ContinuousSection) -> Path:
    """Where the weights of continuous models are; published files have no folder before they are brought to hand."""
    return Path(section.weights or ROOT / "continuous") if isinstance(section.weights, str) else Path()


def sizes(model: str, section: ContinuousSection) -> dict[str, Any]:
    """A continuous model's sizes, as far as they are known before its files are to hand."""
    if isinstance(section.weights, str):
        return header(continuous_folder(section) / f"{model}.safetensors")
    return {**family("continuous", model, "continuous.models").get("released", {}), **section.weights.network}


def places(model: str, section: ContinuousSection) -> int:
    """Places of an image of a continuous model: its tokens, or groups of them that are drawn at once."""
    said = sizes(model, section)
    return (said["grid"] // said.get("cell", 1)) ** 2


def continuous_revision(model: str, section: ContinuousSection) -> str:
    """Of every file a continuous model's images depend on."""
    told = section.captions and [
        section.captions.model_dump(exclude={"shards", "jobs", "repeats"}),
        digests.of_file(Path(section.captions.file)),
    ]
    if not isinstance(section.weights, str):
        return digest([model, section.weights.sha256, section.weights.network, told])
    known = sums(continuous_folder(section))
    files = [known.get(f"{name}.safetensors") for name in ("kl", model, f"{model}-draft")]
    words = known.get(f"{model}-tokenizer.json")
    return digest([*files, *([words] if words else []), *([told] if told else [])])


def check_captions(model: str, section: ContinuousSection) -> None:
    """ConfigError for a published model that reads captions and is given none, or one that reads none."""
    reads = section.weights != "" and constant("models/continuous", model, "PROMPT") is not None
    if reads and section.captions is None:
        raise ConfigError(f"continuous.captions: {model} reads captions; needed: {{file: captions, one a line}}")
    if section.captions is not None and not reads:
        what = "reads no captions of yours" if section.weights == "" else "reads no captions"
        raise ConfigError(f"continuous.captions.file = {section.captions.file!r}: {model} {what}; allowed: no captions")


def check_published(model: str, draft: bool, section: ContinuousSection) -> None:
    """ConfigError for published files that are not there, or lack what the methods need."""
    spec = section.weights
    assert not isinstance(spec, str)
    where = "continuous.weights.files"
    if "released" not in family("continuous", model, "continuous.models"):
        raise ConfigError(f"continuous.models: {model} has no published files; allowed: weights ''")
    if len(section.models) > 1:
        raise ConfigError(f"continuous.models = {section.models}: allowed with published files: the one that they are")
    if draft and "draft" not in spec.files:
        raise ConfigError(f"{where} = {sorted(spec.files)}: needs draft, for a method that drafts")
    for part, file in spec.files.items():
        if spec.source == "files" and not file.startswith(HUB) and not Path(file).exists():
            raise ConfigError(f"{where}.{part} = {file!r}: no such file")
    said = sizes(model, section)
    if said["grid"] % said.get("cell", 1):
        raise ConfigError(f"continuous.weights.network = {said}: grid; allowed: a multiple of cell")


def check_pair(model: str, draft: bool, section: ContinuousSection) -> None:
    """ConfigError for weights that are missing, or for a draft of other tokens, latents or classes."""
    check_captions(model, section)
    if not isinstance(section.weights, str):
        return check_published(model, draft, section)
    weights = continuous_folder(section)
    files = [weights / f"{model}.safetensors", *([weights / f"{model}-draft.safetensors"] if draft else [])]
    for file in files:
        if not file.exists():
            ours = weights == ROOT / "continuous"
            made = "make it with `snakemake train_continuous`" if ours else f"allowed: what {weights} holds"
            raise ConfigError(f"continuous.models: {file.name} is missing; {made}")
        if "grid" not in header(file):
            raise ConfigError(
                f"continuous.models: {file} says nothing of its sizes; allowed: a file that `convert` or a recipe wrote"
            )
    said = [header(f) for f in files]
    for key, what in (
        ("grid", "tokens a side"),
        ("dim", "numbers a token"),
        ("classes", "classes"),
        ("latents", "latents"),
    ):
        values = [h.get(key) for h in said]
        if len(set(map(str, values))) > 1:
            raise ConfigError(
                f"continuous.models.{model}: draft and target differ in {what}: {values[1]} and {values[0]};"
                " allowed: the same"
            )
