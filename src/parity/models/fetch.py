"""Get a model's files, verify them by SHA-256, convert what is pickled: the manifest that everything loads from.

    {"kind", "family", "source", "files": {part: path}, "sha256": {part: digest}, "network": {sizes known beforehand},
     "verified": [[key of the configuration, path, digest], ...]}

The digest of a folder is that of its weights' digests. "files" are what is loaded, "verified" what was fetched, before
any conversion: every job checks that it is the same still (`digests.read_manifest`).
"""

import importlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.base.digests import list_verified
from parity.base.errors import ParityError
from parity.base.files import header, sums
from parity.base.weights import (
    PICKLED,
    check,
    read_shapes,
    save_weights,
    sha256,
    strip_wrappers,
    tensors,
    unpickle,
    verify_files,
)
from parity.experiment import checks, model_checks, pins, weights
from parity.experiment.schema import PINNED, ContinuousSection, ModelSpec, NetworkSpec, validate
from parity.models import hub

MADE = "run `snakemake train_embedded`"
RESHAPED = {"grid": "resize", "cell": "regroup"}  # a continuous family's function that gives weights this size
FILES = (".safetensors", *PICKLED, ".json", ".model")  # a path in a repository that ends otherwise is a folder
Files = dict[str, Any]  # a manifest's "files", "sha256" and "verified"


