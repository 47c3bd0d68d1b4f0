"""A speculator of a checkpoint: built for its target, taught the target's distribution on the target's own samples at
the sampling of the experiment, and measured by decoding held-out prompts with it."""

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from parity_decoders.distribution import TokenSampling
from torch import Tensor, nn

from parity.base import machine
from parity.base.errors import ParityError
from parity.decode import loop
from parity.experiment import weights
from parity.experiment.options import make_plain_options
from parity.generate import Generator
from parity.models.discrete import load as models
from parity.models.discrete.llamagen import Transformer
from parity.models.discrete.prompts import Prompts, compute_features
from parity.train.loop import Job, Recipe, reduce_precision
from parity.train.losses import make_distributions, measure_heads_at, measure_speculator
from parity.train.samples import Samples, complete_options

METHODS = {"heads": "mtj_heads", "draft": "mtj_draft", "drafter": "eagle"}  # decoder that a speculator is for
HELD_OUT, DECODED = 16, 8  # held-out rows, and how many of them, at most, are decoded to count passes
SEEN = 2  # a row is read so often: further readings teach less than the drawing of another row, at four readings
KEPT = 4_000_000_000  # bytes: the target's features of all rows are kept if they take at most this many
ROOM = 8  # distributions that are held at once for each row, in training
# The learning rate at its peak times the width of the network: 8e-3 for heads of the embedded one's 192
PEAK = {"heads": 1.6, "draft": 0.4, "drafter": 0.4}
PATIENCE, LEAST = 3, 0.005  # training goes on if the last evaluations saved at least this share of passes
FIGURES = ("step", "loss", "minutes", "passes", "passes_without", "equal", "gain")  # of a log, all but nats
TIMED, WARM = 8, 2  # passes of plain decoding that are timed, and passes before that
HIDDEN = {"heads": r"\.(fc|feed_forward)\.", "draft": r"^layers\.", "drafter": r"^layer\."}  # trained by Muon
STREAM = {"heads": 7, "draft": 6, "drafter": 5}


def initialise(net: Transformer) -> None:
    """Initialise weights in place: small normal ones, smaller if they write to the residual stream; the output is 0."""
    for name, p in net.named_parameters():
        if p.ndim > 1:
            writes = name.endswith(("wo.weight", "w2.weight"))
            torch.nn.init.normal_(p, std=0.02 / (2 * net.config.layers) ** 0.5 if writes else 0.02)
    torch.nn.init.zeros_(net.output.weight)


