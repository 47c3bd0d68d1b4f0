"""Get a model's files, verify them by SHA-256, convert what is pickled: the manifest that everything loads from.

    {"kind", "family", "source", "files": {part: path}, "sha256": {part: digest}, "network": {sizes known beforehand}}

A digest of a file is what verifies it; of a folder it is that of its weights' digests. Loading trusts what was verified
here.
"""

import importlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from parity.base.errors import ParityError
from parity.base.files import header, sums
from parity.base.weights import PICKLED, check, plain, save_weights, sha256, shapes, tensors, unpickle, verified_files
from parity.experiment import checks, weights
from parity.experiment.schema import PINNED, ContinuousSection, ModelSpec, NetworkSpec
from parity.experiment.validation import validate
from parity.models.download import at_hand, download

MADE = "run `snakemake train_embedded`"
Files = dict[str, dict[str, str]]  # {"files": {part: path}, "sha256": {part: digest}}


def manifest(kind: str, name: str, raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Bring a model's files to hand, verified; converted ones go to `folder`. ParityError for what cannot be had.

    raw: an entry of `models` in the configuration, and "captions" for a continuous model that reads them; of kind
    "networks" an entry of `networks`.
    """
    if kind == "networks":
        return {"kind": kind, **judging(name, raw, folder)}
    captions = raw.get("captions")
    spec = validate(ModelSpec, {key: value for key, value in raw.items() if key != "captions"}, f"models.{name}")
    if spec.source == "embedded":
        files = embedded(kind, spec, f"models.{name}")
    elif kind == "continuous":
        files = pair(spec, Path(spec.folder) if spec.folder else convert_pair(name, spec, folder), f"models.{name}")
    else:
        files = (discrete if kind == "discrete" else anysubset)(name, spec, folder)
    network = header(Path(files["files"]["target"])) if kind == "continuous" else dict(spec.network)
    result: dict[str, Any] = {"kind": kind, "family": spec.family, "source": spec.source, "network": network, **files}
    if captions:
        section = ContinuousSection.model_validate({"methods": {}, "captions": captions})
        result["captions"] = checks.captions_of(section)
    return result


def embedded(kind: str, spec: ModelSpec, where: str) -> Files:
    """Files of an embedded model."""
    if kind == "continuous":
        return pair(spec, weights.pair_folder(spec), where)
    folder = weights.ROOT / kind
    if kind == "anysubset":
        parts = {part: f"{part}.safetensors" for part in weights.declared(spec.family)["files"]}
    else:
        folder, parts = weights.EMBEDDED, weights.embedded_files(spec)
        if spec.grid == 16:
            known = sums(folder)
            parts |= {part: f"{part}.safetensors" for part in weights.COMPANIONS if f"{part}.safetensors" in known}
    return verified_files(folder, parts, where, MADE)


def fetch_parts(name: str, spec: ModelSpec, folder: Path) -> dict[str, Path]:
    """A published model's files on this machine, fetched where they are elsewhere, each as its digest says."""
    local: dict[str, Path] = {}
    for part, file in spec.files.items():
        here = Path(file).is_absolute() or (part == "text" and Path(file).exists())
        repo = spec.repo if spec.source == "hub" and not here else ""
        digest = spec.sha256.get(part, "")
        if part == "tokenizer":
            local[part] = tokenizer(file, repo, spec.revision)
        else:
            local[part] = at_hand(file, digest, folder, repo, spec.revision)
        if digest:
            weighed = local[part] / "tokenizer.json" if part == "tokenizer" and local[part].is_dir() else local[part]
            check(weighed, digest, f"models.{name}.files.{part}")
    return local


def discrete(name: str, spec: ModelSpec, folder: Path) -> Files:
    """Files of a published model of images, those that torch reads converted into `folder`."""
    module, files = importlib.import_module(f"parity.models.discrete.{spec.family}"), {}
    for part, local in fetch_parts(name, spec, folder).items():
        own = getattr(module, "published", lambda *_: None)(part, local, spec)
        out = folder / f"{part}.safetensors"
        if own:
            save_weights(own[0], out, own[1])
        files[part] = str(out if own else converted(local, out))
    for companion in weights.COMPANIONS:
        if companion in files:
            weights.check_companion(name, spec.model_copy(update={"files": files}), Path(files[companion]), companion)
    return {"files": files, "sha256": dict(spec.sha256)}


def anysubset(name: str, spec: ModelSpec, folder: Path) -> Files:
    """Folders of a published text model and its judge, as transformers saves them."""
    from parity.models.anysubset.vocabulary import check_words

    files = {part: str(path) for part, path in fetch_parts(name, spec, folder).items()}
    weights.check_text_folders(name, files)
    needed = weights.declared(spec.family)["files"]
    digests = {part: spec.sha256.get(part) or sha256(Path(files[part])) for part in needed}
    check_words(files)
    return {"files": files, "sha256": digests}


def pair(spec: ModelSpec, where: Path, what: str) -> Files:
    """Files of a continuous pair in a folder of ours."""
    family = spec.family
    names = {"target": family, "draft": f"{family}-draft", "kl": "kl", "classifier": "classifier"}
    parts = {part: f"{file}.safetensors" for part, file in names.items()} | {"tokenizer": f"{family}-tokenizer.json"}
    needed = {part: file for part, file in parts.items() if part in ("target", "kl") or file in sums(where)}
    return verified_files(where, needed, what, f"{MADE}, or `parity.models convert`")


def convert_pair(name: str, spec: ModelSpec, folder: Path) -> Path:
    """Published files of a continuous pair, converted into `folder`."""
    from parity.models.continuous.published import convert

    files, module = fetch_parts(name, spec, folder), importlib.import_module(f"parity.models.continuous.{spec.family}")
    sizes = {**module.FAMILY["released"], **spec.network}
    grid = int(sizes["grid"]) if hasattr(module, "resized") else 0
    convert(spec.family, files["target"], files.get("draft"), files.get("kl"), folder, files.get("tokenizer"), grid)
    for key, value in sizes.items():
        if (has := header(folder / f"{spec.family}.safetensors").get(key, 1)) != value:
            raise ParityError(
                f"models.{name}.network.{key} = {value}: allowed: {has}, as {files['target'].name} has it"
            )
    return folder


def tokenizer(where: str, repo: str, revision: str) -> Path:
    """A tokenizer's file or folder, here or of a repository, of which nothing else is fetched."""
    if other := PINNED.fullmatch(where):
        repo, revision, where = other["repo"], other["commit"], other["path"] or "."
    if not repo:
        return Path(where)
    if where.endswith(".json"):
        return download(repo, revision, where)
    below = "" if where in ("", ".", "./") else f"{where.strip('/')}/"
    folder = download(repo, revision, f"{below}tokenizer.json").parent
    for name in ("config.json", "tokenizer_config.json"):
        with suppress(ParityError):  # not every repository has both
            download(repo, revision, f"{below}{name}")
    return folder


def judging(name: str, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """given: a network of the section `networks`, as its schema says; `family` of its manifest is its name there."""
    what = f"networks.{name}"
    spec = validate(NetworkSpec, given, what)
    local = at_hand(spec.file, spec.sha256, folder, spec.repo, spec.revision)
    check(local, spec.sha256, f"{what}.file")
    if name != "inception":  # whose library reads the pickle
        local = converted(local, folder / "weights.safetensors")
    record = {"family": name, "source": "hub" if spec.repo else "files", "network": {"architecture": spec.architecture}}
    return record | {"files": {"weights": str(local)}, "sha256": {"weights": spec.sha256}}


def converted(file: Path, out: Path) -> Path:
    """A pickled file's tensors as safetensors in `out`, under plain names; any other file, or a folder, as it is."""
    if file.is_dir() or (file.suffix not in PICKLED and all(plain(name) == name for name in shapes(file))):
        return file
    state = unpickle(file) if file.suffix in PICKLED else {plain(k): v for k, v in tensors(file, dtype=None)}
    save_weights(state, out)
    return out
