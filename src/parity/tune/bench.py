"""A model under `parity tune`: rows of each kind, decoded and timed, and what a variant would cost in a batch."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import torch

from parity.base import machine
from parity.base.devices import take_device
from parity.base.errors import ConfigError
from parity.base.files import dump_canonical
from parity.decode import loop
from parity.decode.loop import Rows
from parity.experiment import checks, tuned
from parity.experiment.cells import list_text_tasks
from parity.experiment.options import (
    declaration,
    find_plain_method,
    list_bounds,
    make_option_schema,
    make_plain_options,
    methods,
    needs,
)
from parity.experiment.prompt_files import read_prompts
from parity.experiment.schema import Config
from parity.experiment.tuned import Case
from parity.experiment.weights import list_option_sizes
from parity.inputs import tasks
from parity.inputs.prompts import encode
from parity.models.compiling import CompiledPass
from parity.models.discrete.cached import logits_pass
from parity.models.discrete.load import Loaded, load_networks

SIZES = (16, 8, 12, 32, 4, 64)  # variants evaluate about so many positions a pass; they are tried in this order
# By kind the options that grow with the size of a pass, and what divides the size. `sjd_pac`'s branches do not grow.
SHARES = {
    "discrete": {"window": 1, "branches": 1, "total": 1, "gamma": 4},
    "anysubset": {"window": 1, "k": 2},
    "continuous": {"window": 2, "ahead": 1, "gamma": 4},
}
FEW = 4  # an option whose default is smaller does not grow
WIDTHS, COMPILED = (1, 4, 8, 16, 32, 64), (1, 16)  # a pass is timed over so many nodes, eager and compiled
SEED = 2**31 - 1  # with this seed and ids of their own, rows of `parity tune` share no noise with an experiment
FIRST = 10**9  # rows of a continuous model are numbered from here, beyond any experiment's
CAPTIONS, PILOT = 16, 2  # so many captions are decoded in turn, and so many rows by a pilot


@dataclass
class Variant:
    """A method, its complete options, and what was counted and timed of it."""

    method: str
    options: dict[str, Any]
    fast: bool = False  # whether its passes are compiled
    passes: float = 0.0  # passes a row; of continuous models calls one after another
    nodes: float = 0.0  # nodes that a pass evaluates
    step: float = 1.0  # image tokens: time of a step over that of a bare pass as wide
    piloted: float = 0.0  # texts and vectors: seconds a row of the pilot
    predicted: float = 0.0  # predicted seconds a row at the batch at hand
    seconds: list[float] = field(default_factory=list)  # measured seconds a row, by round

    @property
    def name(self) -> str:
        return f"{self.method}, compiled" if self.fast else self.method

    def times(self, plain: list[float]) -> float:
        """Compute the speed as times plain decoding's, whose seconds by round are `plain`: the median over rounds."""
        return median(p / seconds for p, seconds in zip(plain, self.seconds, strict=True))


class Cost(NamedTuple):
    """Of rows that were decoded."""

    seconds: float
    passes: float  # passes a row
    nodes: float = 0.0  # nodes a pass; 0 but for image tokens
    a_pass: float = 0.0  # seconds a pass


