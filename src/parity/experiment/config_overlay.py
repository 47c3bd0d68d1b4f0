"""The configuration before it is checked: the command line is laid over it, files are located, sizes are scaled.

Snakemake reads nested values of `--config` as text; here they are YAML, like the file's own. The overlay is deep: one
key of one section changes that key. `null` removes a key, a list replaces a list.
"""

import copy
import datetime
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from parity.base.errors import ConfigError
from parity.base.text_files import read_text
from parity.experiment import weights
from parity.experiment.schema import (
    CLASSES,
    Config,
    ContinuousSection,
    ImageSection,
    PromptSpec,
    TextSection,
)

SECTIONS: dict[str, type[BaseModel]] = {"image": ImageSection, "text": TextSection, "continuous": ContinuousSection}
FEWEST = 2  # smallest number of prompts, texts or images of which a figure with an error can be made
FEWEST_COMPARED = 8  # smallest number of images that are compared with a reference: FID, precision and recall need it
UNLIKE = re.compile(r"[-+]?(0[0-7_]*[1-7][0-7_]*|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")  # octal, and base 60
DATA = (  # patterns of keys whose values are files of data, or folders of them
    "image.prompts.file", "image.reference", "text.tasks.*.*.data", "continuous.captions.file", "continuous.reference",
)  # fmt: skip
FILES = (*DATA, "networks.*.file", "models.*.folder")
Keys = tuple[Any, ...]  # keys and indices that lead to a value
ELSEWHERE = (CLASSES, "datasets:", "https://", "http://")  # what begins so is no file of this machine
CAPTIONS = "prompts/plain.txt"  # the workflow's own, which take the place of absent ones
LABELS = f"{CLASSES}1000"  # a prompt set of numbers, as many as are asked for, which needs no file


def read_experiment(file: Path) -> Any:
    """Read the content of an experiment's JSON or YAML file, unchecked: as JSON if it is JSON, because YAML takes no
    tabs and reads 1e-3 as text. Raises ConfigError if it cannot be read, or holds a number that YAML reads as
    another (`load_yaml`)."""
    try:
        text = read_text(file)
        try:
            return json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            return load_yaml(text, f"{file}: ")
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" in line {line + 1}: {getattr(error, 'problem', '')}"
        raise ConfigError(f"{file}: no experiment that can be read{where or f': {lines[0]}'}") from None


def load_yaml(text: str, label: str) -> Any:
    """Load YAML. Raises ConfigError, which begins with `label`, for a number that YAML 1.1 reads as another than it
    seems to be (010, 1:30); ValueError or YAMLError for what cannot be read."""
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and UNLIKE.fullmatch(event.value):
            decimal = "" if ":" in event.value else str(int(event.value))
            if decimal != (number := str(yaml.safe_load(event.value))):
                allowed = " or ".join(filter(None, (number, decimal)))
                mark: Any = event.start_mark
                raise ConfigError(
                    f"{label}line {mark.line + 1}: {event.value}, which YAML reads as {number};"
                    f" allowed: {allowed}, or a text in quotes"
                )
    return yaml.safe_load(text)


def read_entries(file: Path, fields: Set[str], command: str) -> dict[str, dict[str, Any]]:
    """Read the entries, by key, of a YAML file that `parity <command>` writes; {} if it does not exist. Raises
    ConfigError for another file, as one with an entry that lacks one of the `fields`."""
    try:
        entries = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (yaml.YAMLError, UnicodeDecodeError, OSError):
        entries = None
    if not isinstance(entries, dict) or not all(isinstance(e, dict) and fields <= {*e} for e in entries.values()):
        remedy = f"to delete it and {command.split()[-1]} again"
        raise ConfigError(f"{file}: not what `parity {command}` wrote; allowed: {remedy}")
    return entries


def is_complete(files: Sequence[Path], config: Mapping[str, Any]) -> bool:
    """Return whether one of the files, or the mapping `config` that another workflow gives, has a section (image, text,
    continuous): then it replaces the default experiment, instead of being laid over it. Raises ConfigError for a file
    that cannot be read (`read_experiment`)."""
    configurations = [config, *(read_experiment(Path(file)) or {} for file in files)]
    return any(section in one for one in configurations if isinstance(one, Mapping) for section in SECTIONS)


