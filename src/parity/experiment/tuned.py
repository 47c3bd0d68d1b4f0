"""tuned.yaml: the fastest lossless method on a machine, as `parity tune` measured it; `auto` in a configuration.

    scenes@0123abcd, batch 32, AMD EPYC, 2 cores, parity 0.1.0:
      {method, options, compiled, seconds: each, times: plain decoding, table: [all that was measured]}

Planning reads the file and times nothing: `auto` becomes an ordinary variant, chosen before anything is sampled. The
file is part of no key of a cell; the method and the options are.
"""

import importlib.metadata
import sys
from pathlib import Path
from typing import Any, NamedTuple

from parity.base import machine
from parity.base.errors import ConfigError
from parity.base.files import dump_canonical
from parity.experiment import model_checks, weights
from parity.experiment.cells import CONDITIONS
from parity.experiment.config_overlay import read_entries
from parity.experiment.options import AUTO, KINDS, claim, declaration, list_bounds, needs, options
from parity.experiment.schema import Config, ModelSpec

FILE = Path("tuned.yaml")
UNTUNED = {"discrete": "sjd_coupled", "anysubset": "assd", "continuous": "spec_head"}  # `auto` without an entry
FIELDS = {"method", "options", "compiled", "seconds", "times"}  # keys that an entry must have


class Case(NamedTuple):
    """What a choice is for: a model, and the first of the settings under which its section decodes."""

    kind: str
    model: str
    spec: ModelSpec
    batch: int
    setting: dict[str, Any]  # settings that the cells of all methods share, see `cells.CONDITIONS`

    @property
    def key(self) -> str:
        """Make the key of the case's entry: model, revision, task or steps, batch, machine, version."""
        task, sampling = self.setting.get("task_kind"), self.setting.get("sampling", {})
        on = f"{task} {self.setting['task']}, " if task else ""
        on += f"{sampling['steps']} steps, " if "steps" in sampling else ""
        suffix = f"{machine.identify_machine()}, parity {version()}"
        return f"{self.model}@{self.setting['revision']}, {on}batch {self.batch}, {suffix}"


def version() -> str:
    return importlib.metadata.version("parity")


def list_cases(config: Config, kind: str) -> list[Case]:
    """List a case for each model of a section, at the section's first batch and first other settings."""
    first: dict[str, dict[str, Any]] = {}
    for shared, _ in CONDITIONS[kind](config, []):
        first.setdefault(shared["model"], shared)
    batch = getattr(config, KINDS[kind]).batch
    models = weights.list_models(config, kind)
    batch = batch[0] if isinstance(batch, list) else batch
    return [Case(kind, name, models[name], batch, setting) for name, setting in first.items()]


def read(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """Read the entries of a file by key; {} if it does not exist. Raises ConfigError for a file that `parity tune` did
    not write."""
    return read_entries(file, FIELDS, "tune")


def complete_lossless(kind: str, method: str, values: Any, spec: ModelSpec) -> dict[str, Any]:
    """Return a variant's options, completed with defaults. Raises ConfigError unless it is lossless and can run on the
    model of `spec`."""
    if not isinstance(method, str):
        raise ConfigError(f"unknown method {method!r}")
    chosen = complete_runnable(kind, method, values, "", spec)
    declared = declaration(kind, method)
    if claim(kind, method, chosen) != "lossless" or declared.CONTROL or declared.NETWORK != "target":
        raise ConfigError(f"{method}: not lossless with {values}")
    return chosen


def complete_runnable(kind: str, method: str, values: Any, model: str, spec: ModelSpec) -> dict[str, Any]:
    """Return a method's options, completed with defaults. Raises ConfigError for a wrong option, one that counts more
    positions or tokens than the model of `spec` has, and a method that this model, `model` in messages, cannot run."""
    chosen = options(kind, method, values, method)
    if kind == "discrete":
        model_checks.check_needs(method, model, spec)
    elif kind == "continuous":
        model_checks.check_pair(model, bool(needs(kind, method)), spec)
    for name, bound in list_bounds(kind, method, weights.list_option_sizes(spec)).items():
        if chosen[name] > bound:
            raise ConfigError(f"{method}.{name} = {chosen[name]}: allowed: at most {bound}")
    return chosen


def find(case: Case, file: Path = FILE) -> tuple[dict[str, Any] | None, str]:
    """Find the entry of a case on this machine. Returns it, its options completed, and ""; or None, and why in a few
    words, if there is none or it is not valid any more."""
    entries = read(file)
    key = case.key
    if entry := entries.get(key):
        try:
            return {**entry, "options": complete_lossless(case.kind, entry["method"], entry["options"], case.spec)}, ""
        except ConfigError as error:
            return None, f"its entry is ignored ({error})"
    others_of_case = [
        other_key
        for other_key in entries
        if other_key.startswith(key.partition(", batch ")[0] + f", batch {case.batch}, ")
    ]
    if others_of_case:
        return None, f"an entry of another machine or version is ignored ({others_of_case[0]})"
    return None, "no entry for this machine and batch"


def put_choice(config: Config, kind: str) -> None:
    """Add, in place, the variant that `auto` stands for to a section's methods, unless it is there: the file's, or that
    of UNTUNED. Prints it to stderr. Raises ConfigError unless the section has one model, and a task that is decoded."""
    key = f"{KINDS[kind]}.methods.{AUTO}"
    models = weights.list_models(config, kind)
    if len(models) != 1:
        raise ConfigError(f"{key}: {len(models)} models ({', '.join(models)}); allowed: with one in the section")
    if not (ready := list_cases(config, kind)):
        raise ConfigError(f"{key}: no task is decoded; allowed: with a task of infilling, stories or code")
    (case,) = ready
    entry, problem = find(case)
    if entry is None:
        method = UNTUNED[kind]
        entry = {"method": method, "options": options(kind, method, {})}
        message = f"{key}: {FILE}: {problem}; {case.model} at batch {case.batch} takes {method} at its defaults"
        print(f"{message}. `parity tune` finds what is fastest here", file=sys.stderr)
    else:
        print(f"{key}: {entry['method']} {dump_canonical(entry['options'])}, as {FILE} has it", file=sys.stderr)
    variants = getattr(config, KINDS[kind]).methods.setdefault(entry["method"], [])
    if entry["options"] not in variants:
        variants.append(entry["options"])
