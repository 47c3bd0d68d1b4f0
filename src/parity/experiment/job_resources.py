"""What a job takes, known when it is planned: memory, minutes, disk. Imports no torch.

Memory is what a process has before it loads a network (BASE), the networks of the job, and what grows with a batch:
keys and values, a layer's activations, laws. docs/results/memory.md compares what is asked with what was taken. Minutes
are limits at which a scheduler ends a job, several times what it takes; the rules raise both at each attempt. A run on
one machine ignores them. The last line of a job's log says what it took.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from parity.base import machine
from parity.experiment import paths, weights
from parity.experiment.cells import Cell, list_text_tasks, long_variant, test_key, variant
from parity.experiment.layers import read_layers, select_layers
from parity.experiment.module_metadata import read_constant
from parity.experiment.network_sizes import (
    ASSUMED_PAINTER,
    Network,
    Networks,
    find_judge,
    list_converted,
    list_networks,
)
from parity.experiment.options import LENGTHS, counts, declaration, is_coupled, needs
from parity.experiment.schema import ASKED, Config, ModelSpec, TrainingSpec

MIB = 2**20
BASE = {  # MiB of a process before it loads a network: interpreter, libraries, and what small data take
    "checkpoint": 800, "captions": 750, "decode": 1000, "reference": 1000, "reference_features": 1000,
    "accuracy": 900, "drafted_trees": 1000, "measure": 1050, "measure continuous": 1400, "measure anysubset": 1300,
    "test": 750, "report": 1300, "companion": 1400,
}  # fmt: skip
TEST = {"discrete": 4.5e-3, "anysubset": 5.5e-3, "continuous": 13e-3}  # MiB that a sequence of a known law takes
TEST_MOST = 200_000  # further sequences are drawn in parts
WIDTH = {"float32": 4, "float64": 8, "bfloat16": 2}  # bytes of a number
LOADED = 1.05  # weights in memory take so much of their numbers: a tensor is converted while others are there
ACTIVATIONS = 14  # numbers that a layer makes of a token, in widths of the network: a feed-forward of four, thrice
COPIES = 7  # copies of laws that are held at once: of both halves, guided, filtered, sorted, normalised, tested
RENDER_BYTES = 20  # bytes that a picture's decoder takes for each channel of each pixel at its largest layer
SEEN, KEPT = (read_constant("train", "companions", name) for name in ("SEEN", "KEPT"))  # of rows, of their features
LAWS_LEARNT, LAWS_COPIES = 8, 4  # laws of a row that a step of training has room for, and copies of each
TRAINED = 20  # bytes for each number that is trained: itself, its gradient, its mean, two moments
HPS = 986_109_441  # parameters of the largest network that judges pictures
JUDGED = 400  # MiB of a batch of pictures in a network that judges them
TEXT = CAPTION = 128  # positions of a text whose task does not say it, and of a prompt where the model does not
PASS_MS = 20.0  # milliseconds that a pass takes at least
CPU_NUMBERS, GPU_NUMBERS = 15e6, 5e10  # multiplications of a core, or a GPU, in a millisecond
TIMED_BATCHES = 6  # batches of each method that a timing job decodes at least, alone and together: a pilot, two rounds
PICTURE_SECONDS = 0.1  # to read and measure a picture, beside the networks
FORCED = {  # rows whose laws are computed at once
    kind: read_constant(f"equality/layers/{kind}", "teacher_forced", "BATCH") for kind in ("discrete", "anysubset")
}
PATHWISE = read_constant("equality/layers/discrete", "pathwise", "BATCH")  # rows that are decoded at once
ENCODED = read_constant("inputs", "prompts", "BATCH")  # captions that are encoded at once


class Job(NamedTuple):
    """A job: its rule, without the kind; the model that it loads, if it loads one; the cell that it is about, if it is
    about one."""

    rule: str
    kind: str = ""
    model: str = ""
    cell: Cell | None = None
    companion: str = ""  # the kind that is trained


class Shape(NamedTuple):
    """How large the passes of a cell are."""

    rows: int  # images or texts
    halves: int  # of each row: 2 with the unconditional one
    length: int  # positions of a picture or text
    prefix: int  # positions before it
    nodes: int  # tokens of a row that a pass evaluates at most
    vocab: int


def count_samples(config: Config, cell: Cell) -> int:
    """Count the samples of a cell."""
    if cell.kind == "discrete" and config.image is not None:
        return config.image.prompts.limit * config.image.prompts.repeats
    if cell.kind == "continuous":
        return int(cell.spec.get("images", 64))
    settings = list_task_settings(config, cell.spec["task_kind"])
    return max([1, *(task["rows"] * task.get("attempts", 1) for task in settings)])


def list_task_settings(config: Config, task_kind: str) -> list[dict[str, Any]]:
    """List the settings of an experiment's text tasks of a kind."""
    return [task.model_dump() for task in getattr(config.text.tasks, task_kind)] if config.text else []