def parse_value(value: Any) -> Any:
    """Parse a value of `--config`, and all texts inside it, as YAML, because Snakemake leaves the numbers inside a
    mapping or a list as text. Text that is no YAML stays, and so does a date. Raises ConfigError for a number that YAML
    reads as another (`load_yaml`)."""
    if isinstance(value, Mapping):
        return {str(key): parse_value(v) for key, v in value.items()}
    if isinstance(value, list):
        return [parse_value(v) for v in value]
    try:
        parsed = load_yaml(value, "--config: ") if isinstance(value, str) else value
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError):
        return value
    return value if isinstance(parsed, datetime.date) else parsed


def put_in_section(key: str, value: Any) -> dict[str, Any]:
    """Make {section: {key: value}} of a key of the command line that one section has: `prompts={limit: 4}` is
    `image={prompts: {limit: 4}}`. {key: value} for a key of the top level, or an unknown one. Raises ConfigError for a
    key that several sections have."""
    sections = [name for name, schema in SECTIONS.items() if key in schema.model_fields]
    if key in Config.model_fields or not sections:
        return {key: value}
    if len(sections) > 1:
        ways = " or ".join(f"'{name}={{{key}: ...}}'" for name in sections)
        raise ConfigError(f"--config {key} = {value!r}: a key of {', '.join(sections)}; allowed: --config {ways}")
    return {sections[0]: {key: value}}


def merge(base: dict[str, Any], overlay: Mapping[str, Any]) -> None:
    """Change `base` in place by the values of `overlay`, mapping by mapping; a value of None removes a key."""
    for key, value in overlay.items():
        if value is None:
            base.pop(key, None)
        elif isinstance(value, Mapping):
            old = base.get(key)
            base[key] = dict(old) if isinstance(old, Mapping) else {}
            merge(base[key], value)
        else:
            base[key] = value


def overlay_config(raw: Mapping[str, Any], command_line: Mapping[str, Any]) -> dict[str, Any]:
    """Make the configuration that results from laying `--config` over `raw`, both as Snakemake read them. Raises
    ConfigError for a YAML alias that refers to what it is in."""
    result: dict[str, Any] = {}
    key = ""
    try:
        for key, value in raw.items():
            if key not in command_line or key in Config.model_fields:
                merge(result, {key: value})
        for key, value in command_line.items():
            merge(result, put_in_section(key, parse_value(value)))
    except RecursionError:
        raise ConfigError(f"{key}: an alias of YAML refers to what it is in; allowed: values that end") from None
    return result


