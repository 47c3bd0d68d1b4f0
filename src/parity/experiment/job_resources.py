"""What a job takes, known when it is planned: memory, minutes, disk. Imports no torch.

Memory is what the job loads and makes: its networks as they are computed with, keys and values of a batch, the largest
activations. What a process has before that (BASE), and the constants of activations, were measured: docs/results/
memory.md compares what is asked with what was taken, `python benchmarks/memory.py` measures it anew. Minutes are limits
at which a scheduler ends a job, several times what it takes; the rules raise both at each attempt. A run on one machine
ignores them. The last line of a job's log says what it took.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from parity.base import machine
from parity.experiment import paths, weights
from parity.experiment.cells import Cell, list_text_tasks, long_variant, test_key, variant
from parity.experiment.layers import read_layers, select_layers
from parity.experiment.module_metadata import read_constant
from parity.experiment.network_sizes import Network, Networks, find_judge, list_converted, list_networks
from parity.experiment.options import LENGTHS, counts, declaration, is_coupled, needs
from parity.experiment.schema import Config, ModelSpec, TrainingSpec

MIB = 2**20
BASE = {  # MiB of a process before it loads a network: interpreter, libraries, and what small data take
    "checkpoint": 800, "captions": 750, "decode": 1000, "reference": 1000, "reference_features": 1000,
    "accuracy": 900, "drafted_trees": 1000, "measure": 1050, "measure continuous": 1400, "measure anysubset": 1300,
    "test": 750, "report": 1300, "companion": 1100,
}  # fmt: skip
TEST = {"discrete": 4.5e-3, "anysubset": 5.5e-3, "continuous": 13e-3}  # MiB that a sequence of a known law takes
TEST_MOST = 200_000  # further sequences are drawn in parts
WIDTH = {"float32": 4, "float64": 8, "bfloat16": 2}  # bytes of a number
LOADED = 1.05  # weights in memory take so much of their numbers: a tensor is converted while others are there
COPIES = 7  # copies of laws that are held at once: of both halves, guided, filtered, sorted, normalised, tested
RENDERED = 20  # bytes that a picture's decoder takes for each channel of each pixel at its largest layer
SEEN, KEPT = (read_constant("train", "companions", name) for name in ("SEEN", "KEPT"))  # of rows, of their features
LAWS_LEARNT, LAWS_COPIES = 8, 4  # laws of a row that a step of training has room for, and copies of each
TRAINED = 20  # bytes for each number that is trained: itself, its gradient, its mean, two moments
HPS = 986_109_441  # parameters of the largest network that judges pictures
JUDGED = 400  # MiB of a batch of pictures in a network that judges them
TEXT = 128  # positions that a text is assumed to have if its task does not say it
CAPTION = 128  # positions that a prompt is assumed to have if the model's sizes do not say it
TIMED = read_constant("decode", "loop", "PACED")  # batches, and as many rows alone, timed beside plain decoding
PASS_MS = 20.0  # milliseconds that a pass takes at least
CPU_NUMBERS, GPU_NUMBERS = 15e6, 5e10  # multiplications of a core, or a GPU, in a millisecond
PICTURE_SECONDS = 0.1  # to read and measure a picture, beside the networks
LAYERS = "equality/layers"
BATCHES = {  # rows that these compute at once
    "teacher_forced": read_constant(f"{LAYERS}/discrete", "teacher_forced", "BATCH"),
    "pathwise": read_constant(f"{LAYERS}/discrete", "pathwise", "BATCH"),
    "text": read_constant(f"{LAYERS}/anysubset", "teacher_forced", "BATCH"),
    "captions": read_constant("inputs", "prompts", "BATCH"),
}


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

    rows: int  # with the unconditional ones
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


def count_rows(config: Config, cell: Cell) -> int:
    """Count the rows of a batch, of which a job may have fewer."""
    default = config.image.batch if config.image is not None and cell.kind == "discrete" else 64
    return min(int(cell.spec.get("batch", default)), -(-count_samples(config, cell) // paths.jobs(config, cell.kind)))


def find_model(config: Config, kind: str, model: str) -> ModelSpec:
    """Find a model of an experiment, with its files."""
    return weights.list_models(config, kind)[model]


def list_task_settings(config: Config, task_kind: str) -> list[dict[str, Any]]:
    """List the settings of an experiment's text tasks of a kind."""
    return [task.model_dump() for task in getattr(config.text.tasks, task_kind)] if config.text else []


