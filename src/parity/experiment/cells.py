"""The cells of an experiment: every combination of model, settings, method, options and seed that it asks for.

A cell's key is a digest of its specification: all that its samples depend on, and nothing else. So two experiments that
ask for the same decode it once, and an option changed and changed back computes nothing twice. What has its default is
left out of the key (`shorten`), so that an option that a later version adds renames no cell.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from parity.base import text_files
from parity.base.files import digest, sums
from parity.experiment import made, weights
from parity.experiment.decoder_sources import digest_source, get_short_name
from parity.experiment.options import (
    KINDS,
    LONGEST,
    cap_small,
    claim,
    declaration,
    find_plain_method,
    is_plain_decoding,
    needs,
    runs_on_enumerable,
    trains_draft,
)
from parity.experiment.options import options as fill_options
from parity.experiment.schema import DECODED, Config, HeadSpec, ModelSpec, PromptSpec, SamplingSpec, TextTasks

LOSSY = 5  # methods that claim to be lossy are tested on samples a fifth as large, because their faults are large
Condition = tuple[dict[str, Any], bool]  # settings that cells of all methods share; whether there is a control cell


@dataclass(frozen=True)
class Cell:
    """Samples of one method: where they come from, and what they are for.

    role  "reference": the baseline, with which the others are compared: plain decoding, or what `find_baseline` finds;
          "control": the same on another seed, the null row of every table; "method"; "again": a repetition on one more
          seed; "run": a further run of a reference or method, which gives its figures their spread
    """

    kind: str
    spec: dict[str, Any]
    role: str

    @cached_property
    def key(self) -> str:
        """Compute the cell's key, 8 hex digits."""
        return digest([self.kind, self.asked])

    @cached_property
    def asked(self) -> dict[str, Any]:
        """Return the specification without defaults."""
        return shorten(self.kind, self.spec)

    @property
    def name(self) -> str:
        return f"{self.spec['model']}/{get_short_name(self.spec['method'])}-{self.key}"

    @property
    def claim(self) -> str:
        return claim(self.kind, self.spec["method"], self.spec["options"])

    @property
    def is_repetition(self) -> bool:
        """Return whether the cell is of another one's row: a repetition or a further run of it."""
        return self.role in ("again", "run")

    @property
    def is_made(self) -> bool:
        """Return whether the cell's tokens were made elsewhere."""
        return made.is_made(self.kind, self.spec["method"])


SAMPLINGS: dict[str, type[SamplingSpec | HeadSpec]] = {"discrete": SamplingSpec, "continuous": HeadSpec}