def iter_values(value: Any, pattern: Sequence[str], path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield the values at a pattern of keys, each after the keys that lead to it; `*` matches every key or index."""
    if not pattern:
        yield path, value
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        if pattern[0] in ("*", key):
            yield from iter_values(inner, pattern[1:], (*path, key))


def find_holder(raw: dict[str, Any], path: Sequence[Any]) -> dict[str, Any]:
    """Find the mapping that holds the last of the keys of a path."""
    return reduce(getitem, path[:-1], raw)


def list_absent(raw: dict[str, Any], patterns: Sequence[str]) -> list[tuple[Keys, str]]:
    """List the files that a configuration names at these patterns of keys and that do not exist on this machine, each
    after the keys that lead to it; not those of repositories or at addresses."""
    named = [pair for pattern in patterns for pair in iter_values(raw, pattern.split("."))]
    texts = [(path, name) for path, name in named if isinstance(name, str) and name and not name.startswith(ELSEWHERE)]
    # Not Path.exists, which raises for a name that is too long; the checks refuse such a name later.
    return [(path, name) for path, name in texts if not find_holder(raw, path).get("repo") and not os.path.exists(name)]


def resolve_paths(raw: dict[str, Any], find: Callable[[str], str]) -> dict[str, Any]:
    """Replace, in place, the files of a configuration that do not exist from here by find(name), because the workflow
    may run from another folder than its own. Returns `raw`."""
    image = raw.get("image")
    default = PromptSpec().file
    if isinstance(image, dict) and isinstance(image.get("prompts", {}), dict) and not Path(default).exists():
        image["prompts"] = {"file": default, **image.get("prompts", {})}
    for path, name in list_absent(raw, FILES):
        find_holder(raw, path)[path[-1]] = find(name)
    for section in SECTIONS:
        for _, methods in iter_values(raw, (section, "methods")):
            for method in [name for name in methods if ".py:" in str(name)] if isinstance(methods, dict) else ():
                file, _, function = method.rpartition(":")
                if not os.path.exists(file):
                    methods[f"{find(file)}:{function}"] = methods.pop(method)
    return raw


def replace_absent_data(raw: dict[str, Any], captions: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Make a copy of a configuration that does without data which are not here, for a plan or a trial, and a line for
    each of them: prompts become numbers, captions the workflow's own, texts embedded ones; images to compare with, and
    networks that judge, are left out. captions: prompts become the workflow's own captions, too, of which are few."""
    raw = copy.deepcopy(raw)
    lines = []
    for path, name in list_absent(raw, (*DATA, "networks.*.file")):
        lines.append(f"{'.'.join(map(str, path))} = {name!r}: no such file; put it there")
        holder = find_holder(raw, path)
        if path[0] == "networks":
            del raw["networks"][path[1]]
        elif path[-1] == "file":
            is_numbered = path[0] == "image" and (not captions or holder.get("format") == "labels")
            for key in ("format", "column", "caption"):
                holder.pop(key, None)
            holder |= {"file": LABELS} if is_numbered else {"file": CAPTIONS, "limit": 32}
        else:
            del holder[path[-1]]
    return raw, lines


def has_published_images(raw: dict[str, Any]) -> bool:
    """Return whether a configuration names a published model of images, as far as it can be read."""
    families = [*weights.list_families("discrete"), *weights.list_families("continuous")]  # a value may be no text
    specs = [spec for _, spec in iter_values(raw, ("models", "*")) if isinstance(spec, dict)]
    return any(spec.get("source", "embedded") != "embedded" and spec.get("family") in families for spec in specs)


def add_networks(raw: dict[str, Any]) -> dict[str, Any]:
    """Add, in place, the networks of the protocol that a configuration names, if it has a published model of images
    and no `networks` of its own; `networks: {}` declares none. Returns `raw`."""
    protocol = raw.get("protocol")
    if isinstance(protocol, str) and "networks" not in raw and has_published_images(raw):
        raw["networks"] = weights.list_protocol_networks(protocol)
    return raw


def scale_config(config: Config) -> Config:
    """Make the experiment that `config.scale` asks for: that share of the prompts, texts and images of every section,
    two at least, named `<experiment>-x<scale>`. Its tests stay as they are. The configuration itself if nothing is left
    out.

    A trial on small stand-ins takes two, of runs too, or of images that are compared with a reference FEWEST_COMPARED;
    one job decodes a cell, because starting a job takes longer than these, and speeds are predicted, because those of
    random networks say nothing.
    """
    is_trial = config.stand_in is True or getattr(config.stand_in, "size", "") == "small"
    if config.scale == 1 and not is_trial:
        return config
    update: dict[str, Any] = {"scale": 1.0}
    one_job = {"jobs": 1} if is_trial else {}
    if is_trial:
        update["timing"] = config.timing.model_copy(update={"seconds": 0.0})
    if config.scale != 1:
        update["experiment"] = f"{config.experiment}-x{config.scale:g}"

    def share(n: int, reference: str = "") -> int:
        """Return how many of n prompts, texts or images are run; reference: what a section compares its images with."""
        if is_trial:
            return min(n, FEWEST_COMPARED if reference else FEWEST)
        return min(n, max(FEWEST, math.ceil(n * config.scale)))

    def limit_shards(shards: int | None, rows: int, repeats: int = 1) -> dict[str, int]:
        """Limit shards, if they are named, to a number of rows, and a trial's jobs to one: the keys that change."""
        rows = min(rows, FEWEST) if is_trial else rows
        return one_job | ({} if shards is None else {"shards": min(shards, rows * repeats)})

    if config.image is not None:
        prompts = config.image.prompts
        limit = share(prompts.limit, config.image.reference)
        smaller = {"limit": limit, **limit_shards(prompts.shards, limit, prompts.repeats)}
        update["image"] = config.image.model_copy(update={"prompts": prompts.model_copy(update=smaller)})
    if config.text is not None:
        tasks = {
            kind: [task.model_copy(update={"rows": share(task.rows)}) for task in task_list]
            for kind, task_list in config.text.tasks
        }
        fewer = config.text.tasks.model_copy(update=tasks)
        shards = limit_shards(config.text.shards, fewer.count_fewest())
        update["text"] = config.text.model_copy(update={"tasks": fewer, **shards})
    if config.continuous is not None:
        images = share(config.continuous.images, config.continuous.reference)
        repeats = min(config.continuous.repeats, FEWEST) if is_trial else config.continuous.repeats
        shards = limit_shards(config.continuous.shards, images)
        update["continuous"] = config.continuous.model_copy(update={"images": images, "repeats": repeats, **shards})
    return config.model_copy(update=update)