def build_draft(target: Transformer, layers: int, width: int) -> Transformer:
    """Build a draft model of a LlamaGen: this many of its layers, evenly chosen, with its weights, or a narrower
    network with new ones. 0 stands for a quarter of its layers, and for its width. Raises ParityError for sizes that it
    cannot have."""
    c = target.config
    head = c.dim // c.heads
    if not 0 <= layers <= c.layers:
        raise ParityError(f"--layers {layers}: allowed: 1 to {c.layers}, the target's")
    if width % head or not 0 <= width <= c.dim:
        raise ParityError(f"--width {width}: allowed: a multiple of {head}, the width of a head, up to {c.dim}")
    width = width or c.dim
    layers = layers or -(-c.layers // 4)
    net = Transformer(replace(c, layers=layers, dim=width, heads=width // head))
    if width < c.dim:
        initialise(net)
        return net
    state = {name: tensor.float() for name, tensor in target.state_dict().items() if not name.startswith("layers.")}
    for i, source in enumerate(np.linspace(0, c.layers - 1, layers).round().astype(int).tolist()):
        state |= {f"layers.{i}.{name}": tensor.float() for name, tensor in target.layers[source].state_dict().items()}
    net.load_state_dict(state)
    return net


def build(generator: Generator, kind: str, layers: int = 0, width: int = 0) -> tuple[nn.Module, dict[str, Any]]:
    """Build a speculator of a model, untrained, on its device; and the header of its file. Raises ParityError for a
    family that cannot have it."""
    check_kind(generator, kind)
    if kind != "draft" and (layers or width):
        raise ParityError(f"--{'layers' if layers else 'width'}: allowed for draft alone; {kind} have the target's")
    loaded = generator.load_networks("ar")
    target: Any = loaded.nets["net"]
    if kind == "draft":
        draft = build_draft(target, layers, width).to(generator.device)
        return draft, asdict(draft.config)
    net = loaded.family.make_speculator(kind, target.config).to(generator.device)
    sizes = asdict(target.config) if isinstance(target, Transformer) else {}  # a folder's config.json has them
    transformer = weights.read_family(generator.case.spec.family)["files"][0]
    return net, sizes | {"target": generator.manifest["sha256"].get(transformer)}


def check_kind(generator: Generator, kind: str) -> None:
    """Raise ParityError if models of this family cannot have a speculator of this kind, or are none of image tokens."""
    spec, model = generator.case.spec, generator.case.model
    if generator.kind != "discrete":
        raise ParityError(f"--model {model}: a model of {generator.kind} tokens; allowed: a model of image tokens")
    allowed = weights.read_family(spec.family).get("trained", ())
    if kind not in allowed:
        smaller = "; a smaller model of the family can be its draft model, as files.draft" if kind == "draft" else ""
        raise ParityError(
            f"{kind}: none is trained for {model}, of {spec.family}; allowed: {', '.join(allowed)}{smaller}"
        )


class Lesson:
    """A speculator that is being trained, beside its target."""

    def __init__(self, generator: Generator, kind: str, net: nn.Module, rows: Samples, held_out: Samples):
        """Prepare the distributions at the sampling of the experiment. rows and held_out: samples of the target."""
        self.generator, self.kind, self.net, self.rows, self.held_out = generator, kind, net, rows, held_out
        self.loaded: models.Loaded = generator.load_networks("ar")
        self.target: Any = self.loaded.nets["net"].requires_grad_(False)
        self.dtype = next(self.target.parameters()).dtype
        self.sampling = TokenSampling(**generator.case.setting["sampling"])
        self.distributions = make_distributions(self.sampling)
        self.method = METHODS[kind]
        image = generator.config.image
        given = dict((image.methods.get(self.method) or [{}])[0]) if image else {}
        self.options = complete_options(generator, self.method, given)
        held_out.take(1)
        first = {name: column[:1] for name, column in held_out.batches[0].items()}
        model = self.loaded.model(first, generator.case.setting["sampling"])
        self.length, self.vocab = model.length, model.vocab
        self.step = 0  # steps that were taken
        self.evaluated: tuple[int, dict[str, float]] = (-1, {})  # after this many steps, these figures
        self.free = model.forced.clone() < 0 if (model.forced >= 0).any() else None
        self.copies = 2 if self.sampling.guidance != 1 else 1  # of a row: with its prompt, and without
        self.features: Tensor | None = None  # float16 [copies, rows, L, dim] of rows to learn from, if they are kept
        self.tokens = torch.zeros(0)  # of these rows, [rows, L]
        self.computed = 0  # rows of which they are there
        self.reads = torch.zeros(0, dtype=torch.int64)  # [rows] how often each was read
        self.table: Tensor | None = None  # the target's embeddings of the image's tokens

    def embed_prompts(self, inputs: dict[str, Tensor], net: Any) -> Prompts:
        prompts: Prompts = self.loaded.family.embed_prompts(net, inputs=inputs, guided=self.copies == 2)
        return prompts

    def compute_features(self, samples: Samples, rows: Sequence[int]) -> Tensor:
        """Compute the target's features of rows: float16 [copies, rows, L, dim]."""
        inputs, tokens = samples.select(rows)
        with torch.no_grad(), reduce_precision(self.generator.device):
            prompts = self.embed_prompts(inputs, self.target)
            features = compute_features(self.target, prompts, tokens[:, :-1].repeat(self.copies, 1))
        return features.half().unflatten(0, (self.copies, -1))

    def recall_features(self, rows: Sequence[int]) -> Tensor:
        """Return the target's features of rows to learn from, as `compute_features`, which computes them unless they
        are kept."""
        if self.features is None:
            return self.compute_features(self.rows, rows)
        return self.features[:, rows].to(self.generator.device)

    def keep_features(self, count: int, most: int) -> None:
        """Compute the target's features of rows to learn from, until there are those of `count`; there will be `most`
        rows at most."""
        n = self.rows.at_once
        if self.features is None:
            rows = -(-most // n) * n
            shape = self.copies, rows, self.length, self.target.width
            self.features = torch.empty(shape, dtype=torch.float16)
            self.tokens = torch.zeros(rows, self.length, dtype=torch.int64)
        while self.computed < count:
            batch = range(self.computed, self.computed + n)
            for part in self.split(batch):
                self.features[:, part.start : part.stop] = self.compute_features(self.rows, part).cpu()
            self.tokens[batch.start : batch.stop] = self.rows.select(batch)[1].cpu()
            self.computed += n

    def measure(self, samples: Samples, rows: Sequence[int], features: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Measure the speculator on rows with these features of the target: what it is trained on beside its
        divergences, and these by name. Gradients reach the speculator alone."""
        inputs, tokens = samples.select(rows)
        tokens = tokens.repeat(self.copies, 1)
        width = self.loaded.width
        with reduce_precision(self.generator.device):
            return measure_speculator(
                self.kind,
                self.net,
                self.target,
                partial(self.embed_prompts, inputs),
                tokens,
                features.flatten(0, 1),
                self.distributions,
                width,
                self.free,
            )

    def measure_places(self, rows: np.ndarray, places: np.ndarray) -> tuple[Tensor, dict[str, Tensor]]:
        """Measure heads from a place of each of some rows, as `measure`."""
        assert self.features is not None
        device, kept, chosen = self.generator.device, self.features, torch.from_numpy(rows)
        if self.table is None:
            self.table = self.embed_prompts(self.rows.select([0])[0], self.target).embeddings

        def select_features(places: Tensor) -> Tensor:
            return kept[:, chosen, places.cpu()].to(device)

        with reduce_precision(device):
            nats = measure_heads_at(
                self.net,
                self.target.output,
                self.table,
                select_features,
                self.tokens[chosen].to(device),
                torch.from_numpy(places).to(device),
                self.distributions,
                self.loaded.width,
                self.free,
            )
        return torch.zeros((), device=device), nats

    def split(self, rows: range, length: int = 0) -> Iterator[range]:
        """Split rows of this many distributions, by default an image's, into as many at a time as their distributions
        leave room for."""
        at_once = machine.limit_rows(len(rows), length or self.length, ROOM * self.vocab)
        yield from (rows[i : i + at_once] for i in range(0, len(rows), at_once))

    def choose_rows(self, n: int, count: int, rng: np.random.Generator) -> np.ndarray:
        """Choose `count` of the first n rows, those that were read least first, at random among equals, and count their
        reading: drawn uniformly, early rows would be read four times and the last ones never."""
        order = np.lexsort((rng.random(n), self.reads[:n].numpy()))
        rows: np.ndarray = order[np.arange(count) % n]
        self.reads += torch.from_numpy(np.bincount(rows, minlength=len(self.reads)))
        return rows

    def learn(self, job: Job, step: int, rng: np.random.Generator) -> tuple[Tensor, dict[str, float]]:
        """Compute the loss of a step's rows, and its gradient except for that of the last part, which is left to the
        caller; draw further rows first if those that there are were read often enough. Heads, which read a place
        alone, learn from as many places of as many rows."""
        self.step = step + 1
        self.rows.take(n := count_rows(job, step + 1))
        most = count_rows(job, job.steps)
        keeps = 2 * self.copies * self.length * self.target.width * most <= KEPT
        if keeps:
            self.keep_features(n, most)
        is_spread = keeps and self.kind == "heads"
        count = job.batch * self.length if is_spread else job.batch
        rows = self.choose_rows(n, count, rng)
        places = rng.integers(0, self.length - 1, count)
        total, done = torch.zeros((), device=self.generator.device), 0
        for part in self.split(range(count), 2 if is_spread else 0):
            chosen = rows[part.start : part.stop]
            if is_spread:
                error, nats = self.measure_places(chosen, places[part.start : part.stop])
            else:
                error, nats = self.measure(self.rows, chosen.tolist(), self.recall_features(chosen.tolist()))
            value = (error + torch.stack(list(nats.values())).sum()) * (len(part) / count)
            done += len(part)
            if done < count:
                value.backward()
                value = value.detach()
            total = total + value
        return total, {}

    def evaluate(self) -> dict[str, float]:
        """Measure the mean divergences on held-out rows, and passes and speed of decoding some of them; once after a
        step."""
        if self.evaluated[0] == self.step:
            return self.evaluated[1]
        self.held_out.take(HELD_OUT)
        sums: dict[str, float] = {}
        for part in self.split(range(HELD_OUT)):
            features = self.compute_features(self.held_out, part)
            for name, value in self.measure(self.held_out, part, features)[1].items():
                sums[name] = sums.get(name, 0.0) + value.item() * len(part) / HELD_OUT
        self.evaluated = self.step, sums | self.count_passes()
        return self.evaluated[1]

    def count_passes(self) -> dict[str, float]:
        """Decode held-out prompts with the speculator: mean passes, with it and as the rows were drawn, the share of
        rows that are equal to these, and the times plain decoding's speed, which is timed beside it for a few
        passes."""
        rows = dict(self.held_out.batches[0])
        expected, without = rows.pop("tokens"), rows.pop("nfe")
        loaded = replace(self.loaded, nets={**self.loaded.nets, self.kind: copy.deepcopy(self.net).to(self.dtype)})
        spec = {**self.held_out.spec, "method": self.method, "options": self.options}
        plain = time_passes(self.loaded, {**spec, "method": "ar", "options": make_plain_options("discrete")}, rows)
        n = len(expected)
        columns = loop.decode_batch("discrete", loaded, spec, rows, n, (0, n), "held-out rows")
        return {
            "passes": float(columns["nfe"].mean()),
            "passes_without": float(without.mean()),
            "equal": (columns["tokens"] == expected).all(1).mean().item(),
            "gain": plain * expected.shape[1] / float(columns["seconds"][0]),
        }

    def make_recipe(self, job: Job, header: dict[str, Any], every: int) -> Recipe:
        """Make the recipe of the speculator; header: of its file; every: steps between two evaluations."""
        dim = next(p.shape[-1] for p in self.net.parameters() if p.ndim > 1)
        self.reads = torch.zeros(count_rows(job, job.steps), dtype=torch.int64)
        return Recipe(
            self.net,
            lambda step, rng: self.learn(job, step, rng),
            lambda: (self.evaluate(), header),
            (STREAM[self.kind],),
            peak=PEAK[self.kind] / max(dim, 64),
            hidden=HIDDEN[self.kind],
            warmup=min(100, max(1, job.steps // 20)),
            held_out=self.evaluate,
            held_out_every=every,
            log_every=math.gcd(every, 50),
            pays=is_gaining,
            memory=(self.reads,),
        )


def count_rows(job: Job, steps: int) -> int:
    """Count the rows that there are after this many steps. They grow as the root of steps: with as many as were read so
    far, or fewer, a speculator soon knows the first ones by heart."""
    most = min(job.examples, max(job.batch, job.steps * job.batch // SEEN))
    return max(min(job.batch, most), math.ceil(most * (steps / job.steps) ** 0.5))


def is_gaining(log: list[dict[str, float]]) -> bool:
    """Return whether the last PATIENCE evaluations of a log have fewer passes, or fewer nats, than those before, by
    LEAST of them."""
    evaluations = [row for row in log if "passes" in row]
    before, last = evaluations[:-PATIENCE], evaluations[-PATIENCE:]

    def count_passes(row: dict[str, float]) -> float:
        return row["passes"]

    def sum_nats(row: dict[str, float]) -> float:
        return sum(value for name, value in row.items() if name not in FIGURES)

    return not before or any(
        min(map(measure, last)) < (1 - LEAST) * min(map(measure, before)) for measure in (count_passes, sum_nats)
    )


def time_passes(loaded: Any, spec: dict[str, Any], rows: loop.Rows) -> float:
    """Time the mean pass of a decoder in seconds, over TIMED passes after the first WARM."""
    steps = loop.start_decoding("discrete", loaded, spec)(rows, loop.noise_of(rows, loaded, spec))[2]
    for _ in islice(steps, WARM):
        pass
    synchronise(loaded.device)
    started, n = time.perf_counter(), 0
    for _ in islice(steps, TIMED):
        n += 1
    synchronise(loaded.device)
    return (time.perf_counter() - started) / max(1, n)


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
