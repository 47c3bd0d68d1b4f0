"""What a schema cannot see: methods and their options, weights and data that are there, settings that go together.

Everything stops here, before any job, with one line that names the key, the value and what is allowed. Modules that few
experiments need are imported where they are needed, because every run waits for these imports.
"""

import itertools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from parity.base.errors import ConfigError
from parity.base.files import dump_canonical
from parity.base.text_files import describe_missing, read_table
from parity.experiment import (
    code_digest,
    made,
    model_checks,
    pins,
    prompt_files,
    study,
    weights,
)
from parity.experiment.cells import Cell, cells, kinds, lacks_speculator, wrap_in_list
from parity.experiment.config_overlay import add_networks, read_experiment, resolve_paths, scale_config
from parity.experiment.decoder_sources import get_short_name
from parity.experiment.options import (
    AUTO,
    KINDS,
    check_decoder,
    declaration,
    find_plain_method,
    list_bounds,
    methods,
    needs,
    options,
    tell_renamed,
)
from parity.experiment.prompt_files import check_embedded, read_prompts
from parity.experiment.schema import (
    Config,
    ContinuousSection,
    ImageSection,
    ModelSpec,
    PromptSpec,
    ShardedSection,
    TextSection,
    validate,
)


class Plan(NamedTuple):
    config: Config
    prompts: list[str]
    cells: list[Cell]
    notes: list[str]  # lines to print for the user, such as which prompts are not used


def make_plan(
    raw: dict[str, Any],
    find: Callable[[str], str],
    pin: pins.Pin,
    published: Sequence[Any],
    make: Callable[..., Any] | None = None,
) -> Plan:
    """Make the plan of an experiment from its configuration `raw`: the checked configuration, scaled, its prompts and
    cells. Raises ConfigError for the first thing that is wrong. `find` gives a path for a name that does not exist from
    here; `pin` gives a repository's commit; `published` are CSV files of papers' tables; `make` writes stand-ins, in
    place of `stand_in.make_stand_ins`."""
    ready = pins.fill_pins(use_stand_ins(add_networks(resolve_paths(raw, find)), make), pin)
    loaded = make_config(resolve_paths(ready, find))
    notes = describe_unread(loaded)
    config = scale_config(count_prompts(loaded))
    check_sources(config, published)
    if config.image is None:
        return Plan(config, [], cells(config, []), notes)
    max_words = count_allowed_words(config)
    prompts = read_prompts(config.image.prompts, max_words=max_words)
    if max_words:
        check_embedded(prompts, config.image.prompts, drawn=not config.image.reference)
    for spec in [spec for spec in weights.list_models(config, "discrete").values() if "text" in spec.files]:
        from parity.experiment import caption_cleaning

        caption_cleaning.check_prompts(prompts, spec, f"image.prompts.file = {config.image.prompts.file!r}: ")
    return Plan(config, prompts, cells(config, prompts), notes)


def use_stand_ins(raw: dict[str, Any], make: Callable[..., Any] | None = None) -> dict[str, Any]:
    """Make the trial that a configuration with `stand_in` asks for; return any other itself."""
    if not raw.get("stand_in"):
        return raw
    from parity.experiment import stand_in

    return stand_in.use_stand_ins(raw, make or stand_in.make_stand_ins)


def count_prompts(config: Config) -> Config:
    """Return the configuration with image.prompts.limit set to the number of prompts that are read, if it names no
    limit, because the file may hold fewer than the default."""
    if config.image is None or "limit" in config.image.prompts.model_fields_set:
        return config
    prompts = config.image.prompts.model_copy(update={"limit": len(prompt_files.read_rows(config.image.prompts))})
    return config.model_copy(update={"image": config.image.model_copy(update={"prompts": prompts})})


