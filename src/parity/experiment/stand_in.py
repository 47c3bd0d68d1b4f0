"""`stand_in: true`: the same experiment with tiny random networks, in the published formats, in place of published
ones. It shows that everything runs; its figures say nothing of a model. `stand_in: {size: published}`: with random
networks of the sizes that authors released; prompts, batches and options stay, so that it shows what a run takes.

Embedded networks stay. Prompts and data that are missing are replaced; where an experiment compares with images, a few
random ones take their place. With small networks, length options such as `window` are capped at their length, tests are
as small as possible, and `config_overlay.scale_config` takes as few prompts, texts and images as it can.
"""

import copy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parity.base.errors import ConfigError
from parity.base.files import dump_canonical, read_json
from parity.experiment import code_digest, pins, weights
from parity.experiment.config_overlay import FEWEST, replace_absent_data
from parity.experiment.module_metadata import modules, read_constant
from parity.experiment.options import AUTO, KINDS, list_bounds, options
from parity.experiment.schema import Config, ModelSpec, validate

Entries = Mapping[str, dict[str, Any]]  # what a configuration says of stand-ins (files, sha256, ...), by their names
Make = Callable[[Sequence[str], bool], Entries]  # of names, in published sizes or small
FOLDER = Path("results/stand_ins")
REFERENCE = "reference_images"  # the stand-in for images to compare with
EQUALITY = {"n": 10_000, "long": 0, "pathwise": 1, "swaps": 99}
BANNER = "Stand-ins: random networks in the published formats. No figure here says anything of the models."


def list_stand_ins() -> dict[str, str]:
    """List the module that writes each stand-in, by the stand-in's name."""
    return {
        name: module for module in modules("stand_ins") for name in read_constant("stand_ins", module, "WRITES", ())
    }


def make_stand_ins(names: Sequence[str], published: bool) -> dict[str, dict[str, Any]]:
    """Make the configuration's entries of stand-ins, by name. Writes those that do not exist, or were written by other
    code, to folders in FOLDER, by one process. Raises ConfigError for an unknown name, or if that process fails.
    published: in the sizes of released networks."""
    modules_by_name = list_stand_ins()
    for name in names:
        if name not in modules_by_name:
            raise ConfigError(f"stand_in = {name!r}: no such stand-in; allowed: {', '.join(sorted(modules_by_name))}")
    suffix = "-published" if published else ""
    folders = {
        name: FOLDER / f"{name}{suffix}-{code_digest.digest(f'parity.stand_ins.{modules_by_name[name]}')}"
        for name in names
    }
    if missing := {name: str(folder) for name, folder in folders.items() if not (folder / "entry.json").exists()}:
        command = [sys.executable, "-m", "parity.stand_ins", *missing, "--out", *missing.values()]
        command += ["--published"] if published else []
        result = subprocess.run(command, capture_output=True, text=True, timeout=3600 if published else 600)
        if result.returncode:
            cause = (result.stderr.strip().splitlines() or ["it printed no cause"])[-1]
            raise ConfigError(f"stand_in: {', '.join(missing)} cannot be written: {cause}")
    return {name: read_json(folder / "entry.json") for name, folder in folders.items()}


def name_stand_ins(spec: Mapping[str, Any]) -> list[str]:
    """List the names of the stand-ins of a published model: the model's, then that of its drafter or judge, if any."""
    family = spec["family"]
    if weights.find_kind(family) == "anysubset":
        return [spec.get("stand_in") or weights.read_family(family).get("stand_in", family), "gpt2"]
    name = spec.get("stand_in") or family
    drafter = weights.read_family(family).get("stand_in_drafter", "eagle_drafter")
    return [name, drafter] if "drafter" in (spec.get("files") or {}) else [name]


def make_entry(spec: Mapping[str, Any], entries: Entries) -> dict[str, Any]:
    """Make the configuration's entry of a published model's stand-in, with the files of its drafter or judge."""
    first, *speculators = name_stand_ins(spec)
    entry = {"family": spec["family"], "source": "files", **copy.deepcopy(entries[first])}
    entry |= {"methods": spec["methods"]} if spec.get("methods") else {}
    for speculator in speculators:
        for key in ("files", "sha256"):
            entry[key] |= entries[speculator][key]
    return entry


