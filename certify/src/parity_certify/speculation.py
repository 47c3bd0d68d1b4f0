"""Certify a round of speculation: the drafter and the verifier together, as the engine calls them.

    certify_speculation(speculate)       speculate(draft_model, target_model, prefix, drafts) -> tokens, or `Speculated`

`certify_verifier` draws the drafts itself. Here the function under test does: it calls draft_model on its own prefixes,
draws, records q, calls target_model, accepts or resamples. So what q is recorded, when it is overwritten, and which
noise drafts and residual share are inside. The models are tables of the same problems, and give logits after prefixes
[n, t] (t from 0): [n, V].

Where the probabilities that drafts were drawn from can be had, they are compared with the recorded q exactly. Every
difference moves the distribution of the output, also one that no sample would show.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from parity_certify import evidence
from parity_certify.certificate import Certificate
from parity_certify.distributions import convert_to_array
from parity_certify.errors import ParityError
from parity_certify.import_by_name import get_function_name
from parity_certify.result_rows import ALPHA
from parity_certify.verifier import KINDS, Drafted, Problem, certify_problems

TOLERANCE = 1e-5  # TV of the recorded q from the distribution drawn from: what float32 may round


class Speculated(NamedTuple):
    """A round of speculation: its tokens as a verifier returns them, the draft distributions q that were recorded [..,
    K, V], and the probabilities that the drafts were drawn from [.., K, V], in the type that the draw saw."""

    tokens: Any
    recorded: Any
    drawn_from: Any


@dataclass
class Round(Drafted):
    """A sampler made of a function that speculates and a problem; `furthest` is the largest TV of a recorded q."""

    furthest: float = field(default=0.0, init=False)

    def run(self, n: int, rng: np.random.Generator, seed: int) -> tuple[np.ndarray, int, int]:
        """Run rounds for n rows, after seeding all generators. Returns tokens [n, K + 1], -1 after the last, and the
        drafts accepted and offered."""
        keywords = self.seed_generators(seed)
        models = [self.make_model(table) for table in (self.problem.draft, self.problem.target)]
        if self.shape == "batch":
            answer = self.verify(*models, np.zeros((n, 0), dtype=np.int64), self.drafts, **keywords)
            out = self.check_batch(self.compare_distributions(answer), n)
        else:
            prefix = np.zeros(0, dtype=np.int64)
            answers = [self.verify(*models, prefix, self.drafts, **keywords) for _ in range(n)]
            out = self.pad([self.compare_distributions(answer) for answer in answers])
        return out, int(((out >= 0).sum(1) - 1).sum()), n * self.drafts

    def make_model(self, table: np.ndarray) -> Callable[[Any], np.ndarray]:
        """Make the model of a table: logits [n, V] after prefixes [n, t], or [V] after one [t]."""
        with np.errstate(divide="ignore"):
            logits = np.log(table)

        def model(prefixes: Any) -> np.ndarray:
            """Return the logits after prefixes. Raises ParityError for a prefix longer than a round."""
            tokens = convert_to_array(prefixes).astype(np.int64)
            t = tokens.shape[-1]
            if t > self.drafts or self.first[t + 1] > len(logits):
                raise ParityError(
                    f"speculate: a prefix of {t} tokens; allowed: up to {self.drafts}, of drafts one less"
                )
            return logits[self.first[t] + tokens @ self.vocab ** np.arange(t - 1, -1, -1)]

        return model

    def compare_distributions(self, answer: Any) -> Any:
        """Return the tokens of an answer, after comparing its recorded distributions with those drawn from."""
        if not isinstance(answer, Speculated):
            return answer
        recorded, drawn = (convert_to_array(x).astype(float) for x in (answer.recorded, answer.drawn_from))
        if recorded.shape != drawn.shape:
            raise ParityError(f"speculate: recorded {recorded.shape}, drawn from {drawn.shape}; allowed: one shape")
        drawn = drawn / drawn.sum(-1, keepdims=True)
        self.furthest = max(self.furthest, float(0.5 * np.abs(recorded - drawn).sum(-1).max(initial=0)))
        return convert_to_array(answer.tokens)


def certify_speculation(
    speculate: Callable,
    *,
    vocab: int = 4,
    drafts: int = 3,
    shape: Literal["row", "batch"] = "row",
    problems: Sequence[str | Problem] = KINDS,
    margin: float = 0.05,
    alpha: float = ALPHA,
    n: int | None = None,
    repeat: int | None = None,
    seeds: Sequence[int] = (0, 1),
    batch: int | None = None,
    claim: str = "lossless",
    draws: int = evidence.DRAWS,
    name: str = "",
    tell: Callable[[str], None] = lambda text: None,
) -> Certificate:
    """Certify a round of speculation on each problem; arguments as in `certify_verifier`.

    speculate  (draft_model, target_model, prefix [t], drafts) -> 1 to K + 1 tokens; of shape "batch" prefixes [n, t] ->
               tokens [n, K + 1], -1 after a row's last; or `Speculated`, whose distributions are compared as well
    """
    if shape not in ("row", "batch"):
        raise ParityError(f"shape {shape!r}: allowed: row, batch")
    rounds: list[Round] = []

    def make_sampler(case: Problem) -> Round:
        """Make the sampler of a problem."""
        rounds.append(Round(speculate, case, shape, 1, drafts))
        return rounds[-1]

    settings: dict[str, Any] = {
        "vocab": vocab,
        "drafts": drafts,
        "problems": problems,
        "margin": margin,
        "alpha": alpha,
    }
    settings |= {"n": n, "repeat": repeat, "seeds": seeds, "batch": batch, "claim": claim, "draws": draws, "tell": tell}
    result = certify_problems(make_sampler, name=name or get_function_name(speculate), **settings)
    worst = max(rounds, key=lambda one: one.furthest)
    v = replace(result.verdict, untested=(*result.verdict.untested, "options of sampling, and later rounds"))
    if worst.furthest > TOLERANCE and v.kind != "lossy":
        problem = f"the recorded q is up to {worst.furthest:.2g} (TV) from the distribution that drafts were drawn from"
        v = replace(v, kind="lossy", where=worst.problem.name, reason=problem, estimate=None, interval=None, bound=None)
    return replace(result, verdict=v, details=result.details | {"furthest": worst.furthest})