def describe_unread(config: Config) -> list[str]:
    """Describe in a line each prompt set of which a default limit, or the file itself, leaves out prompts, and each
    method that is not run on a model without a draft model."""
    specs: dict[str, PromptSpec | None] = {
        "image.prompts": config.image.prompts if config.image else None,
        "continuous.captions": config.continuous.captions if config.continuous else None,
    }
    lines = []
    for method, (name, model) in itertools.product(
        config.continuous.methods if config.continuous else (), weights.list_models(config, "continuous").items()
    ):
        if lacks_speculator("continuous", method, model):
            lines.append(f"models.{name} names no draft model: {method} is not run on it")
    for key, spec in specs.items():
        if spec is not None and "limit" not in spec.model_fields_set:
            number = sum(1 for _ in prompt_files.iter_rows(spec, Path(), f"{key}.file = {spec.file!r}"))
            if number > spec.limit:
                used = f"{spec.limit:,} of the {number:,} prompts of {spec.file} are used"
                lines.append(f"{used}; {key}.limit takes more")
        if spec is not None:
            lines += prompt_files.describe_left_out(spec)
    return lines


def find_in_clone(name: str) -> str:
    """Find a file by its name in a clone of the project; return the name itself if there is no such file."""
    file = code_digest.ROOT.parent / name
    return str(file) if os.path.exists(file) else name


def read_config(file: Path) -> tuple[Config, list[str]]:
    """Read and check the experiment of a file, as commands outside the workflow do, without the method `auto`, which
    `parity tune` chooses. Returns it and the kinds of model that had `auto`. May write stand-ins."""
    raw = read_experiment(file)
    auto = []
    for kind, section in KINDS.items():
        if isinstance(raw.get(section), dict) and isinstance(raw[section].get("methods"), dict):
            auto += [kind] if raw[section]["methods"].pop(AUTO, None) else []
    raw = use_stand_ins(add_networks(resolve_paths(raw, find_in_clone)))
    return make_config(pins.fill_pins(raw, pins.make_pin_reader())), auto


RENAMED = {("image", "companions"): "speculators"}  # section and key that an earlier version had, and today's key


def rename_old_keys(raw: dict[str, Any]) -> dict[str, Any]:
    """Give the keys of an earlier version their names of today, and say so in a line each."""
    for (section, old), new in RENAMED.items():
        values = raw.get(section)
        if isinstance(values, dict) and old in values and new not in values:
            raw = {**raw, section: {new if key == old else key: value for key, value in values.items()}}
            tell_renamed(f"{section}.{old} is called {section}.{new} now")
    return raw


def make_config(raw: dict[str, Any]) -> Config:
    """Make the configuration from its YAML, `raw`: methods with all their options, `auto` replaced by the method that
    it stands for. Raises ConfigError for the first thing that is wrong."""
    value = validate(Config, rename_old_keys(raw), "")
    auto = take_auto(value)
    for kind in kinds(value):
        complete_methods(kind, getattr(value, KINDS[kind]).methods)
    if value.image is not None and made.MADE in value.image.methods:
        made.check_variants(f"image.methods.{made.MADE}", value.image.methods[made.MADE], bool(value.stand_in))
    check_models(value)
    check_judges(value)
    for kind in auto:
        from parity.experiment import tuned

        tuned.put_choice(value, kind)
    if value.image is not None:
        check_image(value.image, weights.list_models(value, "discrete"))
    if value.text is not None:
        check_text(value.text, weights.list_models(value, "anysubset"))
    if value.continuous is not None:
        check_continuous(value.continuous, weights.list_models(value, "continuous"))
    check_studies(value)
    check_timing(value)
    return value


def take_auto(config: Config) -> list[str]:
    """Remove `auto` from all sections, in place; return the kinds that had it. Raises ConfigError if it has options."""
    auto = [kind for kind in kinds(config) if AUTO in getattr(config, KINDS[kind]).methods]
    for kind in auto:
        if (variants := getattr(config, KINDS[kind]).methods.pop(AUTO)) != [{}]:
            raise ConfigError(f"{KINDS[kind]}.methods.{AUTO} = {variants}: has no options; allowed: [{{}}]")
    return auto


def check_timing(value: Config) -> None:
    """Check that methods to be timed are of the experiment. Raises ConfigError."""
    known = [m for kind in kinds(value) for m in getattr(value, KINDS[kind]).methods if not made.is_made(kind, m)]
    for method in [] if value.timing.methods == "all" else value.timing.methods:
        if method not in known:
            raise ConfigError(f"timing.methods = [{method}]: not of this experiment; allowed: all, {', '.join(known)}")