def list_candidates(case: Case) -> Iterator[Variant]:
    """List every lossless variant that a model can run, each once: plain decoding, then all methods size by size."""
    kind = case.kind
    shares = SHARES[case.kind]
    yield Variant(find_plain_method(kind), make_plain_options(kind))
    sizes = list_option_sizes(case.spec)
    names = {f"{find_plain_method(kind)} {dump_canonical(make_plain_options(kind))}"}
    for size in SIZES:
        for method in methods(kind):
            bounds = list_bounds(kind, method, sizes)
            fields = make_option_schema(kind, method).model_fields
            sized = {n: max(2, size // shares[n]) for n, f in fields.items() if n in shares and f.default >= FEW}
            sized = {name: min(value, bounds.get(name, value)) for name, value in sized.items()}
            try:
                sized = {**declaration(kind, method).EXACT_WITH, **sized}
                chosen = tuned.complete_lossless(kind, method, sized, case.spec)
            except ConfigError:
                continue  # the variant is lossy, or the model lacks a network that it needs
            if (name := f"{method} {dump_canonical(chosen)}") not in names:
                names.add(name)
                yield Variant(method, chosen)


class Bench:
    """A model on this machine. rows(first, count): so many rows from a number on, whose ids are no experiment's."""

    def __init__(self, case: Case, manifest: Mapping[str, Any], config: Config):
        """Choose device and dtype; networks are loaded when they are needed."""
        self.case = case
        self.manifest = manifest
        self.config = config
        self.kind = case.kind
        self.dtype = case.setting.get("dtype", "float32")
        self.device = take_device("cuda" if machine.gpu() else "cpu", self.dtype)
        self.fast = config.compile == "on" or (config.compile == "auto" and self.device.startswith("cuda"))
        self.captured = config.capture == "auto" and self.device.startswith("cuda")
        self.compiles = False  # whether variants are tried with compiled passes, too
        self.models: dict[tuple[str, bool], Any] = {}

    def rows(self, first: int, count: int) -> Rows:
        """Make the inputs of `count` rows from number `first` on, under ids that no experiment has."""
        raise NotImplementedError

    def load_networks(self, companion: str, fast: bool) -> Any:
        """Load the networks that decode, with the companion that a method needs ("" for none), once; fast: compiled."""
        if (companion, fast) not in self.models:
            method = next(m for m in methods(self.kind) if needs(self.kind, m) == companion)
            spec = {"method": method, "dtype": self.dtype}
            self.models[companion, fast] = loop.load(self.kind, self.manifest, spec, self.device, fast, self.captured)
        return self.models[companion, fast]

    def decode(self, variant: Variant, rows: Rows) -> Cost:
        """Decode rows by a variant, and measure its seconds, passes and nodes."""
        fast = variant.fast or self.fast
        cell = {**self.case.setting, "seed": SEED, "method": variant.method, "options": variant.options}
        loaded = self.load_networks(needs(self.kind, variant.method), fast)
        model, start, steps = loop.start_decoding(self.kind, loaded, cell)(rows, loop.noise_of(rows, loaded, cell))
        decoded = loop.import_kind(self.kind).record(model, start, steps)
        columns = loop.import_kind(self.kind).columns(rows, model, start, decoded)
        passes = columns["depth" if self.kind == "continuous" else "nfe"].double()
        nodes = float(columns["nodes"].sum() / passes.sum()) if "nodes" in columns else 0.0
        return Cost(decoded.seconds, float(passes.mean()), nodes, decoded.seconds / columns["passes"])

    def pilot(self, variant: Variant) -> None:
        """Decode a few rows at once, and store in the variant the passes and the seconds of a row."""
        cost = self.decode(variant, self.rows(0, PILOT))
        variant.passes = cost.passes
        variant.piloted = cost.seconds / PILOT

    def predict(self, variant: Variant, batch: int) -> float:
        """Predict the seconds a row: those of the pilot, whatever the batch."""
        return variant.piloted


class Numbered(Bench):
    """Images of a continuous model."""

    def rows(self, first: int, count: int) -> Rows:
        """Make rows that are numbered from FIRST on."""
        return {"ids": np.array([str(FIRST + number) for number in range(first, first + count)])}


class Texts(Bench):
    """Texts of the first task that is decoded."""

    def __init__(self, case: Case, manifest: Mapping[str, Any], config: Config):
        """Build the task of the case, whose rows are decoded."""
        super().__init__(case, manifest, config)
        task = next(t for t in list_text_tasks(config) if t["key"] == case.setting["task"])
        self.task = tasks.build(task["kind"], task["settings"], tasks.load_vocabulary(manifest))

    def rows(self, first: int, count: int) -> Rows:
        """Take the rows of the task in turn, under ids of their own."""
        numbers = np.arange(first, first + count) % len(self.task.ids)
        columns = ("tokens", "known", "end")
        ids = np.array([f"tune-{number}" for number in range(first, first + count)])
        return {"ids": ids, **{name: getattr(self.task, name)[numbers] for name in columns}}


class Prompted(Bench):
    """Images of a model of image tokens, captions read. What passes cost is timed; what a method needs is counted."""

    def __init__(self, case: Case, manifest: Mapping[str, Any], config: Config):
        """Read and encode the captions, and load the target with every companion that a candidate needs."""
        super().__init__(case, manifest, config)
        assert config.image is not None
        captions = read_prompts(config.image.prompts, max_words=checks.count_allowed_words(config))[:CAPTIONS]
        companions = {companion for v in list_candidates(case) if (companion := needs(self.kind, v.method))}
        self.nets = load_networks(manifest, ("vq", "net", *sorted(companions)), self.device, getattr(torch, self.dtype))
        self.columns = {"captions": np.array(captions), **encode(manifest, captions, self.device)}
        self.compiles = config.compile == "auto" and not self.fast
        self.run = CompiledPass(logits_pass, torch.device(self.device).type)  # all methods share the target's pass
        self.costs: dict[tuple[int, bool], list[float]] = {}  # seconds of a pass over each width, by (batch, compiled)

    def load_networks(self, companion: str, fast: bool) -> Loaded:
        """Select the target and the companion that a method needs: others would be fed, too."""
        nets = {name: net for name, net in self.nets.items() if name in ("vq", "net", companion)}
        run = self.run if fast else logits_pass
        return Loaded(self.manifest, nets, torch.device(self.device), run, self.captured)

    def rows(self, first: int, count: int) -> Rows:
        """Take the captions in turn, under ids of their own."""
        numbers = np.arange(first, first + count)
        ids = np.array([f"tune-{number}" for number in numbers])
        return {"ids": ids, **{k: v[numbers % len(v)] for k, v in self.columns.items()}}

    def pilot(self, variant: Variant) -> None:
        """Decode rows one at a time; store in the variant passes, nodes and what a step costs beside its pass."""
        costs = [self.decode(variant, self.rows(i, 1)) for i in range(PILOT)]
        variant.passes, variant.nodes = mean(d.passes for d in costs), mean(d.nodes for d in costs)
        variant.step = min(d.a_pass for d in costs) / self.pass_seconds(variant.nodes, 1, self.fast)

    def predict(self, variant: Variant, batch: int) -> float:
        """Predict the seconds a row at a batch, from the variant's passes and the time of a pass of its nodes."""
        cost = self.pass_seconds(variant.nodes, batch, variant.fast or self.fast)
        return variant.passes * cost * variant.step / batch

    def pass_seconds(self, nodes: float, batch: int, fast: bool) -> float:
        """Estimate the seconds of a pass over so many nodes of each row of a batch, from widths that are timed once."""
        widths = COMPILED if fast else WIDTHS
        if (batch, fast) not in self.costs:
            self.costs[batch, fast] = [self.time_pass(n, batch, fast) for n in widths]
        beyond = max(1.0, nodes / widths[-1])
        return beyond * float(np.interp(nodes, widths, self.costs[batch, fast]))

    @torch.inference_mode()
    def time_pass(self, nodes: int, batch: int, fast: bool) -> float:
        """Time a pass over so many nodes of each row of a batch, in the middle of an image: the median of seconds."""
        model = self.load_networks("", fast).model(self.rows(0, batch), self.case.setting["sampling"])
        positions = (model.length // 2 + torch.arange(nodes, device=self.device)).clamp(max=model.length - 2)
        positions = positions.repeat(batch, 1)
        seconds = [0.0]
        while len(seconds) < 4 or (sum(seconds[2:]) < 0.05 and len(seconds) < 30):  # the first pass compiles, warms up
            start = time.perf_counter()
            model.logits(torch.zeros_like(positions), positions).amax().item()  # item() waits for the device
            seconds.append(time.perf_counter() - start)
        return median(seconds[2:])


BENCHES = {"discrete": Prompted, "anysubset": Texts, "continuous": Numbered}
