"""Get a model's files, verify them by SHA-256, convert what is pickled: the manifest that everything loads from.

    {"kind", "family", "source", "files": {part: path}, "sha256": {part: digest}, "network": {sizes known beforehand}}

A digest of a file is what verifies it; of a folder it is that of its weights' digests. Loading trusts what was verified
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
from parity.experiment.data import NetworkSpec
from parity.experiment.schema import ModelSpec
from parity.experiment.validation import validate

PICKLED = (".pt", ".pth", ".bin", ".ckpt")
MADE = "run `snakemake train_embedded`"


def manifest(kind: str, name: str, spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Bring a model's files to hand, verified; converted ones go to `folder`. ParityError for what cannot be had."""
    return {"kind": kind, "network": {}, **BY_KIND[kind](name, spec, folder)}


def discrete(name: str, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """given: a model of the section `image`, as its schema says."""
    what = f"image.models.{name}"
    spec = validate(ModelSpec, given, what)
    assert isinstance(spec, ModelSpec)
    said = {"family": spec.family, "source": spec.source, "network": dict(spec.network)}
    if spec.source == "embedded":
        known = sums(weights.EMBEDDED)
        parts = weights.embedded_files(spec)
        if spec.grid == 16:
            parts |= {part: f"{part}.safetensors" for part in weights.COMPANIONS if f"{part}.safetensors" in known}
        return said | listed(weights.EMBEDDED, parts, what, MADE)
    files: dict[str, str] = {}
    for part, file in spec.files.items():
        local = download(spec.repo, spec.revision, file) if spec.source == "hub" and part != "text" else Path(file)
        check(local, spec.sha256[part], f"{what}.files.{part}")
        files[part] = str(converted(local, folder / f"{part}.safetensors"))
    for companion in weights.COMPANIONS:
        if companion in files:
            weights.check_companion(name, spec, Path(files[companion]), companion)
    return said | {"files": files, "sha256": dict(spec.sha256)}


def anysubset(name: str, given: dict[str, str], folder: Path) -> dict[str, Any]:
    """given: {"xlnet", "judge"}, folders as transformers saves them, or both "" for the embedded pair."""
    if not any(given.values()):
        parts = {part: f"{part}.safetensors" for part in given}
        return {"family": "xlnet", "source": "embedded"} | listed(weights.ROOT / "anysubset", parts, "text.model", MADE)
    for part, path in given.items():
        if not Path(path, "config.json").is_file() or not any(Path(path).glob("*.safetensors")):
            raise ParityError(
                f"text.model.{part} = {path!r}: needs config.json and *.safetensors;"
                " allowed: a folder as transformers saves it"
            )
    digests = {part: sha256(Path(path)) for part, path in given.items()}
    return {"family": "xlnet", "source": "files", "files": given, "sha256": digests}


def continuous(name: str, given: dict[str, str], folder: Path) -> dict[str, Any]:
    """given: {"family", "weights"}, a folder that `convert` wrote, or "" for the embedded models."""
    family, where = given["family"], Path(given["weights"] or weights.ROOT / "continuous")
    names = {"target": family, "draft": f"{family}-draft", "kl": "kl", "classifier": "classifier"}
    parts = {part: f"{file}.safetensors" for part, file in names.items()}
    needed = {part: file for part, file in parts.items() if part in ("target", "kl") or file in sums(where)}
    found = listed(where, needed, "continuous.weights", f"{MADE}, or `parity.models convert`")
    said = {"family": family, "source": "files" if given["weights"] else "embedded"}
    return said | found | {"network": header(Path(found["files"]["target"]))}


def judging(name: str, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """given: a network of the section `networks`, as its schema says; `family` of its manifest is its name there."""
    what = f"networks.{name}"
    spec = validate(NetworkSpec, given, what)
    assert isinstance(spec, NetworkSpec)
    local = download(spec.repo, spec.revision, spec.file) if spec.repo else Path(spec.file)
    check(local, spec.sha256, f"{what}.file")
    if name != "inception":  # whose library reads the pickle
        local = converted(local, folder / "weights.safetensors")
    said = {"family": name, "source": "hub" if spec.repo else "files", "network": {"architecture": spec.architecture}}
    return said | {"files": {"weights": str(local)}, "sha256": {"weights": spec.sha256}}


BY_KIND: dict[str, Callable[[str, Any, Path], dict[str, Any]]] = {
    "discrete": discrete,
    "anysubset": anysubset,
    "continuous": continuous,
    "networks": judging,
}


def converted(file: Path, out: Path) -> Path:
    """A pickled file's tensors as safetensors in `out`; any other file as it is."""
    if file.suffix not in PICKLED:
        return file
    publish(out, save({k: v.contiguous() for k, v in unpickle(file).items()}))
    return out


def download(repo: str, revision: str, file: str, attempts: int = 5) -> Path:
    """One file of a pinned commit, gone on with where it broke off; network errors and 5xx are tried again, the last
    one is shown with its cause."""
    from huggingface_hub import errors, hf_hub_download

    final = (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
    cause: Exception | None = None
    for attempt in range(attempts):
        try:
            return Path(hf_hub_download(repo, file, revision=revision))
        except Exception as error:  # the hub's client raises several families here; most of them mean "not now"
            cause = error
            if isinstance(error, (*final, errors.EntryNotFoundError, errors.HFValidationError)):
                break
            told = error.__cause__ or error
            print(f"{repo}/{file}: try {attempt + 1} of {attempts} failed: {told}", file=sys.stderr, flush=True)
            time.sleep(2**attempt)
    assert cause is not None
    raise ParityError(refused(f"{repo}/{file}", revision[:8], cause))


def refused(what: str, revision: str, error: Exception) -> str:
    """Why the hub did not give something, in one line that says what to do where that is known."""
    from huggingface_hub import errors

    hint = {
        errors.GatedRepoError: "accept its terms on its page, then set HF_TOKEN to a token of that account",
        errors.RepositoryNotFoundError: "no such repository, or a private one: set HF_TOKEN",
        errors.RevisionNotFoundError: "no such revision",
        errors.EntryNotFoundError: "no such file in it",
        errors.HFValidationError: "a repository is owner/name",
    }
    said = next((f"; {text}" for kind, text in hint.items() if isinstance(error, kind)), "")
    cause = str(getattr(error, "__cause__", None) or error).strip().splitlines()
    return f"models: {what} at {revision} cannot be had: {type(error).__name__}: {cause[0] if cause else ''}{said}"
