"""Commits, digests and sizes of the networks that an experiment names by repository: asked of the hub.

python -m parity.models pin workflow/experiments/sjd-table1.yaml

The hub tells the SHA-256 of every large file, so nothing large is downloaded. What was found is added to pins.yaml,
which runs in this folder read from then on: one on another day decodes the same networks.
"""

import copy
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import yaml

from parity.base.digests import KINDS, of_several, sha256
from parity.base.errors import ParityError
from parity.base.files import publish
from parity.experiment import pins
from parity.experiment.schema import PINNED
from parity.models.download import download, refused


class Listed(NamedTuple):
    """A repository at a commit: the SHA-256 of its files by path, "" where the hub does not tell it; their bytes."""

    repo: str
    commit: str
    files: dict[str, str]
    bytes: dict[str, int]


@cache
def list_files(repo: str, branch: str) -> Listed:
    """What a branch of a repository holds now. ParityError for what the hub does not give."""
    from huggingface_hub import HfApi

    try:
        listing = HfApi().model_info(repo, revision=branch, files_metadata=True)
    except Exception as error:  # the hub's client raises several families
        raise ParityError(refused(repo, branch, error)) from None
    files = listing.siblings or []
    digests = {f.rfilename: f.lfs.sha256 if f.lfs else "" for f in files}
    return Listed(repo, str(listing.sha), digests, {f.rfilename: f.size or 0 for f in files})


def of_weights(held: Listed, path: str) -> list[str]:
    """A file of a repository, or the weights of a folder in it ("." for all of it); ParityError for neither."""
    if path in held.files:
        return [path]
    inside = [name for name in sorted(held.files) if PurePosixPath(name).parent == PurePosixPath(path)]
    of_kinds = [[name for name in inside if PurePosixPath(name).match(kind)] for kind in KINDS]
    if weights := next((some for some in of_kinds if some), []):
        return weights
    holds = ", ".join(sorted(held.files)[:8])
    raise ParityError(f"{held.repo} at {held.commit[:8]}: no weights at {path!r}; it holds {holds}")


def digest(held: Listed, path: str) -> str:
    """Of a file of a repository, or of the weights of a folder in it ("." for all of it)."""

    def of_file(name: str) -> str:
        return held.files[name] or hashlib.sha256(download(held.repo, held.commit, name).read_bytes()).hexdigest()

    files = of_weights(held, path)
    return of_file(path) if path in held.files else of_several({PurePosixPath(f).name: of_file(f) for f in files})


def find_pin(name: str, ask: Callable[[str, str], Listed] = list_files) -> dict[str, Any]:
    """The pin of "owner/name[@branch]:path", or of "here:path"."""
    if name.startswith(pins.HERE):
        return {"commit": pins.NONE["commit"], "sha256": sha256(Path(name.removeprefix(pins.HERE)))}
    where, _, path = name.partition(":")
    repo, _, branch = where.partition("@")
    held = ask(repo, branch or "main")
    return {"commit": held.commit, "sha256": digest(held, path)}


def weigh(repo: str, commit: str, files: Mapping[str, str]) -> int | None:
    """Bytes of a model's files as the hub tells them, a text encoder on this machine left out; None where it does not
    answer."""
    total = 0
    try:
        for part, path in files.items():
            other = PINNED.fullmatch(path)
            if other is None and part == "text" and Path(path).exists():
                continue
            held = list_files(*((other["repo"], other["commit"]) if other else (repo, commit)))
            total += sum(held.bytes[name] for name in of_weights(held, (other["path"] or ".") if other else path))
    except ParityError:
        return None
    return total


def write(experiment: Path, out: Path, tell: Callable[[str], None] = print) -> None:
    """Add to the pins in `out` what an experiment names and they have not."""
    try:
        raw = yaml.safe_load(experiment.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParityError(f"{experiment}: no experiment that can be read: {str(error).splitlines()[0]}") from None
    known = pins.read(out)
    asked: dict[str, Mapping[str, Any]] = {}

    def pin(name: str) -> Mapping[str, Any]:
        if name not in asked:
            here = name.startswith(pins.HERE)  # it may have become another since
            asked[name] = (None if here else known.get(name)) or find_pin(name)
            digest_or_commit = asked[name]["sha256" if here else "commit"]
            tell(f"{name}: {digest_or_commit}" + (" (as kept)" if name in known and not here else ""))
        return asked[name]

    pins.filled(copy.deepcopy(raw), pin)
    if not asked:
        tell(f"{experiment}: names no repository without a commit")
        return
    publish(out, yaml.safe_dump({**known, **{k: dict(v) for k, v in asked.items()}}, width=120).encode())
    tell(f"written: {out}")