def use_stand_ins(raw: dict[str, Any], make: Make) -> dict[str, Any]:
    """Make a copy of a configuration with `stand_in` in which stand-ins, made by `make`, replace published models and
    judges, and sizes, unless they are to be published ones, are as small as possible; return any other configuration
    itself."""
    if raw.get("stand_in") is not True and not isinstance(raw.get("stand_in"), dict):
        return raw
    published_sizes = raw["stand_in"] is not True and raw["stand_in"].get("size", "published") == "published"
    raw = copy.deepcopy(raw)
    validate(Config, pins.fill_pins(copy.deepcopy(raw), lambda name: pins.NONE), "")
    judges, models = raw.get("networks") or {}, raw.get("models") or {}
    published = {n: spec for n, spec in models.items() if spec.get("source", "embedded") != "embedded"}
    names = list(dict.fromkeys(name for spec in published.values() for name in name_stand_ins(spec)))
    compared = list_compared(raw, published, published_sizes)
    entries = {**make(names, published_sizes), **make([*judges, *([REFERENCE] if compared else [])], False)}
    raw["experiment"] = f"{str(raw.get('experiment', 'default'))[:50]}-stand_in"
    raw["equality"] = {**(raw.get("equality") or {}), **EQUALITY}
    raw["networks"] = {n: {"file": entries[n]["files"][n], "sha256": entries[n]["sha256"][n]} for n in judges}
    stand_ins = {name: make_entry(spec, entries) for name, spec in published.items()}
    raw["models"] = {**models, **stand_ins}
    replace_references(raw, compared, entries[REFERENCE]["files"][REFERENCE] if compared else "", published_sizes)
    raw, _ = replace_absent_data(raw, captions=not published_sizes)
    specs = [ModelSpec(**entry) for entry in stand_ins.values()]
    for kind, section in KINDS.items() if not published_sizes else ():
        if isinstance(raw.get(section), dict):
            shrink(kind, raw[section], [spec for spec in specs if weights.find_kind(spec.family) == kind])
    return raw


def list_compared(raw: Mapping[str, Any], published: Mapping[str, Any], published_sizes: bool) -> list[str]:
    """List the sections of a configuration whose images are compared with a `reference` that stand-ins replace: all
    that name one and run published models alone; with stand-ins of published sizes those whose reference is absent."""
    compared = []
    for kind, section in KINDS.items():
        content = raw.get(section)
        if not isinstance(content, dict) or not content.get("reference"):
            continue
        of_kind = [n for n, spec in (raw.get("models") or {}).items() if weights.find_kind(spec["family"]) == kind]
        is_here = published_sizes and Path(str(content["reference"])).exists()
        if of_kind and set(of_kind) <= set(published) and not is_here:
            compared.append(section)
    return compared


def replace_references(raw: dict[str, Any], compared: Sequence[str], images: str, published_sizes: bool) -> None:
    """Let the sections `compared` compare with the random `images`, in place; others, unless with stand-ins of
    published sizes, with none."""
    for section in KINDS.values():
        content = raw.get(section)
        if section in compared:
            raw[section] = {k: v for k, v in raw[section].items() if k != "reference_images"} | {"reference": images}
        elif isinstance(content, dict) and not published_sizes:
            content.pop("reference", None)


def shrink(kind: str, section: dict[str, Any], models: list[ModelSpec]) -> None:
    """Shrink a section in place: one batch size, one-token tests only where the section asks for them and then of few
    draws, and options that fit the stand-ins `models`."""
    if kind == "continuous":
        asked = {name: min(section[name], FEWEST) for name in ("forced", "conditions") if name in section}
        section |= {"forced": 0, "batch": [FEWEST]} | asked
    cap_options(kind, section, models)


def cap_options(kind: str, section: dict[str, Any], models: list[ModelSpec]) -> None:
    """Cap, in place, the options of a section's methods, and those in conditions of figures, at the largest values that
    all of `models` admit; variants that have become the same are merged."""
    if not models:
        return
    sizes_of_models = [weights.list_option_sizes(spec) for spec in models]
    sizes = {name: min(one[name] for one in sizes_of_models) for name in sizes_of_models[0]}
    variants_by_method = {
        method: variants for method, variants in (section.get("methods") or {}).items() if method != AUTO
    }
    limits = {method: list_bounds(kind, method, sizes) for method in variants_by_method}
    bounds = {key: limit for limits_of_method in limits.values() for key, limit in limits_of_method.items()}

    def least(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return list(dict.fromkeys(least(key, v) for v in value))
        return min(value, bounds[key]) if key in bounds and isinstance(value, int) else value

    for method, variants in variants_by_method.items():
        small = []
        for variant in variants:
            complete = options(kind, method, variant)  # because a default may be too large as well
            small.append(variant | {key: limit for key, limit in limits[method].items() if complete[key] > limit})
        section["methods"][method] = list({dump_canonical(variant): variant for variant in small}.values())
    for figure in section.get("study") or []:
        figure["where"] = {key: least(key, value) for key, value in (figure.get("where") or {}).items()}
