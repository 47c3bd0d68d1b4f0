"""`stand_in: true`: the same experiment with tiny random networks, in the published formats, in place of every
published one. It shows that everything runs; no figure of it says anything of a model.

What names no published network stays. Prompts and data that are missing are replaced by a few of the workflow's own.
Length options such as `window` are capped at what the small networks have, and tests are as small as possible.
"""

import copy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parity.base.errors import ConfigError
from parity.base.files import canonical, read_json
from parity.experiment import code_digest, pins, weights
from parity.experiment.module_metadata import constant, modules
from parity.experiment.options import KINDS, options
from parity.experiment.schema import Config, ModelSpec
from parity.experiment.validation import validate

Entries = Mapping[str, dict[str, Any]]  # what the configuration says of stand-ins that are there, by name
Make = Callable[[Sequence[str]], Entries]
PROMPTS, CLASSES = "prompts/plain.txt", "prompts/classes.txt"
FEW = 2  # prompts, texts or images
EQUALITY = {
    "n": 10_000, "mutants": 1000, "continuous": 1000, "anyorder": 1000, "long": 0, "pathwise": 1, "calibration": 100,
    "swaps": 99,
}  # fmt: skip
BANNER = "Stand-ins: tiny random networks in the published formats. No figure here says anything of the models."


def stand_in_modules() -> dict[str, str]:
    """Names of stand-ins, to the modules that write them."""
    return {name: module for module in modules("stand_ins") for name in constant("stand_ins", module, "WRITES", ())}


def make_stand_ins(names: Sequence[str], where: Path = Path("results/stand_ins")) -> dict[str, dict[str, Any]]:
    """Entries of stand-ins by name. Those missing, or written by other code, are written in one process."""
    known = stand_in_modules()
    for name in names:
        if name not in known:
            raise ConfigError(f"stand_in = {name!r}: no such stand-in; allowed: {', '.join(sorted(known))}")
    folders = {name: where / f"{name}-{code_digest.digest(f'parity.stand_ins.{known[name]}')}" for name in names}
    if missing := {name: str(folder) for name, folder in folders.items() if not (folder / "entry.json").exists()}:
        command = [sys.executable, "-m", "parity.stand_ins", *missing, "--out", *missing.values()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            cause = (done.stderr.strip().splitlines() or ["it printed no cause"])[-1]
            raise ConfigError(f"stand_in: {', '.join(missing)} cannot be written: {cause}")
    return {name: read_json(folder / "entry.json") for name, folder in folders.items()}


def published(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Models of a configuration that are not embedded."""
    return {n: spec for n, spec in (raw.get("models") or {}).items() if spec.get("source", "embedded") != "embedded"}


def modules_for(spec: Mapping[str, Any]) -> list[str]:
    """Modules that write the stand-ins of a published model: its own, and those of its drafter or judge."""
    family = spec["family"]
    if weights.kind_of(family) == "anysubset":
        return [family, "gpt2"]
    name = spec.get("stand_in") or family
    drafter = "anole_drafter" if name == "anole" else "eagle_drafter"
    return [name, drafter] if "drafter" in (spec.get("files") or {}) else [name]


def entry_for(spec: Mapping[str, Any], entries: Entries) -> dict[str, Any]:
    """What a configuration says of a published model's stand-in."""
    first, *others = modules_for(spec)
    entry = {"family": spec["family"], "source": "files", **copy.deepcopy(entries[first])}
    for other in others:
        for key in ("files", "sha256"):
            entry[key] |= entries[other][key]
    return entry


def replaced(raw: dict[str, Any], make: Make) -> dict[str, Any]:
    """A configuration with `stand_in: true` on stand-ins; any other configuration unchanged."""
    if raw.get("stand_in") is not True:
        return raw
    raw = copy.deepcopy(raw)
    validate(Config, pins.filled(copy.deepcopy(raw), lambda name: pins.NONE), "")
    names = [*(raw.get("networks") or {}), *(n for spec in published(raw).values() for n in modules_for(spec))]
    entries = make(list(dict.fromkeys(names)))
    raw["experiment"] = f"{str(raw.get('experiment', 'default'))[:50]}-stand_in"
    raw["equality"] = {**(raw.get("equality") or {}), **EQUALITY}
    raw["networks"] = {name: judge(entries[name], name) for name in raw.get("networks") or {}}
    own = {name: entry_for(spec, entries) for name, spec in published(raw).items()}
    raw["models"] = {**(raw.get("models") or {}), **own}
    specs = [ModelSpec(**entry) for entry in own.values()]
    for section, shrink in (("image", image), ("text", text), ("continuous", continuous)):
        if isinstance(raw.get(section), dict):
            shrink(raw[section], [spec for spec in specs if KINDS[weights.kind_of(spec.family)] == section])
    return raw


def judge(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the section networks says of a stand-in."""
    return {"file": entry["files"][name], "sha256": entry["sha256"][name]}


def image(section: dict[str, Any], models: list[ModelSpec]) -> None:
    section["prompts"] = prompts(section.get("prompts") or {}, any(spec.network.get("classes") for spec in models))
    section.pop("reference", None)
    section["batch"] = FEW
    if models:
        limits = [weights.largest(spec) for spec in models]
        cut("discrete", section, {key: min(limit[key] for limit in limits) for key in limits[0]})


def prompts(given: Mapping[str, Any], numbers: bool) -> dict[str, Any]:
    """A few prompts, of the workflow's own where those of the experiment are not at hand."""
    few = {"limit": min(FEW, given.get("limit", FEW))}
    if Path(given.get("file", "")).is_file():
        return {**given, **few, "repeats": 1, "shards": 1}
    return {"file": CLASSES if numbers else PROMPTS, **few}


def text(section: dict[str, Any], models: list[ModelSpec]) -> None:
    for tasks in (section.get("tasks") or {}).values():
        for task in tasks:
            task["rows"] = FEW
            if not Path(task.get("data", "")).is_file():
                task.pop("data", None)
    section["batch"] = FEW


def continuous(section: dict[str, Any], models: list[ModelSpec]) -> None:
    if models:
        if section.get("captions"):
            section["captions"] = prompts(section["captions"], False)
        cut("continuous", section, dict.fromkeys(("iterations", "gamma"), min(map(weights.places, models))))
    section |= {"images": FEW, "forced": 0, "batch": [FEW]}


def cut(kind: str, section: dict[str, Any], most: Mapping[str, int]) -> None:
    """Options of methods, in a figure's conditions too, no larger than the model has places or tokens; variants that
    have become the same are one."""

    def least(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return list(dict.fromkeys(least(key, v) for v in value))
        return min(value, most[key]) if key in most and isinstance(value, int) else value

    for method, variants in (section.get("methods") or {}).items():
        small = []
        for variant in variants:
            own = {**options(kind, method, variant), **variant}  # a default may be too large as well
            small.append(variant | {key: most[key] for key in most if own.get(key, 0) > most[key]})
        section["methods"][method] = list({canonical(variant): variant for variant in small}.values())
    for figure in section.get("study") or []:
        figure["where"] = {key: least(key, value) for key, value in (figure.get("where") or {}).items()}
