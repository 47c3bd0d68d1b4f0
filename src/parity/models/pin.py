"""Commits, digests and sizes of the networks that an experiment names by repository, from the hub.

python -m parity.models pin workflow/experiments/sjd-table1.yaml

The hub tells the SHA-256 of every large file, so nothing large is downloaded. The answers are added to pins.yaml, which
runs in this folder read from then on: a run on another day decodes the same networks.
"""

import copy
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from parity.base.digests import combine_digests, sha256
from parity.base.errors import ParityError
from parity.base.files import publish
from parity.experiment import pins
from parity.experiment.config_overlay import add_networks, read_experiment
from parity.experiment.schema import PINNED
from parity.models.hub import Listed, download, folder_prefix, list_files, select_remote_weights


def find_weights(listed: Listed, path: str) -> dict[str, str]:
    """Find the files of weights at a path of a repository, a file or a folder ("." for all of it): paths in the
    repository by file name. Raises ParityError if there are none."""
    if path in listed.files:
        return {PurePosixPath(path).name: path}
    start = folder_prefix(path)
    names_inside = [name.removeprefix(start) for name in listed.files if name.startswith(start)]
    if names := select_remote_weights(
        listed.repo, listed.commit, start, [name for name in names_inside if "/" not in name]
    ):
        return {name: start + name for name in names}
    holds = ", ".join(sorted(listed.files)[:8])
    raise ParityError(f"{listed.repo} at {listed.commit[:8]}: no weights at {path!r}; it holds {holds}")


def digest(listed: Listed, path: str) -> str:
    """Return the SHA-256 of a file in a repository, or of the weights of a folder (`combine_digests`), from the hub's
    list; small files, whose digest the hub does not tell, are downloaded."""
    digests = {
        name: listed.files[file] or hashlib.sha256(download(listed.repo, listed.commit, file).read_bytes()).hexdigest()
        for name, file in find_weights(listed, path).items()
    }
    return next(iter(digests.values())) if path in listed.files else combine_digests(digests)


def find_pin(name: str) -> dict[str, Any]:
    """Look up the pin (commit, digest) of "owner/name[@branch]:path" on the hub, or of "here:path" on this machine."""
    if name.startswith(pins.HERE):
        return {"commit": pins.NONE["commit"], "sha256": sha256(Path(name.removeprefix(pins.HERE)))}
    repo_and_branch, _, path = name.partition(":")
    repo, _, branch = repo_and_branch.partition("@")
    listed = list_files(repo, branch or None)
    return {"commit": listed.commit, "sha256": digest(listed, path)}


def weigh(repo: str, commit: str, files: Mapping[str, str]) -> int | None:
    """Sum the bytes on the hub of a model's `files`, by component, unless on this machine; None if it is
    unreachable."""
    total = 0
    try:
        for component, path in files.items():
            if pins.is_local(component, path):
                continue
            pinned = PINNED.fullmatch(path)
            listed = list_files(*((pinned["repo"], pinned["commit"]) if pinned else (repo, commit)))
            path_in_repo = (pinned["path"] or ".") if pinned else path
            total += sum(listed.bytes[name] for name in find_weights(listed, path_in_repo).values())
    except ParityError:
        return None
    return total


def write(experiment: Path, out: Path, tell: Callable[[str], None] = print) -> None:
    """Add to the file `out` a pin for each network that an experiment, or its protocol, names without a commit, and
    tell each. Pins in the file are not changed, except those of files on this machine."""
    write_pins(read_experiment(experiment), str(experiment), out, tell)


def write_pins(raw: dict[str, Any], label: str, out: Path, tell: Callable[[str], None] = print) -> None:
    """Add to the file `out` the pins of a configuration, as `write` does. label: what messages call it."""
    pinned = pins.read(out)
    answers = dict[str, Mapping[str, Any]]()

    def pin(name: str) -> Mapping[str, Any]:
        """Return the pin of a name, from the file or looked up, and tell it the first time."""
        if name not in answers:
            is_local = name.startswith(pins.HERE)  # a local file may have changed since it was pinned
            answers[name] = (None if is_local else pinned.get(name)) or find_pin(name)
            suffix = " (as before)" if name in pinned and not is_local else ""
            tell(f"{name}: {answers[name]['sha256' if is_local else 'commit']}{suffix}")
        return answers[name]

    pins.fill_pins(add_networks(copy.deepcopy(raw)), pin)
    if not answers:
        tell(f"{label}: names no repository without a commit")
        return
    publish(out, yaml.safe_dump({**pinned, **{k: dict(v) for k, v in answers.items()}}, width=120).encode())
    tell(f"written: {out}")