def check_models(value: Config) -> None:
    """Check that every model's family exists, and, of kinds that have a section, that models are of allowed sizes and
    their files are named, exist and are whole. Raises ConfigError."""
    for name, spec in value.models.items():
        kind = weights.find_kind(spec.family, f"models.{name}.family")
        if kind not in kinds(value):
            continue
        if spec.folder and kind != "continuous":
            raise ConfigError(f"models.{name}.folder = {spec.folder!r}: allowed: for continuous pairs alone")
        if spec.methods and kind != "anysubset":
            raise ConfigError(f"models.{name}.methods = {spec.methods}: allowed: for text models alone")
        if kind == "discrete":
            model_checks.check_network(name, spec)
        model_checks.check_files(name, spec)
        if spec.files:
            from parity.experiment import checkpoint_files

            checkpoint_files.check_model(name, spec)
        if kind == "anysubset":
            model_checks.check_text_folders(name, spec.files, weights.read_family(spec.family)["files"][0])


def check_judges(value: Config) -> None:
    """Check that the protocol is known and fits the CLIP network, and that networks that judge, and images to compare
    with, exist. Raises ConfigError."""
    recipes = weights.read_protocols()
    if value.protocol not in recipes:
        raise ConfigError(f"protocol = {value.protocol!r}: unknown; allowed: {', '.join(recipes)}")
    for name, spec in value.networks.list_named().items():
        key = f"networks.{name}.file"
        if spec.repo:
            continue
        if model_checks.is_remote(spec.file):
            model_checks.check_address(key, spec.file)
        elif not Path(spec.file).exists():
            problem = describe_missing(Path(spec.file))
            raise ConfigError(f"{key} = {spec.file!r}: {problem}; allowed: a path, an address, or repo and revision")
        else:
            from parity.experiment import checkpoint_files

            checkpoint_files.check_readable(key, Path(spec.file))
    architecture = recipes[value.protocol]["clip"]
    clip = value.networks.clip
    if clip is not None and architecture and clip.architecture not in ("", architecture):
        where = f"networks.clip.architecture = {clip.architecture!r}"
        raise ConfigError(f"{where}: protocol {value.protocol} takes another; allowed: {architecture!r}")
    for key, section in (("image", value.image), ("continuous", value.continuous)):
        if section is not None and section.reference and not Path(section.reference).exists():
            problem = describe_missing(Path(section.reference)).replace("such file", "such folder or file")
            raise ConfigError(f"{key}.reference = {section.reference!r}: {problem}")


def complete_methods(kind: str, variants_by_method: dict[str, list[dict[str, Any]]]) -> None:
    """Put defaults, in place, where the variants of a section's methods leave options out. Raises ConfigError unless
    methods are decoders of the kind, their variants are valid and differ, and the method of plain decoding is one."""
    key = f"{KINDS[kind]}.methods"
    base = find_plain_method(kind)
    names: dict[str, str] = {}
    for method, variants in variants_by_method.items():
        try:
            if not made.is_made(kind, method):
                check_decoder(kind, method)
        except ConfigError as error:
            raise ConfigError(f"{key}.{method}: {error}") from None
        if (other := names.setdefault(get_short_name(method), method)) != method:
            raise ConfigError(f"{key}.{method}: the name of {other} too; allowed: decoders of different names")
        if not variants:
            raise ConfigError(
                f"{key}.{method} = []: no variant; allowed: a list of option sets, [{{}}] for the defaults"
            )
        first_index: dict[str, int] = {}
        for i, variant in enumerate(variants):
            variants[i] = options(kind, method, variant, f"{key}.{method}.{i}")
            first = first_index.setdefault(dump_canonical(variants[i]), i)
            if first != i:
                raise ConfigError(f"{key}.{method}.{i} = {variant}: the same variant as {key}.{method}.{first}")
    if base not in variants_by_method:
        raise ConfigError(
            f"{key} = {sorted(variants_by_method)}: needs {base}, with which every other method is compared"
        )


