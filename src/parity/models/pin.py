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

from parity.base.digests import KINDS, of_several
from parity.base.errors import ParityError
from parity.base.files import publish
from parity.experiment import pins
from parity.models.download import download, refused


class Listed(NamedTuple):
    """A repository at a commit: the SHA-256 of its files by path, "" where the hub does not tell it."""

    repo: str
    commit: str
    files: dict[str, str]


@cache
def listed(repo: str, branch: str) -> Listed:
    """What a branch of a repository holds now. ParityError for what the hub does not give."""
    from huggingface_hub import HfApi

    try:
        said = HfApi().model_info(repo, revision=branch, files_metadata=True)
    except Exception as error:  # the hub's client raises several families
        raise ParityError(refused(repo, branch, error)) from None
    return Listed(repo, str(said.sha), {f.rfilename: f.lfs.sha256 if f.lfs else "" for f in said.siblings or []})


def digest(held: Listed, path: str) -> str:
    """Of a file of a repository, or of the weights of a folder in it ("." for all of it)."""

    def of_file(name: str) -> str:
        return held.files[name] or hashlib.sha256(download(held.repo, held.commit, name).read_bytes()).hexdigest()

    if path in held.files:
        return of_file(path)
    inside = [name for name in sorted(held.files) if PurePosixPath(name).parent == PurePosixPath(path)]
    found = [[name for name in inside if PurePosixPath(name).match(kind)] for kind in KINDS]
    weights = next((some for some in found if some), [])
    if not weights:
        holds = ", ".join(sorted(held.files)[:8])
        raise ParityError(f"{held.repo} at {held.commit[:8]}: no weights at {path!r}; it holds {holds}")
    return of_several({PurePosixPath(name).name: of_file(name) for name in weights})


def found(name: str, ask: Callable[[str, str], Listed] = listed) -> dict[str, Any]:
    """The pin of "owner/name[@branch]:path"."""
    where, _, path = name.partition(":")
    repo, _, branch = where.partition("@")
    held = ask(repo, branch or "main")
    return {"commit": held.commit, "sha256": digest(held, path)} | sizes(held, path)


def sizes(held: Listed, path: str) -> dict[str, Any]:
    """{"network": sizes} that the configuration file of a folder tells; {} where there is none."""
    return {}


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
            asked[name] = known.get(name) or found(name)
            tell(f"{name}: {asked[name]['commit']}" + (" (as kept)" if name in known else ""))
        return asked[name]

    pins.filled(copy.deepcopy(raw), pin)
    if not asked:
        tell(f"{experiment}: names no repository without a commit")
        return
    publish(out, yaml.safe_dump({**known, **{k: dict(v) for k, v in asked.items()}}, width=120).encode())
    tell(f"written: {out}")
