"""pins.yaml: which commit of each repository an experiment's networks were taken from, with digests.

A paper's table names no commit, so an experiment may name a repository alone. `parity models pin` asks the hub for the
newest commit, once, and writes it to pins.yaml in the current folder, to be kept with the results:

    owner/name[@branch]:path: {commit: 40 hex digits, sha256: of the file or folder}
    here:path: {commit: noughts, sha256: of a file or folder of this machine, such as a text encoder}

A commit or digest in the experiment itself comes first. A dry run needs no pins: it plans with a commit of noughts. A
run that lacks one is refused before its first job.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parity.base.errors import ConfigError
from parity.experiment.config_overlay import read_entries
from parity.experiment.schema import HUB, OWNER

FILE = Path("pins.yaml")
HERE = "here:"  # prefix of a path on this machine, in names of pins
NONE = {"commit": "0" * 40, "sha256": "0" * 64}  # the pin with which a dry run plans if there is none
# Matches a repository without a commit: hub:owner/name[@branch][:path].
OPEN = re.compile(rf"{HUB}{OWNER}(?P<branch>@(?![0-9a-f]{{40}}(:|$))[^:\s]+)?(:(?P<path>.+))?")
Pin = Callable[[str], Mapping[str, Any]]  # gives the commit and sha256 of "owner/name[@branch]:path"


def read(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """Read the pins in a file, by name; {} if it does not exist. Raises ConfigError for a file that `parity models pin`
    did not write."""
    return read_entries(file, {*NONE}, "models pin")


def is_local(component: str, path: str) -> bool:
    """Return whether a component of a model in a repository is a path on this machine: an absolute one, or a text
    encoder's that exists."""
    return os.path.isabs(path) or (component == "text" and os.path.exists(path))


def fill_model(spec: dict[str, Any], pin: Pin) -> None:
    """Fill commits and digests of a model's files into its `spec`, in place. A file is a path in `repo`, or
    "hub:owner/name[@branch][:path]"; those that have a digest stay."""
    digests = dict(spec.get("sha256") or {})
    for component, path in (spec.get("files") or {}).items():
        if component in digests or not isinstance(path, str):
            continue
        if path.startswith(HUB):
            if (unpinned := OPEN.fullmatch(path)) is None:
                continue  # the file is pinned already, or the schema refuses it later
            path_in_repo = unpinned["path"] or "."
            pinned = pin(f"{unpinned['repo']}{unpinned['branch'] or ''}:{path_in_repo}")
            spec["files"] = {**spec["files"], component: f"{HUB}{unpinned['repo']}@{pinned['commit']}:{path_in_repo}"}
        elif not spec.get("repo"):
            continue  # the file is a folder on this machine, which is digested when it is read
        elif is_local(component, path):
            pinned = pin(f"{HERE}{path}")
        else:
            pinned = pin(f"{spec['repo']}:{path}")
            spec["revision"] = pinned["commit"]
        if component != "tokenizer" or path.endswith(
            ".json"
        ):  # a tokenizer's folder has no weights to digest; its commit identifies it
            digests[component] = pinned["sha256"]
    spec["sha256"] = digests


def fill_pins(raw: dict[str, Any], pin: Pin) -> dict[str, Any]:
    """Fill in, in place, commit and digests of all models and networks in repositories that a configuration names
    without a commit. Returns `raw`."""
    models, judges = (raw.get(key) for key in ("models", "networks"))
    for spec in models.values() if isinstance(models, dict) else ():
        if not isinstance(spec, dict) or not all(isinstance(spec.get(key) or {}, dict) for key in ("files", "sha256")):
            continue  # the schema refuses such a model later
        if spec.get("source") == "hub" and not spec.get("revision"):
            fill_model(spec, pin)
    for spec in judges.values() if isinstance(judges, dict) else ():
        if isinstance(spec, dict) and spec.get("repo") and not spec.get("revision"):
            pinned = pin(f"{spec['repo']}:{spec.get('file')}")
            spec |= {"sha256": pinned["sha256"], **spec, "revision": pinned["commit"]}
    return raw


def make_pin_reader(file: Path = FILE, unpinned: list[str] | None = None) -> Pin:
    """Make a function that gives the pin of a name from a file, which is read once. For a name without one it raises
    ConfigError or, if a list `unpinned` is given, appends the message to it and returns noughts."""
    pins = read(file)

    def pin(name: str) -> Mapping[str, Any]:
        """Return the pin of a name; what happens if there is none is said above."""
        if name in pins:
            return pins[name]
        repo, _, path = name.partition(":")
        lacks = f"{path!r} has no sha256" if name.startswith(HERE) else f"{repo} has no commit"
        problem = f"{lacks} yet; `parity models pin EXPERIMENT.yaml` finds it and keeps it in {file}"
        if unpinned is None:
            raise ConfigError(problem)
        unpinned.append(problem)
        return NONE

    return pin