def make_manifest(kind: str, name: str, raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fetch and verify a model's files, and return its manifest; converted files are written to `folder`. Raises
    ParityError for files that cannot be fetched or are others. name: what messages call the model.

    raw: an entry of `models` in the configuration, and "captions" for a continuous model that reads them; of kind
    "networks" an entry of `networks`.
    """
    if kind == "networks":
        return {"kind": kind, **fetch_judge(name, raw, folder)}
    captions = raw.get("captions")
    spec = validate(ModelSpec, {key: value for key, value in raw.items() if key != "captions"}, f"models.{name}")
    if kind == "continuous":
        if spec.source == "embedded" or spec.folder:
            files = verify_pair(spec, weights.find_pair_folder(spec), name)
        else:
            files = convert_pair(name, spec, folder)
    elif spec.source == "embedded":
        files = verify_embedded(kind, spec, f"models.{name}")
    else:
        files = (fetch_discrete if kind == "discrete" else fetch_anysubset)(name, spec, folder)
    network = header(Path(files["files"]["target"])) if kind == "continuous" else dict(spec.network)
    result: dict[str, Any] = {"kind": kind, "family": spec.family, "source": spec.source, "network": network, **files}
    if captions:
        section = ContinuousSection.model_validate({"methods": {}, "captions": captions})
        result["captions"] = checks.read_captions(section)
    return result


def verify_embedded(kind: str, spec: ModelSpec, key: str) -> Files:
    """Verify the files of an embedded model of images or text, with speculators if it has 16 x 16 tokens and they are
    there. Raises ParityError that begins with `key`."""
    if kind == "anysubset":
        files = {component: f"{component}.safetensors" for component in weights.read_family(spec.family)["files"]}
        return verify_files(weights.ROOT / kind, files, key, MADE)
    files = weights.list_embedded_files(spec)
    if spec.grid == 16:
        listed = sums(weights.EMBEDDED)
        files |= {
            component: f"{component}.safetensors"
            for component in weights.SPECULATORS
            if f"{component}.safetensors" in listed
        }
    return verify_files(weights.EMBEDDED, files, key, MADE)


def locate(
    file: str, digest: str, folder: Path, repo: str = "", revision: str = "", component: str = "", key: str = ""
) -> Path:
    """Return the path of a component on this machine, downloaded if need be. Raises ParityError that begins with `key`
    if it has another SHA-256 than `digest`, if that is given.

    file: an address, `hub:owner/name@commit[:path]`, a path in `repo` at `revision` (a folder unless its name ends as
    one of FILES), or, without `repo`, a path on this machine. folder: where files of plain addresses are stored.
    """
    if pinned := PINNED.fullmatch(file):
        repo = pinned["repo"]
        revision = pinned["commit"]
        file = pinned["path"] or "."
    if file.startswith(("https://", "http://")):
        local = hub.download_address(file, digest, folder / "downloads")
    elif not repo:
        local = Path(file)
    elif Path(file).suffix in FILES and not file.endswith("/"):
        local = hub.download(repo, revision, file)
    else:
        local = hub.download_folder(repo, revision, file, weights=component != "tokenizer")
    if digest:
        check(find_digested(component, local), digest, key)
    return local


def find_digested(component: str, path: Path) -> Path:
    """Return the path whose digest identifies a component: of a tokenizer's folder its tokenizer.json."""
    return path / "tokenizer.json" if component == "tokenizer" and path.is_dir() else path


def list_fetched(name: str, local: dict[str, Path], digests: Mapping[str, str]) -> list[list[str]]:
    """List the fetched files of a model, by component, that have digests (`list_verified`)."""
    paths = {component: find_digested(component, path) for component, path in local.items()}
    return list_verified(f"models.{name}.files", paths, digests)


def fetch_parts(name: str, spec: ModelSpec, folder: Path) -> dict[str, Path]:
    """Fetch a published model's files, each verified if the configuration has its digest; return paths by component."""
    local: dict[str, Path] = {}
    for component, file in spec.files.items():
        repo = spec.repo if spec.source == "hub" and not pins.is_local(component, file) else ""
        digest = spec.sha256.get(component, "")
        key = f"models.{name}.files.{component}"
        local[component] = locate(file, digest, folder, repo, spec.revision, component, key)
    return local


def fetch_discrete(name: str, spec: ModelSpec, folder: Path) -> Files:
    """Fetch the files of a published model of images. Those of other names are written as safetensors to `folder`;
    pickles are read as they are, except in torch's older format, which cannot be mapped. Raises ParityError if a
    speculator does not fit the model."""
    module = importlib.import_module(f"parity.models.discrete.{spec.family}")
    files = {}
    fetched = fetch_parts(name, spec, folder)
    for component, local in fetched.items():
        renamed = getattr(module, "read_published", lambda *_: None)(component, local, spec)
        out = folder / f"{component}.safetensors"
        if renamed:
            save_weights(renamed[0], out, renamed[1])
        is_mapped_pickle = local.suffix in PICKLED and local.is_file() and zipfile.is_zipfile(local)
        files[component] = str(out if renamed else local if is_mapped_pickle else convert_pickled(local, out))
    for speculator in weights.SPECULATORS:
        if speculator in files:
            model_checks.check_speculator(
                name, spec.model_copy(update={"files": files}), Path(files[speculator]), speculator
            )
    return {"files": files, "sha256": dict(spec.sha256), "verified": list_fetched(name, fetched, spec.sha256)}


def fetch_anysubset(name: str, spec: ModelSpec, folder: Path) -> Files:
    """Fetch the folders of a published text model and its judge. Raises ParityError if their tokenizers or
    config.json do not fit."""
    from parity.models.anysubset.load import check_shapes
    from parity.models.anysubset.vocabulary import check_words

    fetched = fetch_parts(name, spec, folder)
    files = {component: str(path) for component, path in fetched.items()}
    needed = weights.read_family(spec.family)["files"]
    model_checks.check_text_folders(name, files, needed[0])
    digests = {component: spec.sha256.get(component) or sha256(Path(files[component])) for component in needed}
    check_words(files, needed[0])
    check_shapes({"family": spec.family, "source": spec.source, "files": files})
    return {"files": files, "sha256": digests, "verified": list_fetched(name, fetched, digests)}


def verify_pair(spec: ModelSpec, folder: Path, name: str) -> Files:
    """Verify the files of a continuous pair in a folder: target, autoencoder, and what else its SHA256SUMS names."""
    family = spec.family
    names = {"target": family, "draft": f"{family}-draft", "kl": "kl", "classifier": "classifier"}
    files = {component: f"{file}.safetensors" for component, file in names.items()} | {
        "tokenizer": f"{family}-tokenizer.json"
    }
    needed = {
        component: file for component, file in files.items() if component in ("target", "kl") or file in sums(folder)
    }
    return verify_files(folder, needed, f"models.{name}", f"{MADE}, or `parity.models convert`")


def convert_pair(name: str, spec: ModelSpec, folder: Path) -> Files:
    """Fetch the published files of a continuous pair, and convert them into `folder`. Raises ParityError if the target
    has other sizes than the configuration says."""
    from parity.models.continuous.published import convert

    files = fetch_parts(name, spec, folder)
    module = importlib.import_module(f"parity.models.continuous.{spec.family}")
    sizes = {**module.FAMILY["released"], **spec.network}
    grid, cell = (int(sizes[key]) if hasattr(module, does) else 0 for key, does in RESHAPED.items())
    draft, kl, tokenizer = files.get("draft"), files.get("kl"), files.get("tokenizer")
    convert(spec.family, files["target"], draft, kl, folder, tokenizer, grid, cell)
    for key, value in sizes.items():
        if (has := header(folder / f"{spec.family}.safetensors").get(key, 1)) != value:
            raise ParityError(
                f"models.{name}.network.{key} = {value}: allowed: {has}, as {files['target'].name} has it"
            )
    converted = verify_pair(spec, folder, name)
    return {**converted, "verified": converted["verified"] + list_fetched(name, files, spec.sha256)}


def fetch_judge(name: str, raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fetch a metric's network, an entry of `networks`, and return its manifest, in which `family` is its name."""
    key = f"networks.{name}"
    spec = validate(NetworkSpec, raw, key)
    local = locate(spec.file, spec.sha256, folder, spec.repo, spec.revision, key=f"{key}.file")
    verified = list_verified(key, {"file": local}, {"file": spec.sha256})
    if name != "inception":  # torch-fidelity reads Inception's pickle itself
        local = convert_pickled(local, folder / "weights.safetensors")
    is_remote = spec.repo or "://" in spec.file
    record = {"family": name, "source": "hub" if is_remote else "files", "network": {"architecture": spec.architecture}}
    return record | {"files": {"weights": str(local)}, "sha256": {"weights": spec.sha256}, "verified": verified}


def convert_pickled(file: Path, out: Path) -> Path:
    """Convert a pickle, or safetensors whose names have prefixes of training, to the file `out` and return that; return
    any other file or folder as it is."""
    if file.is_dir() or (
        file.suffix not in PICKLED and all(strip_wrappers(name) == name for name in read_shapes(file))
    ):
        return file
    state = unpickle(file) if file.suffix in PICKLED else {strip_wrappers(k): v for k, v in tensors(file, dtype=None)}
    save_weights(state, out)
    return out