def measure_shape(config: Config, cell: Cell) -> Shape:
    """Measure how large the passes of a cell are, by its options and its model's sizes."""
    spec = find_model(config, cell.kind, cell.spec["model"])
    sampling = cell.spec.get("sampling") or {}
    rows = count_rows(config, cell) * (2 if sampling.get("guidance", 1) != 1 else 1)
    units = counts(cell.kind, cell.spec["method"])
    looked = [cell.spec["options"].get(n, 0) for n, c in units.items() if c.what in (*LENGTHS, "nodes")]
    nodes = 1 + int(max([0, *looked]))
    if cell.kind == "anysubset":
        settings = list_task_settings(config, cell.spec["task_kind"])
        length = max([TEXT, *(task.get("length", TEXT) for task in settings)])
        networks, _ = list_networks(spec)
        vocab = max(network.vocab for network in networks.values()) if networks else 0
        steps = cell.spec["options"].get("steps", length)
        return Shape(rows, length, 0, min(length, max(nodes, -(-length // steps))), vocab)
    sizes = weights.read_sizes(spec)
    if cell.kind == "continuous":
        length = int(sizes["grid"]) ** 2
        return Shape(rows, length, int(sizes.get("buffer", CAPTION)), min(length, nodes), 0)
    length = weights.count_positions(spec).length
    return Shape(rows, length, int(sizes.get("prefix", CAPTION)), min(length, nodes), int(sizes["vocab"]))


def sum_weights(networks: Networks, names: Iterable[str], width: int) -> float:
    """Sum the bytes of networks as they are computed with; the image tokenizer has 4 bytes a number."""
    loaded = [(networks[name], 4 if name in ("vq", "kl") else width) for name in names if name in networks]
    return LOADED * sum(network.parameters * bytes_each for network, bytes_each in loaded)


def estimate_cache(network: Network, rows: int, positions: int, width: int) -> float:
    """Estimate the bytes of keys and values."""
    return 2.0 * max(1, network.layers) * network.keys * rows * positions * width


def estimate_activations(network: Network, tokens: int, width: int) -> float:
    """Estimate the bytes that a layer's activations take for so many tokens: of attention or of the feed-forward."""
    return float(tokens) * width * (2 * network.keys + max(4 * network.keys, 3 * network.hidden))


def estimate_laws(shape: Shape, tokens: int, copies: int = COPIES) -> float:
    """Estimate the bytes of laws over so many tokens of each row."""
    return 4.0 * copies * shape.rows * tokens * shape.vocab


def estimate_decoding(job: Job, networks: Networks, shape: Shape, width: int) -> float:
    """Estimate the bytes that decoding takes beside the base."""
    assert job.cell is not None
    if job.kind == "discrete":
        net, companion = networks["net"], needs("discrete", job.cell.spec["method"])
        loaded = sum_weights(networks, ("net", "vq", companion), width)
        positions = shape.prefix + shape.length + 2 * shape.nodes
        loaded += sum(
            estimate_cache(networks[name], shape.rows, positions, width)
            for name in ("net", companion)
            if name in networks
        )
        prompt = estimate_activations(net, shape.rows * shape.prefix, width)
        a_pass = estimate_activations(net, shape.rows * shape.nodes, width) + estimate_laws(shape, shape.nodes)
        return loaded + max(prompt, a_pass)
    if job.kind == "continuous":
        net = networks["target"]
        names = ("target", *([needs("continuous", job.cell.spec["method"])]))
        return sum_weights(networks, names, width) + estimate_activations(
            net, shape.rows * (shape.length + shape.prefix), width
        )
    is_judge = declaration("anysubset", job.cell.spec["method"]).NETWORK == "judge"
    net = networks["judge" if is_judge else "xlnet"]
    loaded = LOADED * 4 * net.parameters * (1 if job.cell.spec.get("cache", True) else 2)
    return loaded + estimate_texts(net, shape, shape.nodes)


def estimate_texts(net: Network, shape: Shape, tokens: int) -> float:
    """Estimate the bytes of a pass over whole texts with laws of so many tokens of each."""
    scores = 8.0 * shape.rows * (net.keys // 64 + 1) * shape.length * 2 * shape.length
    return 2 * estimate_activations(net, shape.rows * shape.length, 4) + scores + estimate_laws(shape, tokens, 4)


def estimate_rendering(net: Network, side: int, batch: int) -> float:
    """Estimate the bytes of decoding `batch` pictures of `side` pixels; convolutions copy their weights."""
    return LOADED * 8.0 * net.parameters + RENDERED * batch * net.channels * float(side) ** 2


def estimate_measuring(config: Config, job: Job, networks: Networks, shape: Shape, width: int) -> float:
    """Estimate the bytes that measuring a cell takes beside the base: the largest of what it does one after another."""
    assert job.cell is not None
    spec = find_model(config, job.kind, job.model)
    coupled = is_coupled(job.kind, job.cell.spec["method"], job.cell.spec["options"])
    steps = [0.0]
    if job.kind == "anysubset":
        rows = machine.limit_rows(BATCHES["text"], shape.length, shape.vocab)
        forced = shape._replace(rows=min(rows, count_samples(config, job.cell)))
        passes = [estimate_texts(networks[name], forced, shape.length) for name in ("xlnet", "judge")]
        return LOADED * 4 * sum(network.parameters for network in networks.values()) + max(passes)
    section = config.image if job.kind == "discrete" else config.continuous
    assert section is not None
    painter = networks.get("vq" if job.kind == "discrete" else "kl")
    side = find_picture_side(spec, painter)
    n = count_samples(config, job.cell)
    if painter is not None:
        steps.append(estimate_rendering(painter, side, min(section.render_batch, n)))
    pixels = 3.0 * n * side**2
    if paths.is_judged(config, job.cell):  # pictures are then read file by file
        pixels /= paths.jobs(config, job.kind)
        steps.append(estimate_judging(config))
    if job.kind == "continuous":
        if select_layers(config, {job.kind: read_layers(job.kind)}, job.cell):
            steps.append(sum_weights(networks, ("target", "draft"), 8 if coupled else 4))
        return max(steps) + pixels
    rows = min(machine.limit_rows(BATCHES["teacher_forced"], shape.length, shape.vocab), n)
    guided = 2 if shape.rows > count_rows(config, job.cell) else 1
    forced = shape._replace(rows=rows * guided)
    net = networks["net"]
    laws = estimate_laws(forced._replace(rows=rows), shape.length, COPIES + guided)
    loaded = sum_weights(networks, ("net", "vq"), width)
    tokens = forced.rows * (shape.length + shape.prefix)
    steps.append(
        loaded + laws + estimate_cache(net, forced.rows, shape.length + shape.prefix, width)
        + estimate_activations(net, tokens, width)
    )  # fmt: skip
    if coupled:
        coupled_shape = shape._replace(rows=guided * min(config.equality.pathwise, n, BATCHES["pathwise"]))
        steps.append(estimate_decoding(job, networks, coupled_shape, 8))
    return max(steps) + pixels


def estimate_judging(config: Config) -> float:
    """Estimate the bytes of the largest of the networks that judge pictures, with a batch of pictures; one of which
    nothing is known is taken for the largest, HPSv2's."""
    judges = [find_judge(spec) for spec in config.networks.list_named().values()]
    largest = max([0, *(judge.parameters if judge else HPS for judge in judges)])
    return LOADED * 4 * largest + (JUDGED * MIB if judges else 0)


def find_picture_side(spec: ModelSpec, painter: Network | None) -> int:
    """Find the pixels of a picture's longer side; 256 if no file says it."""
    sizes = weights.read_sizes(spec)
    tokens = max(int(sizes.get(key, 0)) for key in ("grid", "rows", "columns"))
    return tokens * painter.stride if painter is not None and painter.stride else 256


def estimate_training(config: Config, job: Job, networks: Networks, training: TrainingSpec) -> float:
    """Estimate the bytes that training a companion takes beside the base: the networks, what an optimiser holds, a step
    over as many rows at once as their laws leave room for, or drawing rows."""
    assert config.image is not None
    net = networks["net"]
    section = config.image
    width = WIDTH[section.dtype]
    sizes = weights.list_option_sizes(find_model(config, "discrete", job.model))
    layers = max(1, net.layers)
    square, inside = net.keys**2, net.keys * net.hidden
    trained = 3 * square + 6 * inside  # of heads
    depth = 2
    if job.companion != "heads":
        depth = (training.layers or -(-layers // 4)) if job.companion == "draft" else 1
        wide = (training.width or net.keys) / max(1, net.keys) if job.companion == "draft" else 1.0
        trained = round(depth * wide**2 * (4 * square + 3 * inside) + 2 * square)
        trained += round(2 * wide * net.keys * sizes["vocab"]) if job.companion == "draft" else 0
    rows = machine.limit_rows(training.batch, sizes["length"], LAWS_LEARNT * sizes["vocab"])
    tokens = 2 * rows * (sizes["length"] + CAPTION)
    step = LAWS_LEARNT * 4.0 * LAWS_COPIES * rows * sizes["length"] * sizes["vocab"] / 2
    step += estimate_activations(net, tokens, 4) * (1 + 3 * depth)
    nodes = 1 + (32 if training.drawn > 8 else 64)  # of a pass that draws rows, or that decodes a few
    shape = Shape(2 * training.drawn, sizes["length"], CAPTION, nodes, sizes["vocab"])
    positions = shape.prefix + shape.length + 2 * shape.nodes
    drawing = estimate_cache(net, shape.rows, positions, width) + estimate_laws(shape, shape.nodes)
    drawing += estimate_activations(net, shape.rows * shape.nodes, width)
    loaded = sum_weights(networks, ("net", "vq", "text"), width) + trained * (TRAINED + width)
    drawn = min(training.images, max(training.batch, training.steps * training.batch // SEEN))
    features = 4.0 * drawn * sizes["length"] * net.keys
    return loaded + max(step, drawing) + (features if features <= KEPT else 0)


def memory(config: Config, job: Job, training: TrainingSpec | None = None) -> int:
    """Estimate the MiB of memory that a job takes at most. training: of a companion, where the experiment has none."""
    base = BASE.get(f"{job.rule} {job.kind}", BASE.get(job.rule, 1000))
    if job.rule == "report" or job.kind == "networks":
        return base
    if job.rule == "test":
        return round(base + TEST[job.kind] * min(config.equality.n, TEST_MOST))
    if job.rule == "reference_features":
        return round(base + estimate_judging(config) / MIB)
    networks, _ = list_networks(find_model(config, job.kind, job.model))
    section = getattr(config, {"discrete": "image"}.get(job.kind, "text"), None)
    width = WIDTH[getattr(section, "dtype", "float32")]
    estimate = 0.0
    if job.rule == "checkpoint":
        estimate = estimate_conversion(find_model(config, job.kind, job.model))
    elif job.rule == "captions":
        if text := networks.get("text"):
            tokens = BATCHES["captions"] * CAPTION
            estimate = LOADED * 4 * text.parameters + estimate_activations(text, tokens, 4)
            estimate += 12.0 * BATCHES["captions"] * (text.keys // 64 + 1) * CAPTION**2
            estimate += 3.0 * count_prompts_of_a_job(config) * CAPTION * 4 * text.keys
    elif job.rule == "companion":
        assert config.image is not None
        chosen = training or config.image.companions.get(job.companion, TrainingSpec())  # type: ignore[call-overload]
        estimate = estimate_training(config, job, networks, chosen)
    elif job.rule == "accuracy":
        estimate = LOADED * 4 * networks["xlnet"].parameters + 64 * 2.0**20
    elif job.cell is not None and networks:
        shape = measure_shape(config, job.cell)
        if job.rule == "measure":
            estimate = estimate_measuring(config, job, networks, shape, width)
        else:
            estimate = estimate_decoding(job, networks, shape, width)
    return round(base + estimate / MIB)


def count_prompts_of_a_job(config: Config) -> int:
    """Count the prompts that a job encodes."""
    prompts = config.image.prompts if config.image else None
    return -(-prompts.limit * prompts.repeats // paths.jobs(config, "discrete")) if prompts else 0


def estimate_conversion(spec: ModelSpec) -> float:
    """Estimate the bytes that fetching a model takes: the largest of the networks that are written anew."""
    return 1.25 * 4 * max([0, *(network.parameters for network in list_converted(spec).values())])


def minutes(config: Config, job: Job, gpu: bool = False) -> int:
    """Estimate the minutes that a job may take before a cluster ends it; gpu: whether it has one."""
    cell = job.cell
    if cell is None:
        return 30
    samples = count_samples(config, cell)
    networks, _ = list_networks(find_model(config, job.kind, job.model))
    net = next((networks[name] for name in ("net", "target", "xlnet") if name in networks), Network(0, 0))
    shape = measure_shape(config, cell)
    at_once = max(1, count_rows(config, cell))
    speed = GPU_NUMBERS if gpu else CPU_NUMBERS

    def take(rows: float, tokens: float) -> float:
        """Compute the minutes of a pass over so many tokens of each row."""
        return (PASS_MS + net.parameters * rows * tokens / speed) / 60_000

    rows_of_one = shape.rows / at_once
    if job.rule != "decode":
        return 30 + round(samples * PICTURE_SECONDS / 60 + take(rows_of_one * samples, shape.length))
    batches = -(-samples // paths.jobs(config, cell.kind) // at_once)
    # the other networks read, at each pass, what is there of the sequence: half of it on average
    one, several = (1, shape.nodes) if job.kind == "discrete" else (shape.length / 2 + shape.prefix,) * 2
    method = batches * take(shape.rows, several) + TIMED * take(rows_of_one, several)
    plain = min(batches, TIMED) * take(shape.rows, one) + TIMED * take(rows_of_one, one)
    return 30 + math.ceil(shape.length * (method + plain))


def disk(config: Config, job: Job) -> int:
    """Estimate the MiB that a job writes, beside what it downloads."""
    if job.kind == "networks":
        judge = find_judge(config.networks.list_named()[job.model])
        return round(judge.stored / MIB) if judge is not None and job.model != "inception" else 0
    if job.rule == "checkpoint":
        return round(sum(n.stored for n in list_converted(find_model(config, job.kind, job.model)).values()) / MIB)
    if job.rule == "captions":
        networks, _ = list_networks(find_model(config, job.kind, job.model))
        return (
            round(count_prompts_of_a_job(config) * CAPTION * 4 * networks["text"].keys / MIB)
            if "text" in networks
            else 0
        )
    if job.cell is None or job.kind == "anysubset":
        return 1
    samples = count_samples(config, job.cell)
    shape = measure_shape(config, job.cell)
    if job.rule == "decode":
        a_token = 16 if job.kind == "discrete" else 16 * 8 + 40
        return 1 + round(samples / paths.jobs(config, job.kind) * shape.length * a_token / MIB)
    networks, _ = list_networks(find_model(config, job.kind, job.model))
    painter = networks.get("vq", networks.get("kl"))
    side = find_picture_side(find_model(config, job.kind, job.model), painter)
    return 1 + round(samples * (3 * side**2 + 16 * shape.length) / MIB)


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
    asked = [task for task in list_text_tasks(config) if task["kind"] in paths.ASKED]
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
