"""tuned.yaml: the fastest lossless method on a machine, as `parity tune` measured it; `auto` in a configuration.

    scenes@0123abcd, batch 32, AMD EPYC, 2 cores, parity 0.1.0:
      {method, options, compiled, seconds: an image, times: plain decoding, table: [all that was measured]}

Planning reads the file and times nothing: `auto` becomes an ordinary variant, chosen before anything is sampled. The
file is part of no key of a cell; the method and the options are.
"""

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import yaml

from parity.base import machine
from parity.base.errors import ConfigError
from parity.experiment import weights
from parity.experiment.options import claim, methods, options
from parity.experiment.schema import Config, ModelSpec

FILE = Path("tuned.yaml")
AUTO = "auto"
UNTUNED = "sjd_coupled"  # at its defaults, where this machine has no entry
FIELDS = {"method", "options", "compiled", "seconds", "times"}  # of an entry


def read(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """The entries of a file; ConfigError for a file that `parity tune` did not write."""
    try:
        entries = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (yaml.YAMLError, UnicodeDecodeError, OSError):
        entries = None
    if not isinstance(entries, dict) or not all(isinstance(e, dict) and {*e} >= FIELDS for e in entries.values()):
        raise ConfigError(f"{file}: not what `parity tune` wrote; allowed: to delete it and tune again")
    return entries


def key_of(model: str, spec: ModelSpec, batch: int) -> str:
    """What an entry holds for: model and revision, batch, machine, version."""
    return f"{model}@{weights.revision(spec)}, batch {batch}, {machine.identity()}, parity {version()}"


def version() -> str:
    return importlib.metadata.version("parity")


def lossless(method: str, values: Any, spec: ModelSpec) -> dict[str, Any]:
    """Complete options of a lossless variant that a model can run; ConfigError for anything else."""
    if method not in methods("discrete"):
        raise ConfigError(f"{method!r}: unknown method")
    chosen = options("discrete", method, values, method)
    if claim("discrete", method, chosen) != "lossless":
        raise ConfigError(f"{method}: not lossless with {values}")
    weights.check_needs(method, "", spec)
    for name, most in weights.largest(spec).items():
        if chosen.get(name, 0) > most:
            raise ConfigError(f"{method}.{name} = {chosen[name]}: allowed: at most {most}")
    return chosen


def find(model: str, spec: ModelSpec, batch: int, file: Path = FILE) -> tuple[dict[str, Any] | None, str]:
    """The entry of a model on this machine, its options complete; or None, and why in a few words."""
    entries, key = read(file), key_of(model, spec, batch)
    if entry := entries.get(key):
        try:
            return {**entry, "options": lossless(entry["method"], entry["options"], spec)}, ""
        except ConfigError as error:
            return None, f"its entry is ignored ({error})"
    same = [other for other in entries if other.startswith(key.partition(", batch ")[0] + f", batch {batch}, ")]
    return (
        None,
        f"an entry of another machine or version is ignored ({same[0]})"
        if same
        else "no entry for this machine and batch",
    )


def take_auto(config: Config) -> bool:
    """Take `auto` out of the methods of the section on images. Whether it was there."""
    if config.image is None or AUTO not in config.image.methods:
        return False
    if (variants := config.image.methods.pop(AUTO)) != [{}]:
        raise ConfigError(f"image.methods.{AUTO} = {variants}: has no options; allowed: [{{}}]")
    return True


def put_choice(config: Config) -> None:
    """Add the variant that `auto` stands for to the methods, which are complete; nothing if it is there already."""
    assert config.image is not None
    models = weights.models(config, "discrete")
    if len(models) != 1:
        raise ConfigError(
            f"image.methods.{AUTO}: {len(models)} models ({', '.join(models)}); allowed: with one of images"
        )
    (model, spec), batch = next(iter(models.items())), config.image.batch
    entry, problem = find(model, spec, batch)
    if entry is None:
        entry = {"method": UNTUNED, "options": options("discrete", UNTUNED, {})}
        message = f"image.methods.{AUTO}: {FILE}: {problem}; {model} at batch {batch} takes {UNTUNED} at its defaults"
        print(f"{message}. `parity tune` finds what is fastest here", file=sys.stderr)
    variants = config.image.methods.setdefault(entry["method"], [])
    if entry["options"] not in variants:
        variants.append(entry["options"])
