"""Where everything lies under results/: names that the rules and the report agree on."""

from collections.abc import Sequence

from parity.base.files import digest
from parity.experiment import weights
from parity.experiment.cells import Cell, Variant, captions, digest_prompts, kinds, test_key
from parity.experiment.decoder_sources import get_short_name
from parity.experiment.options import KINDS
from parity.experiment.schema import Config, ImageSection, ModelSpec, PromptSpec, ShardedSection

REAL = 512  # number of real images that those of embedded continuous models are compared with


def manifests(config: Config) -> dict[str, str]:
    """List the paths of the manifests of all models, by "<kind>/<model>", and, if a model is published, of the networks
    that judge, by "networks/<name>"."""
    revisions = {
        f"{kind}/{model}": weights.compute_revision(spec, captions(config, kind))
        for kind in kinds(config)
        for model, spec in weights.list_models(config, kind).items()
    }
    if any(has_published(config, kind) for kind in kinds(config)):
        named = config.networks.list_named().items()
        revisions |= {f"networks/{name}": weights.compute_network_revision(network) for name, network in named}
    return {name: f"results/checkpoints/{name}-{revision}/manifest.json" for name, revision in revisions.items()}


def prompt_set(config: Config, prompts: list[str]) -> str:
    assert config.image is not None
    return f"{digest_prompts(prompts)}-{config.image.prompts.repeats}x{jobs(config, 'discrete')}"


def find_sharding(config: Config, kind: str) -> PromptSpec | ShardedSection:
    """Find what says in how many `shards` and `jobs` the cells of a kind are decoded."""
    section = getattr(config, KINDS[kind])
    return section.prompts if isinstance(section, ImageSection) else section


def jobs(config: Config, kind: str) -> int:
    """Count the jobs that decode a cell, each to one file: `jobs`, or the number of shards if that is smaller."""
    sharding = find_sharding(config, kind)
    return min(sharding.shards or 1, sharding.jobs)


