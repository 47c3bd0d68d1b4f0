"""Gaussian mixtures over three tokens of one and of two numbers, a draft beside each: every conditional is known."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from parity_certify.result_rows import Row

from parity.base.errors import ParityError
from parity.base.noise import counted_noise
from parity.decode.continuous import Drawn, record
from parity.equality.mixtures import continuous_rows
from parity.equality.targets import Decoder
from parity.models.continuous.protocol import Pair, Start
from parity.models.continuous.tabular import Mixture, TabularMixture, random_mixture

DRAWS = 4999
FAMILY = "all"


@dataclass(frozen=True)
class Target:
    """A mixture and the draft model's."""

    name: str
    law: Mixture
    draft: Mixture
    bins: int  # parts that each side of the unit cube is cut into
    steps: int = 1  # of the walks that draw it

    @property
    def length(self) -> int:
        return self.law.means.shape[1]

    @property
    def dim(self) -> int:
        return self.law.means.shape[2]

    def draw(
        self, decoder: Decoder, n: int, seed: int, options: dict[str, Any], threads: int = 1, strict: bool = False
    ) -> Drawn:
        """n decoded images; nothing has probability zero."""
        start = Start(torch.arange(self.law.means.shape[1]).expand(n, -1))
        pair = Pair(*(TabularMixture(law, n, steps=self.steps) for law in (self.law, self.draft)))
        try:
            return record(pair, start, decoder(pair, start, noise=counted_noise(seed, range(n)), **options))
        except ParityError as error:
            raise ParityError(f"model {self.name}, {error}") from error

    def rows_of(self, drawn: Drawn, layer: str, seed: int, draws: int) -> list[Row]:
        """The last row also says how often the residual sampler gave up."""
        settings: dict[str, Any] = {"layer": layer, "bins": self.bins, "draws": draws, "seed": seed}
        settings |= {"model_name": self.name, "rng": np.random.default_rng([seed, self.dim])}
        rows = continuous_rows(drawn.tokens.numpy(), self.law, **settings)
        rows[-1]["gave_up"] = int(drawn.gave_up.sum())
        return rows


def targets(which: str = "full") -> list[Target]:
    """Either "walks", whose tokens are drawn in four steps, or the same mixtures drawn in one."""
    result, steps = [], 4 if which == "walks" else 1
    for D, bins in ((1, 4), (2, 2)):
        target, draft = (random_mixture(np.random.default_rng(s), 3, 3, D) for s in (0, 1))
        name = f"mixture 3 x {D}-D" + (f", {steps} steps" if steps > 1 else "")
        result.append(Target(name, target, draft, bins, steps))
    return result