def check_at_most(
    kind: str, variants_by_method: dict[str, list[dict[str, Any]]], sizes: dict[str, int], label: str
) -> None:
    """Check that no option that counts positions or tokens is larger than the model's `sizes` allow. Raises ConfigError
    that ends with `label`, the model."""
    for method, variants in variants_by_method.items():
        for i, variant in enumerate(variants):
            for key, limit in list_bounds(kind, method, sizes).items():
                if variant[key] > limit:
                    where = f"{KINDS[kind]}.methods.{method}.{i}.{key} = {variant[key]}"
                    raise ConfigError(f"{where}: allowed: at most {limit} with {label}")


def check_image(section: ImageSection, models: dict[str, ModelSpec]) -> None:
    """Check that each model is there, has the speculators that methods need, and is as large as their options."""
    for model, spec in models.items():
        model_checks.check_trained(model, spec)
        for method in section.methods:
            model_checks.check_needs(method, model, spec)
        check_at_most("discrete", section.methods, weights.list_option_sizes(spec), f"models.{model}")


def check_text_methods(model: str, spec: ModelSpec) -> None:
    """Check that a text model's family runs the methods that its entry names, plain decoding among them."""
    allowed = weights.read_family(spec.family).get("methods") or methods("anysubset")
    for method in spec.methods:
        if method not in allowed:
            raise ConfigError(f"models.{model}.methods = [{method}]: allowed with {spec.family}: {', '.join(allowed)}")
    if spec.methods and find_plain_method("anysubset") not in spec.methods:
        raise ConfigError(f"models.{model}.methods = {spec.methods}: needs {find_plain_method('anysubset')}")


def check_text(section: TextSection, models: dict[str, ModelSpec]) -> None:
    """Check that data files exist, that methods that read one kind of prompt have an infilling task with it, that a
    model runs each method, and that models that read from left to right alone have prompts that are prefixes."""
    for kind, tasks in section.tasks:
        for i, task in enumerate(tasks):
            if task.data and not task.data.startswith("datasets:") and not Path(task.data).is_file():
                raise ConfigError(f"text.tasks.{kind}.{i}.data = {task.data!r}: {describe_missing(Path(task.data))}")
    check_shards("text", section, section.tasks.count_fewest(), "texts of a task")
    prompts = {t.prompt for t in section.tasks.infilling}
    for method in section.methods:
        prompt = declaration("anysubset", method).PROMPT
        if prompt is not None and prompt not in prompts:
            raise ConfigError(
                f"text.methods.{method}: reads from left to right;"
                f" allowed: with an infilling task whose prompt is {prompt!r}"
            )
        if not any(weights.runs_method(spec, method) for spec in models.values()):
            allowed = ", ".join(
                dict.fromkeys(name for spec in models.values() for name in weights.list_text_methods(spec))
            )
            raise ConfigError(f"text.methods.{method}: no model runs it ({', '.join(models)}); allowed: {allowed}")
    for model, spec in models.items():
        check_text_methods(model, spec)
        wanted = weights.read_family(spec.family).get("prompt", "")
        if wanted and (others := prompts - {wanted}):
            raise ConfigError(
                f"text.tasks.infilling: prompt = {min(others)!r}: {model} reads from left to right alone;"
                f" allowed: {wanted!r}"
            )


def check_continuous(section: ContinuousSection, models: dict[str, ModelSpec]) -> None:
    """Check captions, and that each model has its files, is as large as options, and can do what settings ask for."""
    if section.captions is not None:
        read_captions(section)
    check_shards("continuous", section, section.images, "images of a run")
    drafting = [m for m in section.methods if needs("continuous", m) == "draft"]
    single = [model for model, spec in models.items() if drafting and lacks_speculator("continuous", drafting[0], spec)]
    for model, spec in models.items():
        family = weights.read_family(spec.family)
        model_checks.check_captions(model, spec, section.captions)
        model_checks.check_pair(model, bool(drafting) and (model not in single or len(single) == len(models)), spec)
        tokens = weights.list_option_sizes(spec)
        check_at_most("continuous", section.methods, tokens, f"the {tokens['length']} tokens of an image ({model})")
        check_head(model, family, section)
        if family["causal"]:
            check_causal(model, section)


