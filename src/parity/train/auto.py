"""Which speculator of a model gains most, predicted before any is trained: passes from counts of the embedded model,
seconds of a step measured with an untrained speculator of that size."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from parity.base.errors import ParityError
from parity.base.weights import count_parameters
from parity.experiment.options import make_plain_options
from parity.experiment.weights import list_option_sizes
from parity.generate import Generator
from parity.inputs.prompts import encode
from parity.train.samples import SEED, complete_options
from parity.train.speculators import METHODS, build, check_kind, time_passes

# Passes a token of the embedded model at 32 nodes a pass (docs/figures/full.csv): of trained speculators, at best and
# at worst. The worst of a draft model is that of one .80 nats from an earlier target in place of .42, which took 1.12
# times as many passes (docs/explanation/jacobi.md); of smaller ones than the embedded (.29 of its target) nothing was
# counted.
COUNTED = {
    "sjd_coupled": (0.194, 0.194),
    "mtj": (0.193, 0.193),
    "mtj_heads": (0.166, 0.166),
    "mtj_draft": (0.154, 0.172),
    "eagle": (0.337, 0.337),
}
NODES = {  # the options that were counted
    "sjd_coupled": {"window": 32},
    "mtj": {"window": 16, "branches": 16},
    "mtj_heads": {"window": 16, "branches": 16},
    "mtj_draft": {"window": 16, "branches": 16, "rounds": 1},
    "eagle": {"total": 31, "depth": 4, "top_k": 6},
}
SHARES = (8, 4, 2)  # a draft model has this part of the target's layers


class Choice(NamedTuple):
    """A decoder with an untrained speculator, and its predicted gain."""

    method: str
    kind: str  # of the speculator, "" for none
    layers: int  # of a draft model, 0 for none
    share: float  # of the target's parameters
    step: float  # seconds of a step, over those of a pass of plain decoding
    gain: tuple[float, float]  # times plain decoding's speed, at worst and at best

    @property
    def command(self) -> str:
        return f"parity train {self.kind}{f' --layers {self.layers}' if self.layers else ''}"


def list_speculators(generator: Generator) -> Iterator[tuple[str, int]]:
    """List the speculators that a model can have: kind, and layers of a draft model."""
    for kind in METHODS:
        try:
            check_kind(generator, kind)
        except ParityError:
            continue
        if kind != "draft":
            yield kind, 0
        else:
            layers = generator.load_networks("ar").nets["net"].config.layers
            yield from ((kind, n) for n in sorted({-(-layers // share) for share in SHARES}))


def measure_choices(generator: Generator, prompt: str) -> list[Choice]:
    """Measure steps of every choice at batch 1, on one prompt; the best by its worst gain comes first."""
    check_kind(generator, "heads")
    loaded = generator.load_networks("ar")
    columns = encode(generator.manifest, [prompt], generator.device)
    rows = {"ids": np.array(["auto/0"]), "captions": np.array([prompt]), **columns}
    total = count_parameters(loaded.nets["net"])

    def time_method(method: str, networks: Any, chosen: dict[str, Any]) -> float:
        spec = {**generator.case.setting, "seed": SEED, "method": method, "options": chosen}
        return time_passes(networks, spec, rows)

    choices = []
    for kind, layers in [("", 0), ("", 1), *list_speculators(generator)]:
        method = METHODS.get(kind) or ("mtj" if layers else "sjd_coupled")
        net = build(generator, kind, layers)[0] if kind else None
        nets = {**loaded.nets, kind: net.to(next(loaded.nets["net"].parameters()).dtype)} if net else loaded.nets
        plain = time_method("ar", loaded, make_plain_options("discrete"))  # in turns, for machines change their speed
        step = time_method(method, replace(loaded, nets=nets), complete_options(generator, method, NODES[method]))
        best, worst = COUNTED[method]
        gains = (plain / step / worst, plain / step / best)
        share = count_parameters(net) / total if net else 0.0
        choices.append(Choice(method, kind, layers if kind else 0, share, step / plain, gains))
    return sorted(choices, key=lambda choice: -choice.gain[0])


def describe_choices(generator: Generator, prompt: str) -> list[str]:
    """Describe all choices as a table, and the best speculator with the command that trains it, in lines."""
    choices = measure_choices(generator, prompt)
    length = list_option_sizes(generator.case.spec)["length"]
    table = [
        {
            "speculator": f"{c.kind}, {c.layers} layers" if c.layers else c.kind or "none",
            "method": c.method,
            "of the target": f"{c.share:.1%}",
            "a step, in plain passes": f"{c.step:.2f}",
            "passes, predicted": f"{length * min(COUNTED[c.method]):.0f} to {length * max(COUNTED[c.method]):.0f}",
            "times plain, predicted": f"{c.gain[0]:.2f} to {c.gain[1]:.2f}",
        }
        for c in choices
    ]
    best = choices[0]
    how = "Passes are predicted from counts of the embedded model; steps were measured here, of untrained speculators."
    last = f"Predicted to gain most at batch 1: {best.method}, "
    last += f"`{best.command}`" if best.kind else "which needs no speculator"
    return [pd.DataFrame(table).to_string(index=False), how, last]