def shorten(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a cell's specification the options and the settings of sampling that have their defaults."""
    defaults = {} if made.is_made(kind, spec["method"]) else fill_options(kind, spec["method"], {})
    short = {**spec, "options": drop_equal(spec["options"], defaults)}
    if "sampling" in spec:
        short["sampling"] = drop_equal(spec["sampling"], SAMPLINGS[kind]().model_dump())
    return short


def complete(kind: str, spec: dict[str, Any], family: str) -> dict[str, Any]:
    """Fill in what `shorten` left out. family: of the model, which reads some settings of sampling alone."""
    full = {**spec}
    if not made.is_made(kind, spec["method"]):
        full["options"] = fill_options(kind, spec["method"], spec["options"])
    if "sampling" in spec:
        reads = weights.read_family(family).get("reads") if kind == "continuous" else None
        defaults = SAMPLINGS[kind]().model_dump()
        full["sampling"] = {k: v for k, v in defaults.items() if reads is None or k in reads} | spec["sampling"]
    return full


def drop_equal(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Drop the values that equal the defaults of their names."""
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


@dataclass(frozen=True)
class Variant:
    """A method with its options as they run on enumerable models."""

    kind: str
    method: str
    options: dict[str, Any]  # options of the method; on enumerable models lengths are capped at a few positions
    claim: str
    n: int  # number of sequences drawn on each enumerable model, or of tokens on each long one
    longest: int = 0  # of long models: tokens of the longest image of the experiment, if more than LONGEST


def digest_prompts(prompts: Iterable[str]) -> str:
    """Digest the prompts of a set; once, because each of thousands of jobs is named by tens of thousands of them."""
    return digest_texts(tuple(prompts))


@lru_cache(maxsize=8)
def digest_texts(texts: tuple[str, ...]) -> str:
    """Digest texts: 16 hex digits of the SHA-256 of their lines."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def wrap_in_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def list_image_conditions(config: Config, prompts: list[str]) -> Iterator[Condition]:
    """List the settings that image cells of all methods share, for each model and sampling; all have a control cell."""
    section = config.image
    assert section is not None
    models = weights.list_models(config, "discrete").items()
    for (name, model), sampling in itertools.product(models, wrap_in_list(section.sampling)):
        shared: dict[str, Any] = {
            "model": name,
            "revision": weights.compute_revision(model),
            "prompts": digest_prompts(prompts),
        }
        shared |= {"repeats": section.prompts.repeats, "sampling": sampling.model_dump(), "dtype": section.dtype}
        yield shared, True


def list_text_tasks(config: Config) -> list[dict[str, Any]]:
    """List the tasks of the section `text` for every model: kind, settings, model, its revision, and as `key` a digest
    of these and of the content of the task's data file; [] without the section."""
    if config.text is None:
        return []
    tasks = []
    for (model, spec), kind in itertools.product(
        weights.list_models(config, "anysubset").items(), TextTasks.model_fields
    ):
        revision = weights.compute_revision(spec)
        for task in getattr(config.text.tasks, kind):
            settings = task.model_dump()
            file = Path(task.data)
            content = ""
            if task.data and file.is_file() and file.stat().st_size <= text_files.MOST:  # larger ones are refused later
                content = hashlib.sha256(file.read_bytes()).hexdigest()
            key = digest([kind, settings, content, revision])
            tasks.append({"kind": kind, "settings": settings, "model": model, "revision": revision, "key": key})
    return tasks


def list_text_conditions(config: Config, prompts: list[str]) -> Iterator[Condition]:
    """List the settings that text cells of all methods share, for each decoded task, model and use of the cache; all
    have a control cell. `prompts` is not read."""
    section = config.text
    assert section is not None
    models = weights.list_models(config, "anysubset")
    for task in list_text_tasks(config):
        has_cache = weights.read_family(models[task["model"]].family).get("cache", True)
        for cache in (section.cache if has_cache else [False]) if task["kind"] in DECODED else ():
            condition = {"model": task["model"], "revision": task["revision"], "task": task["key"]}
            condition |= {"task_kind": task["kind"], "prompt": task["settings"].get("prompt", "scattered")}
            yield condition | {"cache": cache, "batch": section.batch}, True


def captions(config: Config, kind: str) -> PromptSpec | None:
    """Return the captions that models of a kind read, which are part of what identifies them; None for no captions."""
    return config.continuous.captions if kind == "continuous" and config.continuous is not None else None


def dump_model(config: Config, kind: str, name: str) -> dict[str, Any]:
    """Dump what `fetch.make_manifest` reads: a model's entry, every default filled in, so that two ways to write it are
    one, and the captions that it reads, whose default limit takes fewer from a shorter file and so is not filled in."""
    spec = weights.list_models(config, kind)[name]
    entry = spec.model_dump(exclude={"methods"} if spec.source == "embedded" else {"methods", "grid"})
    read = captions(config, kind)
    return entry | ({"captions": read.model_dump(exclude_defaults=True)} if read else {})


def find_baseline(config: Config, kind: str) -> dict[str, Any] | None:
    """Find the options of the variant that takes the place of plain decoding as the baseline: the first of its method,
    as `mar` with iterations, where the section names none that is plain decoding. None where it does."""
    method = find_plain_method(kind)
    variants = getattr(config, KINDS[kind]).methods.get(method, [])
    has_plain = any(is_plain_decoding(kind, method, variant) for variant in variants)
    return None if has_plain or not variants else variants[0]


def list_continuous_conditions(config: Config, prompts: list[str]) -> Iterator[Condition]:
    """List the settings that continuous cells of all methods share, for each model, sampling (those fields that the
    model reads) and batch, included because it affects speed, as does a baseline that is not plain decoding; the first
    batch alone has a control cell."""
    section = config.continuous
    assert section is not None
    listed: list[dict[str, Any]] = []
    baseline = find_baseline(config, "continuous")
    models = weights.list_models(config, "continuous").items()
    for (model, spec), sampling, batch in itertools.product(models, wrap_in_list(section.sampling), section.batch):
        reads = weights.read_family(spec.family)["reads"]
        shared = {
            "model": model,
            "revision": weights.compute_revision(spec, section.captions),
            "sampling": {k: v for k, v in sampling.model_dump().items() if k in reads},
            "images": section.images,
            "batch": batch,
        }
        if baseline is not None:
            shared["baseline"] = baseline
        if shared not in listed:
            listed.append(shared)
            yield shared, batch == section.batch[0]


CONDITIONS = {
    "discrete": list_image_conditions,
    "anysubset": list_text_conditions,
    "continuous": list_continuous_conditions,
}


def kinds(config: Config) -> list[str]:
    """List the kinds of model that the experiment has a section of."""
    return [kind for kind, section in KINDS.items() if getattr(config, section) is not None]


def digest_speculator(config: Config, kind: str, method: str, model: str) -> dict[str, str]:
    """Return {speculator: digest of its weights} if a method needs the embedded drafter or draft model, else {},
    because the files of other models are all in their revision."""
    speculator = needs(kind, method)
    embedded = kind == "discrete" and weights.list_models(config, kind)[model].source == "embedded"
    if not speculator or not embedded:
        return {}
    return {speculator: sums(weights.EMBEDDED).get(f"{speculator}.safetensors", "")[:16]}


def name_draft(config: Config, kind: str, method: str, model: str) -> str:
    """Name the file of the draft network that a decoder of others trains for a model: by the decoder's code and by what
    the rows that it learns from depend on. "" for a decoder that trains none."""
    if not trains_draft(kind, method) or config.image is None:
        return ""
    image = config.image
    prompts = image.prompts.model_dump(exclude={"shards", "jobs"}, exclude_defaults=True)
    rows = [prompts, wrap_in_list(image.sampling)[0].model_dump(exclude_defaults=True)]
    key = digest([kind, method, digest_source(kind, method), *rows, image.dtype])
    revision = weights.compute_revision(weights.list_models(config, kind)[model])
    return f"results/drafts/{model}-{revision}/{get_short_name(method)}-{key}/weights"


def describe_source(config: Config, kind: str, method: str, model: str) -> dict[str, str]:
    """Describe what the samples of a decoder of others depend on beside its options: the digest of its code and the
    file of its draft network, if it trains one; {} for ours."""
    described = {"source": digest_source(kind, method), "own_draft": name_draft(config, kind, method, model)}
    return {name: value for name, value in described.items() if value}


def list_runs(config: Config, cell: Cell) -> list[Cell]:
    """List the further runs of a cell of vectors (`continuous.repeats`): as many images each, numbered on; [] for
    controls and repetitions."""
    section = config.continuous
    if cell.kind != "continuous" or section is None or cell.role not in ("reference", "method"):
        return []
    firsts = (run * section.images for run in range(1, section.repeats))
    return [Cell(cell.kind, {**cell.spec, "first": first}, "run") for first in firsts]


def lacks_speculator(kind: str, method: str, model: ModelSpec) -> bool:
    """Return whether a published model of vectors has no draft model, which a method needs: it is not run on it."""
    speculator = needs(kind, method) if kind == "continuous" else ""
    return bool(speculator) and model.source != "embedded" and not model.folder and speculator not in model.files


def cells(config: Config, prompts: list[str]) -> list[Cell]:
    """List every cell of an experiment: the baseline as reference and as control under independent seeds, every other
    variant of a method once, each with its further runs; with `config.repeat`, each variant once more."""
    result = []
    seeds = config.seeds
    for kind in kinds(config):
        methods = getattr(config, KINDS[kind]).methods
        baseline = find_plain_method(kind), find_baseline(config, kind)
        models = weights.list_models(config, kind)
        for shared, controlled in CONDITIONS[kind](config, prompts):
            for method, chosen in [(m, variant) for m, variants in methods.items() for variant in variants]:
                prompt = declaration(kind, method).PROMPT
                if prompt is not None and shared.get("prompt") != prompt:
                    continue
                if lacks_speculator(kind, method, models[shared["model"]]):
                    continue
                if kind == "anysubset" and not weights.runs_method(models[shared["model"]], method):
                    continue
                roles = [("method", seeds.methods)]
                if is_plain_decoding(kind, method, chosen) or (method, chosen) == baseline:
                    roles = [("reference", seeds.reference)] + [("control", seeds.control)] * controlled
                is_made = made.is_made(kind, method)
                is_repeated = bool(chosen["again"]) if is_made else config.repeat
                for role, seed in [*roles, *([("again", seeds.again)] if is_repeated else [])]:
                    spec = {**shared, **digest_speculator(config, kind, method, shared["model"])}
                    spec |= {"files": made.digest_files(chosen)} if is_made else {}
                    spec |= {} if is_made else describe_source(config, kind, method, shared["model"])
                    cell = Cell(kind, {**spec, "method": method, "options": chosen, "seed": seed}, role)
                    result += [cell, *list_runs(config, cell)]
    return result


def find_reference(cell: Cell, all_cells: list[Cell]) -> Cell:
    """Find the reference cell that a cell is compared with: the baseline whose specification is otherwise the same,
    except for method, options, seed, code, speculator and files."""
    own_keys = {"method", "options", "seed", "source", "own_draft", "files", *weights.SPECULATORS}

    def drop_own_keys(spec: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in spec.items() if k not in own_keys}

    spec = drop_own_keys(cell.spec)
    references = (c for c in all_cells if c.role == "reference" and c.kind == cell.kind)
    return next(c for c in references if drop_own_keys(c.spec) == spec)


def group_cells(all_cells: list[Cell]) -> list[list[Cell]]:
    """Group the cells that are timed beside one reference, repetitions and tokens made elsewhere aside; the reference
    stands first."""
    groups: dict[str, list[Cell]] = {c.key: [c] for c in all_cells if c.role == "reference"}
    for cell in (c for c in all_cells if c.role in ("control", "method") and not c.is_made):
        groups[find_reference(cell, all_cells).key].append(cell)
    return list(groups.values())


def variant(config: Config, cell: Cell) -> Variant | None:
    """Choose how a cell's method runs on enumerable models: options with capped lengths, and the number of sequences,
    fewer for a lossy claim. None if it does not run on them."""
    method = cell.spec["method"]
    options = cell.spec["options"]
    n = config.equality.n
    if not runs_on_enumerable(cell.kind, method, options):
        return None
    n = n if cell.claim == "lossless" else max(10_000, n // LOSSY)
    return Variant(cell.kind, method, cap_small(cell.kind, method, options), cell.claim, n)


def long_variant(config: Config, cell: Cell) -> Variant | None:
    """Choose how a cell's method runs on long models: its options, the number of tokens, fewer for a lossy claim, and
    the length of the experiment's images. None if it does not run on them, or `equality.long` is 0."""
    method = cell.spec["method"]
    options = cell.spec["options"]
    n = config.equality.long
    if not n or not runs_on_enumerable(cell.kind, method, options):
        return None
    n = n if cell.claim == "lossless" else max(1, n // LOSSY)
    return Variant(cell.kind, method, options, cell.claim, n, find_longest(config, cell.kind))


def find_longest(config: Config, kind: str) -> int:
    """Find how many tokens the longest images of an experiment's image models have; 0 for LONGEST or fewer, which
    long models always have, and for other kinds."""
    if kind != "discrete":
        return 0
    models = weights.list_models(config, kind).values()
    longest = max(weights.count_positions(model).length for model in models)
    return longest if longest > LONGEST else 0


def variant_key(config: Config, v: Variant) -> str:
    e = config.equality
    return digest([v.kind, v.method, v.options, v.n, e.models, e.seeds[:2], e.alpha])


def long_key(config: Config, v: Variant) -> str:
    e = config.equality
    longest = [v.longest] if v.longest else []
    return digest(["long", v.kind, v.method, v.options, v.n, e.seeds[:2], e.alpha, *longest])


def test_key(config: Config, exact: Variant | None, long: Variant | None) -> str:
    """Digest what the tests of a method on enumerable (exact) and long models depend on; None: no such tests."""
    return digest([exact and variant_key(config, exact), long and long_key(config, long)])