def check_shards(name: str, section: ShardedSection, rows: int, noun: str) -> None:
    """Raise ConfigError for more shards than a cell of the section `name` has rows; `noun` says what these are."""
    if section.shards is not None and section.shards > rows:
        raise ConfigError(f"{name}.shards = {section.shards}: more than the {rows} {noun}; allowed: at most that")


def read_captions(section: ContinuousSection) -> list[str]:
    """Read the captions that published models are conditioned on, in turn; [] if none are named. Raises ConfigError for
    a file that cannot be read."""
    if section.captions is None:
        return []
    try:
        return read_prompts(section.captions)
    except ConfigError as error:
        raise ConfigError(str(error).replace("image.prompts", "continuous.captions", 1)) from None


def check_head(model: str, family: dict[str, Any], section: ContinuousSection) -> None:
    """Raise ConfigError unless a model's head has the requested sampler and, with guidance, guidance schedule."""
    for sampling in wrap_in_list(section.sampling):
        if sampling.guidance != 1 and sampling.guidance_schedule not in family["schedules"]:
            raise ConfigError(
                f"continuous.sampling.guidance_schedule = {sampling.guidance_schedule!r}: {model} does not have it;"
                f" allowed: {', '.join(family['schedules']) or 'guidance 1 alone'}"
            )
        if sampling.sampler not in family["samplers"]:
            raise ConfigError(
                f"continuous.sampling.sampler = {sampling.sampler!r}: {model} has no such sampler;"
                f" allowed: {family['samplers'][0]!r}"
            )


def check_causal(model: str, section: ContinuousSection) -> None:
    """Raise ConfigError for options by which a causal model would draw several tokens at a time, or verify each before
    the one before is read: it has no distribution of a token before it has read the one before."""
    for option, value, reason in (
        ("iterations", 0, "draws one token at a time"),
        ("verify", "each", "has no distribution of a token before it has read the one before"),
    ):
        for method, variants in section.methods.items():
            for variant in variants:
                if variant.get(option, value) != value:
                    raise ConfigError(
                        f"continuous.methods.{method}: {option} = {variant[option]!r} with {model}, which {reason};"
                        f" allowed: {value!r}"
                    )


def make_slug(title: str) -> str:
    """Make a part of a file name from a title: lower case, with hyphens in place of all but letters and digits."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def check_studies(value: Config) -> None:
    """Check that every figure of a study names settings and measures that its section's cells have, under a title that
    no other has. Raises ConfigError."""
    all_cells = cells(value, [])
    titles = set()
    for kind in kinds(value):
        specs = [c.spec for c in all_cells if c.kind == kind and c.role in ("reference", "method")]
        for i, figure in enumerate(getattr(value, KINDS[kind]).study):
            key = f"{KINDS[kind]}.study.{i}"
            if problem := study.find_problem(figure, specs, study.list_measures(kind)):
                raise ConfigError(f"{key}.{problem[0]}: allowed: {problem[1]}")
            if make_slug(figure.title) in titles:
                raise ConfigError(f"{key}.title = {figure.title!r}: given twice; allowed: one figure of a title")
            titles.add(make_slug(figure.title))


def check_sources(value: Config, published: Sequence[Any]) -> None:
    """Raise ConfigError for a figure of a study whose paper, or a table of it, has no row in the files `published`."""
    rows = [row for file in published for row in read_table(Path(file).read_text(encoding="utf-8"), ",")[1]]
    for kind in kinds(value):
        for i, figure in enumerate(getattr(value, KINDS[kind]).study):
            if figure.paper and (allowed := study.find_unknown_source(figure.paper, rows)):
                raise ConfigError(f"{KINDS[kind]}.study.{i}.paper = {figure.paper!r}: allowed: {allowed}")


def count_allowed_words(config: Config) -> int | None:
    """Return the number of words that a prompt may have if an image model is embedded; None if none is, because other
    models cut long prompts."""
    assert config.image is not None
    embedded = any(model.source == "embedded" for model in weights.list_models(config, "discrete").values())
    return config.image.prompts.max_words if embedded else None