def find_model(config: Config, job: Job) -> ModelSpec:
    """Find the model of a job, with its files."""
    return weights.list_models(config, job.kind)[job.model]


def measure_shape(config: Config, cell: Cell, networks: Networks) -> Shape:
    """Measure how large the passes of a cell are, by its options and its model's sizes."""
    spec = weights.list_models(config, cell.kind)[cell.spec["model"]]
    default = config.image.batch if config.image is not None and cell.kind == "discrete" else 64
    rows = min(int(cell.spec.get("batch", default)), -(-count_samples(config, cell) // paths.jobs(config, cell.kind)))
    halves = 2 if (cell.spec.get("sampling") or {}).get("guidance", 1) != 1 else 1
    options, units = cell.spec["options"], counts(cell.kind, cell.spec["method"])
    nodes = 1 + int(max([0, *(options.get(name, 0) for name, c in units.items() if c.what in (*LENGTHS, "nodes"))]))
    if cell.kind == "anysubset":
        settings = list_task_settings(config, cell.spec["task_kind"])
        length = max([TEXT, *(task.get("length", TEXT) for task in settings)])
        nodes = max(nodes, -(-length // options.get("steps", length)))
        return Shape(rows, halves, length, 0, min(length, nodes), max(n.vocab for n in networks.values()))
    sizes = weights.read_sizes(spec)
    if cell.kind == "continuous":
        return Shape(rows, halves, int(sizes["grid"]) ** 2, int(sizes.get("buffer", CAPTION)), 0, 0)
    length = weights.count_positions(spec).length
    return Shape(rows, halves, length, int(sizes.get("prefix", CAPTION)), min(length, nodes), int(sizes["vocab"]))


def sum_weights(networks: Networks, names: Iterable[str], width: int) -> float:
    """Sum the bytes of networks as they are computed with; the image tokenizer has 4 bytes a number."""
    loaded = [(networks[name], 4 if name in ("vq", "kl") else width) for name in names if name in networks]
    return LOADED * sum(network.parameters * bytes_each for network, bytes_each in loaded)


def estimate_cache(network: Network, positions: int, width: int) -> float:
    """Estimate the bytes of keys and values of so many positions, of all rows together."""
    return 2.0 * max(1, network.layers) * network.keys * positions * width


def estimate_pass(network: Network, tokens: int, probabilities: int, width: int) -> float:
    """Estimate the bytes of a pass over so many tokens, with laws of so many probabilities, of all rows together."""
    return float(ACTIVATIONS) * network.width * tokens * width + 4.0 * COPIES * probabilities


def find_text_network(networks: Networks) -> str:
    """Find the name of a text model's network, beside its judge's."""
    return next(name for name in networks if name != "judge")


def estimate_texts(network: Network, shape: Shape) -> float:
    """Estimate the bytes of a pass of two streams over whole texts, whose scores of attention are held."""
    scores = 16.0 * shape.rows * (network.keys // 64 + 1) * shape.length**2
    return scores + estimate_pass(network, 2 * shape.rows * shape.length, shape.rows * shape.nodes * shape.vocab, 4)


def estimate_decoding(job: Job, networks: Networks, shape: Shape, width: int) -> float:
    """Estimate the bytes that decoding takes: the target and its companion, their keys and values, and a pass."""
    assert job.cell is not None
    method, rows = job.cell.spec["method"], shape.rows * shape.halves
    if job.kind == "anysubset":
        name = "judge" if declaration(job.kind, method).NETWORK == "judge" else find_text_network(networks)
        return sum_weights(networks, [name], 4) + estimate_texts(networks[name], shape)
    if job.kind == "continuous":
        loaded = sum_weights(networks, ("target", needs(job.kind, method)), width)
        return loaded + estimate_pass(networks["target"], rows * (shape.length + shape.prefix), 0, width)
    names = [name for name in ("net", needs(job.kind, method)) if name in networks]
    positions = rows * (shape.prefix + shape.length + 2 * shape.nodes)
    cache = sum(estimate_cache(networks[name], positions, width) for name in names)
    tokens, probabilities = rows * max(shape.prefix, shape.nodes), rows * shape.nodes * shape.vocab
    a_pass = estimate_pass(networks["net"], tokens, probabilities, width)
    return sum_weights(networks, (*names, "vq"), width) + cache + a_pass


def estimate_measuring(config: Config, job: Job, networks: Networks, shape: Shape, width: int) -> float:
    """Estimate the bytes that measuring a cell takes: pictures, and the largest of what is done one after another."""
    assert job.cell is not None
    n = count_samples(config, job.cell)
    if job.kind == "anysubset":
        rows = min(machine.limit_rows(FORCED[job.kind], shape.length, shape.vocab), n)
        forced = shape._replace(rows=rows, nodes=shape.length)
        return sum_weights(networks, networks, 4) + max(estimate_texts(net, forced) for net in networks.values())
    section = config.image if job.kind == "discrete" else config.continuous
    assert section is not None
    painter, side = find_painter(config, job, networks)
    rendered = RENDER_BYTES * min(section.render_batch, n) * painter.channels * float(side) ** 2
    steps = [2 * sum_weights(networks, ("vq", "kl"), 4) + rendered]  # convolutions copy their weights
    is_coupled_cell = is_coupled(job.kind, job.cell.spec["method"], job.cell.spec["options"])
    if job.kind == "continuous":
        if select_layers(config, {job.kind: read_layers(job.kind)}, job.cell):
            steps.append(sum_weights(networks, ("target", "draft"), 8 if is_coupled_cell else 4))
    else:
        rows = min(machine.limit_rows(FORCED[job.kind], shape.length, shape.vocab), n)
        tokens = rows * shape.halves * (shape.length + shape.prefix)
        laws = estimate_pass(networks["net"], tokens, rows * shape.length * shape.vocab, width)
        cache = estimate_cache(networks["net"], tokens, width)
        steps.append(sum_weights(networks, ("net", "vq"), width) + cache + laws)
        if is_coupled_cell:  # rows are decoded again in float64
            again = shape._replace(rows=min(config.equality.pathwise, n, PATHWISE))
            steps.append(estimate_decoding(job, networks, again, 8))
    pixels = 3.0 * n * side**2
    if paths.is_judged(config, job.cell):  # pictures are then read file by file
        return max(*steps, estimate_judging(config)) + pixels / paths.jobs(config, job.kind)
    return max(steps) + pixels


def estimate_judging(config: Config) -> float:
    """Estimate the bytes of the largest of the networks that judge pictures, with a batch of pictures; one of which
    nothing is known is taken for the largest, HPSv2's."""
    judges = [find_judge(spec) for spec in config.networks.list_named().values()]
    largest = max([0, *(judge.parameters if judge else HPS for judge in judges)])
    return LOADED * 4 * largest + (JUDGED * MIB if judges else 0)


def find_painter(config: Config, job: Job, networks: Networks) -> tuple[Network, int]:
    """Find the network that makes pictures of tokens, and the pixels of their longer side."""
    painter = next((network for network in networks.values() if network.stride), ASSUMED_PAINTER)
    sizes = weights.read_sizes(find_model(config, job))
    return painter, painter.stride * max(int(sizes.get(key, 0)) for key in ("grid", "rows", "columns"))


def estimate_training(config: Config, job: Job, networks: Networks, training: TrainingSpec) -> float:
    """Estimate the bytes that training a companion takes: the networks, what an optimiser holds, a step over as many
    rows at once as their laws leave room for, or drawing rows."""
    assert config.image is not None
    net, width = networks["net"], WIDTH[config.image.dtype]
    sizes = weights.list_option_sizes(find_model(config, job))
    length, vocab = sizes["length"], sizes["vocab"]
    is_draft = job.companion == "draft"
    depth = (training.layers or -(-net.layers // 4)) if is_draft else 2
    wide = (training.width or net.width) if is_draft else net.width
    trained = 12 * depth * wide**2 + (2 * wide * vocab if is_draft else 0)
    rows = machine.limit_rows(training.batch, length, LAWS_LEARNT * vocab)
    step = LAWS_LEARNT * 2.0 * LAWS_COPIES * rows * length * vocab
    step += estimate_pass(net, 2 * rows * (length + CAPTION), 0, 4) * (1 + 3 * depth)
    nodes = 1 + (32 if training.drawn > 8 else 64)  # of a pass that draws rows, or that decodes a few
    drawn = 2 * training.drawn
    drawing = estimate_pass(net, drawn * nodes, drawn * nodes * vocab, width)
    drawing += estimate_cache(net, drawn * (length + CAPTION + 2 * nodes), width)
    loaded = sum_weights(networks, ("net", "vq", "text"), width) + trained * (TRAINED + width)
    rows = min(training.images, max(training.batch, training.steps * training.batch // SEEN))
    features = 4.0 * rows * length * net.width
    return loaded + max(step, drawing) + (features if features <= KEPT else 0)


def estimate_encoding(config: Config, text: Network) -> float:
    """Estimate the bytes that encoding captions takes: the encoder, a batch, and the embeddings of a job's prompts."""
    scores = 12.0 * ENCODED * (text.keys // 64 + 1) * CAPTION**2
    a_pass = estimate_pass(text, ENCODED * CAPTION, 0, 4) + scores
    return LOADED * 4 * text.parameters + a_pass + 3 * count_embeddings(config, text)


def count_embeddings(config: Config, text: Network) -> float:
    """Count the bytes of the embeddings of the prompts that a job encodes."""
    prompts = config.image.prompts if config.image else None
    n = -(-prompts.limit * prompts.repeats // paths.jobs(config, "discrete")) if prompts else 0
    return 4.0 * n * CAPTION * text.width


def memory(config: Config, job: Job, training: TrainingSpec | None = None) -> int:
    """Estimate the MiB of memory that a job takes at most. training: of a companion, where the experiment has none."""
    base = BASE.get(f"{job.rule} {job.kind}", BASE.get(job.rule, 1000))
    return round(base + estimate_loaded(config, job, training) / MIB)


def estimate_loaded(config: Config, job: Job, training: TrainingSpec | None) -> float:
    """Estimate the bytes that a job takes beside the base."""
    if job.rule == "test":
        return TEST[job.kind] * MIB * min(config.equality.n, TEST_MOST)
    if job.rule == "reference_features":
        return estimate_judging(config)
    if job.rule == "report" or job.kind == "networks":
        return 0
    if job.rule == "checkpoint":  # of the networks that are written anew the largest
        return 1.25 * 4 * max([0, *(network.parameters for network in list_converted(find_model(config, job)))])
    networks, _ = list_networks(find_model(config, job))
    if job.rule == "captions":
        return estimate_encoding(config, networks["text"]) if "text" in networks else 0
    if job.rule == "accuracy":
        return sum_weights(networks, [find_text_network(networks)], 4)
    width = WIDTH[config.image.dtype] if config.image is not None and job.kind == "discrete" else 4
    if job.rule == "companion":
        assert config.image is not None
        chosen = training or config.image.companions.get(job.companion, TrainingSpec())  # type: ignore[call-overload]
        return estimate_training(config, job, networks, chosen)
    if job.cell is None:
        return 0
    shape = measure_shape(config, job.cell, networks)
    if job.rule == "measure":
        return estimate_measuring(config, job, networks, shape, width)
    return estimate_decoding(job, networks, shape, width)


def minutes(config: Config, job: Job, gpu: bool = False) -> int:
    """Estimate the minutes that a job may take before a cluster ends it; gpu: whether it has one."""
    if job.rule == "test":
        return 60 + config.equality.n // 10_000
    if job.cell is None:
        return 30
    samples = count_samples(config, job.cell)
    networks, _ = list_networks(find_model(config, job))
    shape = measure_shape(config, job.cell, networks)
    named = (name for name in ("net", "target") if name in networks)
    target = networks[next(named, None) or find_text_network(networks)]

    def take(rows: float, tokens: float) -> float:
        """Compute the minutes of a pass over so many tokens of each row."""
        numbers = target.parameters * rows * shape.halves * tokens
        return (PASS_MS + numbers / (GPU_NUMBERS if gpu else CPU_NUMBERS)) / 60_000

    if job.rule not in ("decode", "speed"):
        return 30 + round(samples * PICTURE_SECONDS / 60 + take(samples, shape.length))
    # networks other than of images read, at each pass, what is there of the sequence: half of it on average
    tokens = shape.nodes if job.kind == "discrete" else shape.length / 2 + shape.prefix
    batches = -(-samples // paths.jobs(config, job.kind) // shape.rows) if job.rule == "decode" else TIMED_BATCHES
    return 31 + round(shape.length * batches * take(shape.rows, tokens))


def timing_minutes(config: Config, group: Sequence[Cell], gpu: bool = False) -> int:
    """Estimate the minutes that a job may take that times a group of cells, by itself and in batches: the seconds of
    duels at each of the two, beside a few batches of every cell; gpu: whether it has one."""
    jobs = [Job("speed", cell.kind, cell.spec["model"], cell) for cell in group]
    return math.ceil(2 * config.timing.seconds / 60) + sum(minutes(config, job, gpu) for job in jobs)


def disk(config: Config, job: Job) -> int:
    """Estimate the MiB that a job writes, beside what it downloads."""
    if job.kind == "networks":
        judge = find_judge(config.networks.list_named()[job.model])
        return round(judge.stored / MIB) if judge is not None and job.model != "inception" else 0
    if job.rule == "checkpoint":
        return round(sum(network.stored for network in list_converted(find_model(config, job))) / MIB)
    if job.rule not in ("captions", "decode", "measure"):
        return 1
    networks, _ = list_networks(find_model(config, job))
    if job.cell is None:
        return round(count_embeddings(config, networks["text"]) / MIB) if "text" in networks else 0
    shape = measure_shape(config, job.cell, networks)
    numbers = 16 * shape.length * (10 if job.kind == "continuous" else 1)  # bytes of what is kept of a sample
    n = count_samples(config, job.cell)
    if job.rule == "decode":
        return 1 + round(n / paths.jobs(config, job.kind) * numbers / MIB)
    pixels = 0 if job.kind == "anysubset" else 3 * find_painter(config, job, networks)[1] ** 2
    return 1 + round(n * (pixels + numbers) / MIB)


def list_jobs(config: Config, cells: Sequence[Cell]) -> list[Job]:
    """List the jobs of an experiment that take memory; of those about one model or cell, which are alike, one a
    rule."""
    jobs = []
    for kind in dict.fromkeys(cell.kind for cell in cells):
        models = weights.list_models(config, kind)
        jobs += [Job("checkpoint", kind, model) for model in models]
        jobs += [Job("captions", kind, model) for model in models if kind == "discrete"]
    for cell in cells:
        jobs += [Job(rule, cell.kind, cell.spec["model"], cell) for rule in ("decode", "measure")]
    jobs += list_reference_jobs(config, cells)
    asked = [task for task in list_text_tasks(config) if task["kind"] in ASKED]
    jobs += [Job("accuracy", "anysubset", task["model"]) for task in asked]
    if any(declaration(cell.kind, cell.spec["method"]).RESTS_ON == "drafted_trees" for cell in cells):
        plain = [cell for cell in cells if cell.kind == "discrete" and cell.role == "reference"]
        jobs += [Job("drafted_trees", "discrete", cell.spec["model"], cell) for cell in plain]
    tested = {(c.kind, test_key(config, *v)) for c in cells if any(v := (variant(config, c), long_variant(config, c)))}
    jobs += [Job("test", kind) for kind, _ in sorted(tested)]
    return [*jobs, Job("report")]


def list_reference_jobs(config: Config, cells: Sequence[Cell]) -> list[Job]:
    """List the jobs that read or draw pictures to compare with, and those that fetch networks that judge."""
    jobs = set()
    for cell in (cell for cell in cells if cell.kind != "anysubset"):
        if paths.is_judged(config, cell):
            jobs.add(Job("reference_features", cell.kind))
            jobs |= {Job("checkpoint", "networks", name) for name in config.networks.list_named()}
        else:
            jobs.add(Job("reference", cell.kind, cell.spec["model"]))
    return sorted(jobs)
