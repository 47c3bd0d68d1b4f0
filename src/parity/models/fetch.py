"""Get a model's files, verify them by SHA-256, convert what is pickled: the manifest that everything loads from.

    {"kind", "family", "source", "files": {part: path}, "sha256": {part: digest}, "network": {sizes known beforehand}}

A digest of a file is what verifies it; of a folder it is that of its weights' digests. Loading trusts what was verified
here.
"""

import importlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from parity.base.errors import ParityError
from parity.base.files import header, sums
from parity.base.weights import PICKLED, check, plain, save_weights, sha256, shapes, tensors, unpickle, verified_files
from parity.experiment import checks, weights
from parity.experiment.config_types import HUB
from parity.experiment.prompt_specs import NetworkSpec
from parity.experiment.repositories import TextModel, WeightsSpec, repository
from parity.experiment.schema import ContinuousSection, ModelSpec
from parity.experiment.validation import validate
from parity.models.download import at_hand, download

MADE = "run `snakemake train_embedded`"


def manifest(kind: str, name: str, spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Bring a model's files to hand, verified; converted ones go to `folder`. ParityError for what cannot be had."""
    return {"kind": kind, "network": {}, **BY_KIND[kind](name, spec, folder)}


def discrete(name: str, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """given: a model of the section `image`, as its schema says."""
    what = f"image.models.{name}"
    spec = validate(ModelSpec, given, what)
    said = {"family": spec.family, "source": spec.source, "network": dict(spec.network)}
    if spec.source == "embedded":
        known = sums(weights.EMBEDDED)
        parts = weights.embedded_files(spec)
        if spec.grid == 16:
            parts |= {part: f"{part}.safetensors" for part in weights.COMPANIONS if f"{part}.safetensors" in known}
        return said | verified_files(weights.EMBEDDED, parts, what, MADE)
    files: dict[str, str] = {}
    module = importlib.import_module(f"parity.models.discrete.{spec.family}")
    for part, file in spec.files.items():
        here = Path(file).is_absolute() or (part == "text" and Path(file).exists())
        repo = spec.repo if spec.source == "hub" and not here else ""
        local = at_hand(file, spec.sha256[part], folder, repo, spec.revision)
        check(local, spec.sha256[part], f"{what}.files.{part}")
        own = getattr(module, "published", lambda *_: None)(part, local, spec)
        out = folder / f"{part}.safetensors"
        if own:
            save_weights(own[0], out, own[1])
        files[part] = str(out if own else converted(local, out))
    for companion in weights.COMPANIONS:
        if companion in files:
            weights.check_companion(name, spec.model_copy(update={"files": files}), Path(files[companion]), companion)
    return said | {"files": files, "sha256": dict(spec.sha256)}


def anysubset(name: str, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """given: the model of the section `text`; "xlnet" and "judge" are folders as transformers saves them, here or in
    repositories, or both "" for the embedded pair."""
    if not given["xlnet"] and not given["judge"]:
        parts = {part: f"{part}.safetensors" for part in weights.TEXT_PARTS}
        return {"family": "xlnet", "source": "embedded"} | verified_files(
            weights.ROOT / "anysubset", parts, "text.model", MADE
        )
    spec = validate(TextModel, given, "text.model")
    from parity.models.anysubset.vocabulary import check_words

    files = {part: getattr(spec, part) for part in (*weights.TEXT_PARTS, "tokenizer") if getattr(spec, part)}
    source = "hub" if any(where.startswith(HUB) for where in files.values()) else "files"
    files = {
        part: str(tokenizer_folder(w) if part == "tokenizer" else at_hand(w, "", folder)) for part, w in files.items()
    }
    weights.check_text_model(spec.model_copy(update=files))
    for part, total in spec.sha256.items():
        check(Path(files[part]), total, f"text.model.{part}")
    known: dict[Any, str] = spec.sha256
    totals = {part: known.get(part) or sha256(Path(files[part])) for part in weights.TEXT_PARTS}
    check_words(files)
    return {"family": "xlnet", "source": source, "files": files, "sha256": totals}


def tokenizer_folder(where: str) -> Path:
    """A folder with a tokenizer, here or of a repository, of which nothing else is fetched."""
    if not where.startswith(HUB):
        return Path(where)
    repo, revision = repository(where)
    folder = download(repo, revision, "tokenizer.json").parent
    for name in ("config.json", "tokenizer_config.json"):
        with suppress(ParityError):  # not every repository has both
            download(repo, revision, name)
    return folder


def continuous(name: str, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """given: {"family", "weights"}, a folder that `convert` wrote, published files, or "" for the embedded models; and
    "captions", for a model that reads them."""
    family, what = given["family"], given["weights"]
    where = Path(what or weights.ROOT / "continuous") if isinstance(what, str) else published(family, what, folder)
    names = {"target": family, "draft": f"{family}-draft", "kl": "kl", "classifier": "classifier"}
    parts = {part: f"{file}.safetensors" for part, file in names.items()} | {"tokenizer": f"{family}-tokenizer.json"}
    needed = {part: file for part, file in parts.items() if part in ("target", "kl") or file in sums(where)}
    found = verified_files(where, needed, "continuous.weights", f"{MADE}, or `parity.models convert`")
    said: dict[str, Any] = {"family": family, "source": "files" if what else "embedded"}
    if given.get("captions"):
        section = ContinuousSection.model_validate({"methods": {}, "captions": given["captions"]})
        said["captions"] = checks.captions_of(section)
    return said | found | {"network": header(Path(found["files"]["target"]))}


def judging(name: str, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """given: a network of the section `networks`, as its schema says; `family` of its manifest is its name there."""
    what = f"networks.{name}"
    spec = validate(NetworkSpec, given, what)
    local = at_hand(spec.file, spec.sha256, folder, spec.repo, spec.revision)
    check(local, spec.sha256, f"{what}.file")
    if name != "inception":  # whose library reads the pickle
        local = converted(local, folder / "weights.safetensors")
    said = {"family": name, "source": "hub" if spec.repo else "files", "network": {"architecture": spec.architecture}}
    return said | {"files": {"weights": str(local)}, "sha256": {"weights": spec.sha256}}


def published(family: str, given: dict[str, Any], folder: Path) -> Path:
    """Published files of a pair, verified and converted into `folder`."""
    from parity.models.continuous.published import convert, tokenizer_file

    spec = validate(WeightsSpec, given, "continuous.weights")
    files: dict[str, Path | None] = {}
    for part, file in spec.files.items():
        local = at_hand(file, spec.sha256[part], folder, spec.repo if spec.source == "hub" else "", spec.revision)
        local = tokenizer_file(local) if part == "tokenizer" else local
        check(local, spec.sha256[part], f"continuous.weights.files.{part}")
        files[part] = local
    target, module = files["target"], importlib.import_module(f"parity.models.continuous.{family}")
    assert target is not None
    said: dict[Any, int] = {**module.FAMILY["released"], **spec.network}
    grid = said["grid"] if hasattr(module, "resized") else 0
    convert(family, target, files.get("draft"), files.get("kl"), folder, files.get("tokenizer"), grid)
    for key, value in said.items():
        if (has := header(folder / f"{family}.safetensors").get(key, 1)) != value:
            raise ParityError(f"continuous.weights.network.{key} = {value}: allowed: {has}, as {target.name} has it")
    return folder


BY_KIND: dict[str, Callable[[str, Any, Path], dict[str, Any]]] = {
    "discrete": discrete,
    "anysubset": anysubset,
    "continuous": continuous,
    "networks": judging,
}


def converted(file: Path, out: Path) -> Path:
    """A pickled file's tensors as safetensors in `out`, under plain names; any other file, or a folder, as it is."""
    if file.is_dir() or (file.suffix not in PICKLED and all(plain(name) == name for name in shapes(file))):
        return file
    state = unpickle(file) if file.suffix in PICKLED else {plain(k): v for k, v in tensors(file, dtype=None)}
    save_weights(state, out)
    return out
