"""Get a model's files, verify them by SHA-256, convert what is pickled: the manifest that everything loads from.

    {"kind", "family", "source", "files": {part: path}, "sha256": {part: digest}, "network": {sizes known beforehand}}

A digest of a file is what verifies it; of a folder it is that of its *.safetensors. Loading trusts what was verified
here.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save

from parity.base.errors import ParityError
from parity.base.files import header, publish, sums
from parity.base.weights import check, listed, sha256, unpickle
from parity.experiment import weights
from parity.experiment.schema import ModelSpec

PICKLED = (".pt", ".pth", ".bin", ".ckpt")
OURS = {"t5": "text", "llamagen": "transformer"}  # embedded files to the parts that they are


def manifest(kind: str, name: str, spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Bring a model's files to hand, verified; converted ones go to `folder`. ParityError for what cannot be had."""
    family, source, files, digests, network = BY_KIND[kind](name, spec, folder)
    return {
        "kind": kind,
        "family": family,
        "source": source,
        "files": {part: str(file) for part, file in files.items()},
        "sha256": digests,
        "network": network,
    }


Got = tuple[str, str, dict[str, Path], dict[str, str], dict[str, Any]]  # family, source, files, sha256, network


def discrete(name: str, given: dict[str, Any], folder: Path) -> Got:
    """spec: a model of the section `image`, as its schema says."""
    spec = ModelSpec.model_validate(given)
    if spec.source == "embedded":
        known, parts = sums(weights.EMBEDDED), dict(weights.embedded_files(spec))
        if spec.grid == 16:
            parts |= {part: f"{part}.safetensors" for part in weights.COMPANIONS if f"{part}.safetensors" in known}
        return spec.family, "embedded", *embedded(f"image.models.{name}", "discrete", parts), {}
    files: dict[str, Path] = {}
    for part, file in spec.files.items():
        local = download(spec.repo, spec.revision, file) if spec.source == "hub" and part != "text" else Path(file)
        check(local, spec.sha256[part], f"image.models.{name}.files.{part}")
        files[part] = converted(local, folder / f"{part}.safetensors")
    for companion in weights.COMPANIONS:
        if companion in files:
            weights.check_companion(name, spec, files[companion], companion)
    return spec.family, spec.source, files, dict(spec.sha256), dict(spec.network)


def anysubset(name: str, given: dict[str, str], folder: Path) -> Got:
    """spec: {"xlnet", "judge"}, folders as transformers saves them, or both "" for the embedded pair."""
    if not any(given.values()):
        parts = {part: f"{part}.safetensors" for part in given}
        return "xlnet", "embedded", *embedded("text.model", "anysubset", parts), {}
    files = {part: Path(path) for part, path in given.items()}
    for part, path in files.items():
        if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
            raise ParityError(
                f"text.model.{part} = {str(path)!r}: needs config.json and *.safetensors;"
                " allowed: a folder as transformers saves it"
            )
    return "xlnet", "files", files, {part: sha256(path) for part, path in files.items()}, {}


def continuous(name: str, given: dict[str, str], folder: Path) -> Got:
    """spec: {"family", "weights"}, a folder that `convert` wrote, or "" for the embedded models."""
    family, where = given["family"], Path(given["weights"] or weights.ROOT / "continuous")
    known, names = sums(where), {"target": family, "draft": f"{family}-draft", "kl": "kl", "classifier": "classifier"}
    parts = {part: f"{file}.safetensors" for part, file in names.items()}
    needed = {part: file for part, file in parts.items() if part in ("target", "kl") or file in known}
    files, digests = verified("continuous.weights", where, needed, "run `snakemake train_continuous`, or `convert`")
    return family, "files" if given["weights"] else "embedded", files, digests, header(files["target"])


BY_KIND: dict[str, Callable[[str, Any, Path], Got]] = {
    "discrete": discrete,
    "anysubset": anysubset,
    "continuous": continuous,
}


def embedded(what: str, kind: str, parts: dict[str, str]) -> tuple[dict[str, Path], dict[str, str]]:
    """Files that ship with the package, and their digests."""
    folder = weights.EMBEDDED if kind == "discrete" else weights.ROOT / kind
    files, digests = verified(what, folder, parts, "run `snakemake train_embedded`")
    return {OURS.get(k, k): v for k, v in files.items()}, {OURS.get(k, k): v for k, v in digests.items()}


def verified(what: str, folder: Path, parts: dict[str, str], made_by: str) -> tuple[dict[str, Path], dict[str, str]]:
    """The files of a folder that are these parts, and their digests, as its SHA256SUMS says."""
    found = {part: listed(folder, file, what, made_by) for part, file in parts.items()}
    return {part: file for part, (file, _) in found.items()}, {part: total for part, (_, total) in found.items()}


def converted(file: Path, out: Path) -> Path:
    """A pickled file's tensors as safetensors in `out`; any other file as it is."""
    if file.suffix not in PICKLED:
        return file
    publish(out, save({k: v.contiguous() for k, v in unpickle(file).items()}))
    return out


def download(repo: str, revision: str, file: str, attempts: int = 5) -> Path:
    """One file of a pinned commit; network errors and 5xx are tried again, the last one is shown with its cause."""
    from huggingface_hub import errors, hf_hub_download

    final = (
        errors.GatedRepoError,
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.EntryNotFoundError,
    )
    cause: Exception | None = None
    for attempt in range(attempts):
        try:
            return Path(hf_hub_download(repo, file, revision=revision))
        except Exception as error:  # the hub's client raises several families here; most of them mean "not now"
            cause = error
            if isinstance(error, final):
                break
            told = error.__cause__ or error
            print(f"{repo}/{file}: try {attempt + 1} of {attempts} failed: {told}", file=sys.stderr, flush=True)
            time.sleep(2**attempt)
    told = getattr(cause, "__cause__", None) or cause
    raise ParityError(f"models: {repo}/{file} at {revision[:8]} cannot be had: {type(cause).__name__}: {told}")