def shards_of_a_job(config: Config, kind: str) -> int:
    """Count the shards that a job decodes one after another; 0 where it follows from its batches."""
    shards = find_sharding(config, kind).shards
    return 0 if shards is None else -(-shards // jobs(config, kind))


def inputs(config: Config, prompts: list[str], cell: Cell, shard: int | None = None) -> list[str]:
    """List the input files that a cell is decoded from: of image tokens one for each job, or that of the job `shard`
    alone; of texts one, of which each job takes its part; [] for continuous models, whose images are only numbered."""
    spec = cell.spec
    if cell.kind == "discrete":
        folder = f"results/inputs/discrete/{prompt_set(config, prompts)}/{spec['model']}-{spec['revision']}"
        return [f"{folder}/{k}.npz" for k in (range(jobs(config, "discrete")) if shard is None else [shard])]
    return [f"results/inputs/anysubset/{spec['task_kind']}-{spec['task']}.npz"] if cell.kind == "anysubset" else []


def speculator(config: Config, prompts: list[str], kind: str, model: str) -> str:
    """Return the path of a speculator of an image model, "heads", "draft" or "drafter", that is trained for an
    experiment; prompts: those of the experiment."""
    image = config.image
    assert image is not None
    sampling = image.sampling[0] if isinstance(image.sampling, list) else image.sampling
    training = image.speculators[kind].model_dump(exclude={"minutes"}, exclude_defaults=True)  # type: ignore[index]
    key = digest([training, sampling.model_dump(exclude_defaults=True), image.dtype, digest_prompts(prompts)])
    revision = weights.compute_revision(weights.list_models(config, "discrete")[model])
    return f"results/speculators/{model}-{revision}/{kind}-{key}/{kind}.safetensors"


def speculators(config: Config, prompts: list[str]) -> list[str]:
    """List the paths of the speculators that an experiment trains, each for every image model."""
    kinds_trained = config.image.speculators if config.image else {}
    return [
        speculator(config, prompts, kind, model)
        for kind in kinds_trained
        for model in weights.list_models(config, "discrete")
    ]


def folder(cell: Cell) -> str:
    return f"results/cells/{cell.kind}/{cell.name}"


def benchmarks(cell: Cell) -> str:
    """Return the path for results of benchmarks that were run elsewhere, which exists if a user brought them
    (`parity.metrics export --results`)."""
    return f"{folder(cell)}/benchmarks.json"


def pieces(config: Config, cell: Cell, folder_name: str) -> list[str]:
    """List the paths of a cell's files in one folder ("shards" or "images"), one for each job, in order."""
    n = jobs(config, cell.kind)
    return [f"{folder(cell)}/{folder_name}/{k}-of-{n}.npz" for k in range(n)]


def has_published(config: Config, kind: str) -> bool:
    """Return whether a model of this kind, not of texts, is published: then declared networks judge its images."""
    return kind != "anysubset" and any(m.source != "embedded" for m in weights.list_models(config, kind).values())


def brings_network(model: ModelSpec) -> bool:
    """Return whether a model brings the network that judges its images: it is embedded, or has a file `clip`."""
    return model.source == "embedded" or "clip" in model.files


def is_judged(config: Config, cell: Cell) -> bool:
    """Return whether a cell has images that are judged by declared networks, because its model brings none."""
    return cell.kind != "anysubset" and not brings_network(weights.list_models(config, cell.kind)[cell.spec["model"]])


def judges(config: Config, cell: Cell) -> list[str]:
    """List the paths of the manifests of the networks that judge a cell's images; [] if its model brings its own."""
    paths_by_name = manifests(config) if is_judged(config, cell) else {}
    return [path for name, path in paths_by_name.items() if name.startswith("networks/")]


def reference_images(config: Config, kind: str, published: bool) -> tuple[str, int]:
    """Return the folder or file of the images that a model's are compared with, and how many of them, 0 for all. The
    path "" stands for images drawn for an embedded model, and for none if `published`."""
    if kind == "discrete" and config.image is not None:
        image = config.image
        takes_all = published and "reference_images" not in image.model_fields_set
        return image.reference, 0 if takes_all else image.reference_images
    if published and config.continuous is not None:
        return config.continuous.reference, 0
    return "", REAL


def reference(config: Config, prompts: list[str], cell: Cell) -> str:
    """Return the path of the file with the images that quality metrics compare a cell's with, and their features. The
    captions of the run, `prompts`, name it where images are drawn for them."""
    if is_judged(config, cell):
        recipe = weights.read_protocols()[config.protocol], judges(config, cell)
        return f"results/reference/{cell.kind}/{digest([*reference_images(config, cell.kind, True), *recipe])}.npz"
    folder, count = reference_images(config, cell.kind, False)
    subjects = prompt_set(config, prompts) if cell.kind == "discrete" else "classes"
    images = f"{subjects}-{count}" + (f"-{digest(folder)}" if folder else "")
    return f"results/reference/{cell.kind}/{images}/{cell.spec['model']}-{cell.spec['revision']}.npz"


def speed(config: Config, group: Sequence[Cell]) -> str:
    """Return the path of the speeds of a group of cells (`cells.group_cells`)."""
    reference = group[0]
    key = digest([[cell.key for cell in group], config.timing.model_dump()])
    return f"results/speed/{reference.kind}/{reference.spec['model']}-{key}.json"


def tests(config: Config, exact: Variant | None, long: Variant | None) -> str:
    """Return the path of the test results of a method on models of known distribution: on enumerable ones (`exact`) and
    on long ones. One of the variants may be None."""
    v = exact or long
    assert v is not None
    return f"results/equality/{v.kind}/{get_short_name(v.method)}-{test_key(config, exact, long)}.json"


def layers(cell: Cell) -> str:
    """Return the path of the result rows of all layers (modules of equality/layers) that test a cell."""
    return f"{folder(cell)}/equality.json"


def probs(cell: Cell) -> str:
    """Return the path of what the target gave a cell's tokens: their log-probabilities, and more by kind."""
    return f"{folder(cell)}/probs.npz"


def accuracy(task_kind: str, key: str) -> str:
    """Return the path of the file that says how often a text model's likeliest answer to a task is right."""
    return f"results/accuracy/{task_kind}-{key}.json"
