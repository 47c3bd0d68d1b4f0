"""A model on this machine: rows of each kind, decoded by turns and timed, and what a variant would cost in a batch.

The rows share no noise with an experiment: their ids and seed are of this module."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from parity_decoders.compiling import CompiledPass

from parity.base import machine
from parity.base.command import note, progress
from parity.base.devices import is_out_of_memory, take_device
from parity.base.errors import ParityError
from parity.decode import loop
from parity.decode.loop import Rows
from parity.experiment.options import find_plain_method, needs
from parity.metrics.estimates import Estimate, is_narrow, mean_ratio
from parity.models.discrete.load import Loaded, load_networks

CAPTURED, COMPILED, EAGER = "CUDA graphs", "compiled", "eager"  # how passes run
WIDTHS, WIDTHS_COMPILED = (1, 4, 8, 16, 32, 64), (1, 16, 64)  # a pass is timed over this many nodes, eager and compiled
SEED = 2**31 - 1  # the seed of all rows here
FIRST = 10**9  # rows of a continuous model are numbered from here, beyond any experiment's
PILOT = 2  # a pilot decodes this many rows
# A duel has FEWEST rounds, if there is time, and at most PAIRS. With fewer, an interval that is narrow by chance ends
# it, and holds the speed less often than it says (tests/timing).
FEWEST, PAIRS = 10, 40


@dataclass(eq=False)
class Variant:
    """A method, its complete options, and what was counted and timed of it."""

    method: str
    options: dict[str, Any]
    own: dict[str, str] = field(default_factory=dict)  # of a decoder of others: `cells.describe_source`
    fast: bool = False  # whether its passes are compiled
    captures: bool = True  # whether its passes are captured where they can be
    way: str = ""  # how its passes ran in the pilot: CAPTURED, COMPILED or EAGER
    base: "Variant | None" = None  # plain decoding that it is compared with; None: the first of all variants
    passes: float = 0.0  # passes a row; of continuous models calls one after another
    nodes: float = 0.0  # nodes that a pass evaluates
    step: float = 1.0  # image tokens: time of a step over that of a bare pass as wide
    piloted: float = 0.0  # seconds a row of the pilot
    predicted: float = 0.0  # predicted seconds a row at the batch at hand
    seconds: list[float] = field(default_factory=list)  # measured seconds a row, by round

    @property
    def name(self) -> str:
        return self.method + ", compiled" * self.fast + ", not captured" * (not self.captures)

    def compare(self, plain: list[float]) -> Estimate:
        """Estimate the speed, times plain decoding's, whose seconds by round are `plain`, of the rounds that both have:
        the geometric mean, with its interval."""
        return mean_ratio(np.array(plain[: len(self.seconds)]), np.array(self.seconds))

    def is_known(self, plain: list[float]) -> bool:
        """Return whether the speed is known well: by FEWEST rounds or more, with a narrow interval."""
        return len(self.seconds) >= FEWEST and is_narrow(self.compare(plain))

    def times(self, plain: list[float]) -> float:
        """Compute the speed that `compare` estimates."""
        return float(self.compare(plain).value)


class Cost(NamedTuple):
    """Of rows that were decoded."""

    seconds: float
    passes: float  # passes a row
    nodes: float = 0.0  # nodes a pass; 0 except for image tokens
    a_pass: float = 0.0  # seconds a pass
    way: str = EAGER  # how passes ran


class Bench:
    """A model on this machine, and rows that it decodes."""

    def __init__(
        self, kind: str, manifest: Mapping[str, Any], setting: dict[str, Any], given: Rows | None = None, **how: Any
    ):
        """Choose device and dtype; networks are loaded when they are needed.

        setting  what the specifications of all variants share (`cells.CONDITIONS`)
        given    inputs of rows (`parity.inputs`), which are taken in turn; None for a model whose images are numbered
        how      `compile` and `capture`, as the configuration has them; `device`, by default a GPU if there is one
        """
        self.kind = kind
        self.manifest = manifest
        self.setting = setting
        self.given = given and {name: column for name, column in given.items() if name != "ids"}
        self.dtype = setting.get("dtype", "float32")
        self.device = take_device(how.get("device") or ("cuda" if machine.gpu() else "cpu"), self.dtype)
        on_cuda = self.device.startswith("cuda")
        self.fast = how["compile"] == "on" or (how["compile"] == "auto" and on_cuda)
        self.compiles = how["compile"] == "auto" and not self.fast and kind == "discrete"  # tries compiled passes, too
        self.captured = how["capture"] == "auto" and on_cuda
        self.models: dict[bool, Any] = {}  # by whether they are compiled

    def rows(self, first: int, count: int) -> Rows:
        """Make the inputs of `count` rows from number `first` on, under ids that no experiment has."""
        numbers = np.arange(first, first + count)
        if self.given is None:
            return {"ids": np.array([str(FIRST + number) for number in numbers])}
        ids = np.array([f"tune-{number}" for number in numbers])
        return {"ids": ids, **{name: column[numbers % len(column)] for name, column in self.given.items()}}

    def load_networks(self, method: str, fast: bool) -> Any:
        """Load the networks that a method decodes with, each once; fast: compiled."""
        if fast not in self.models:
            spec = {"method": method, "dtype": self.dtype}
            self.models[fast] = loop.load(self.kind, self.manifest, spec, self.device, fast, self.captured)
        return self.models[fast].take_speculator(needs(self.kind, method))

    def decode(self, variant: Variant, rows: Rows) -> Cost:
        """Decode rows by a variant, and measure its seconds, passes and nodes."""
        cell = {**self.setting, "seed": SEED, "method": variant.method, "options": variant.options}
        cell |= variant.own
        fast = variant.fast or self.fast
        loaded = self.load_networks(variant.method, fast)
        if self.captured and not variant.captures:
            loaded = replace(loaded, captured=False)
        model, start, steps = loop.start_decoding(self.kind, loaded, cell)(rows, loop.noise_of(rows, loaded, cell))
        decoded = loop.import_kind(self.kind).record(model, start, steps)
        columns = loop.import_kind(self.kind).columns(rows, model, start, decoded)
        passes = columns["depth" if self.kind == "continuous" else "nfe"].double()
        nodes = float(columns["nodes"].sum() / passes.sum()) if "nodes" in columns else 0.0
        way = CAPTURED if getattr(steps, "is_captured", False) else COMPILED if fast else EAGER
        return Cost(decoded.seconds, float(passes.mean()), nodes, decoded.seconds / columns["passes"], way)

    def pilot(self, variant: Variant) -> list[Cost]:
        """Decode rows one at a time, store in the variant what was counted and timed, and return their costs."""
        costs = [self.decode(variant, self.rows(i, 1)) for i in range(PILOT)]
        variant.passes, variant.nodes = mean(cost.passes for cost in costs), mean(cost.nodes for cost in costs)
        variant.piloted, variant.way = min(cost.seconds for cost in costs), costs[-1].way
        return costs

    def predict(self, variant: Variant, batch: int) -> float:
        """Predict the seconds a row: those of the pilot, whatever the batch."""
        return variant.piloted


class Images(Bench):
    """Images of a model of image tokens. What passes cost is timed; what a method needs is counted."""

    def __init__(self, *model: Any, speculators: Iterable[str], **how: Any):
        """Load the target and the speculators. model: kind, manifest, setting and rows, as of `Bench`."""
        super().__init__(*model, **how)
        names = ("vq", "net", *sorted({*speculators} - {""}))
        self.nets = load_networks(self.manifest, names, self.device, getattr(torch, self.dtype))
        net: Any = self.nets["net"]
        self.run = CompiledPass(net.forward, torch.device(self.device).type)  # all methods share it
        self.costs: dict[tuple[int, bool], dict[int, float]] = {}  # by (batch, compiled): seconds by nodes of a pass

    def load_networks(self, method: str, fast: bool) -> Loaded:
        """Select the target and the speculator that a method needs: others would be fed, too."""
        nets = {name: net for name, net in self.nets.items() if name in ("vq", "net", needs(self.kind, method))}
        return Loaded(self.manifest, nets, torch.device(self.device), self.run if fast else None, self.captured)

    def pilot(self, variant: Variant) -> list[Cost]:
        """Pilot as `Bench` does, and store what a step costs beside its pass."""
        costs = super().pilot(variant)
        variant.step = min(cost.a_pass for cost in costs) / self.pass_seconds(variant.nodes, 1, self.fast)
        return costs

    def predict(self, variant: Variant, batch: int) -> float:
        """Predict the seconds a row at a batch, from the variant's passes and the time of a pass of its nodes."""
        cost = self.pass_seconds(variant.nodes, batch, variant.fast or self.fast)
        return variant.passes * cost * variant.step / batch

    def pass_seconds(self, nodes: float, batch: int, fast: bool) -> float:
        """Estimate the seconds of a pass over this many nodes of each row of a batch, from the two nearest of the
        widths, which are timed once: a wider pass than a method's may need more memory than there is."""
        widths = WIDTHS_COMPILED if fast else WIDTHS
        below = max((n for n in widths if n <= nodes), default=widths[0])
        above = min((n for n in widths if n >= nodes), default=widths[-1])
        costs = self.costs.setdefault((batch, fast), {})
        for n in {below, above} - set(costs):
            costs[n] = self.time_pass(n, batch, fast)
        beyond = max(1.0, nodes / widths[-1])
        return beyond * float(np.interp(nodes, (below, above), (costs[below], costs[above])))

    @torch.inference_mode()
    def time_pass(self, nodes: int, batch: int, fast: bool) -> float:
        """Time a pass over this many nodes of each row of a batch, in the middle of an image: the median of seconds."""
        loaded = self.load_networks(find_plain_method(self.kind), fast)
        model = loaded.model(self.rows(0, batch), self.setting["sampling"])
        positions = (model.length // 2 + torch.arange(nodes, device=self.device)).clamp(max=model.length - 2)
        positions = positions.repeat(batch, 1)
        seconds = [0.0]
        while len(seconds) < 4 or (sum(seconds[2:]) < 0.05 and len(seconds) < 30):  # the first pass compiles, warms up
            start = time.perf_counter()
            model.logits(torch.zeros_like(positions), positions).amax().item()  # item() waits for the device
            seconds.append(time.perf_counter() - start)
        return median(seconds[2:])


def try_in_memory(run: Callable[[], object], plain: bool, label: str) -> bool:
    """Run a function that needs memory and return whether there was enough. If not, print a line; if `plain`, that is
    of plain decoding, raise ParityError."""
    try:
        run()
        return True
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    if plain:
        raise ParityError(f"{label}: memory is too little for plain decoding; allowed: a smaller batch")
    print(f"{label}: memory is too little; left out", file=sys.stderr)
    return False


def time_row(bench: Bench, variant: Variant, first: int, batch: int) -> None:
    """Decode a batch of rows from number `first` on, and add the seconds a row to the variant's list."""
    variant.seconds.append(bench.decode(variant, bench.rows(first, batch)).seconds / batch)


def run_duels(bench: Bench, variants: list[Variant], batch: int, seconds: float) -> list[Variant]:
    """Time variants in turns, round by round the same new rows, of which the first is plain decoding: each until its
    speed is known well, PAIRS rounds are done, or a further round would take longer than `seconds` in all, for which
    compiling does not count; twice at least. Plain decoding that a variant names as its `base` takes part in all
    rounds, too. Returns those that had memory enough, plain decoding first."""
    plain = variants[0]
    bases = [v for v in variants if v is plain or any(other.base is v for other in variants)]
    for variant in variants:
        if variant.fast or bench.fast:  # compile before the clock runs; the number of rows does not matter
            bench.decode(variant, bench.rows(0, min(batch, 2)))
    done, open_ones = [*bases], [v for v in variants if v not in bases]
    start = time.time()
    for number in progress(range(PAIRS), PAIRS, f"batch {batch}: rounds"):
        if number >= 2 and (not open_ones or (time.time() - start) * (number + 1) / number >= seconds):
            break
        note(f"batch {batch}: round {number + 1}, {len(open_ones)} in turn with {plain.name}")
        for variant in [*bases, *open_ones][:: -1 if number % 2 else 1]:
            run = partial(time_row, bench, variant, PILOT + number * batch, batch)
            if not try_in_memory(run, variant in bases, f"batch {batch}: {variant.name}"):
                open_ones.remove(variant)
        known = [variant for variant in open_ones if variant.is_known((variant.base or plain).seconds)]
        done += known
        open_ones = [variant for variant in open_ones if variant not in known]
    return [variant for variant in variants if variant in [*done, *open_ones]]
