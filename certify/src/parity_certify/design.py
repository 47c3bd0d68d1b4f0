"""Certify under the conditions that users set: one sampler, several distributions, one error rate.

    certify_design(sample, logits, vocab=4)      sample(prompts [n, P], seed, length=3, temperature=1.0, top_k=0, ...)
    certify_conditions(conditions)               conditions of your own

Most public faults show only under a temperature, a filter or a penalty, after a longer prompt, or in one size of draft.
`DESIGN` has a few conditions that have each of these at least once. A sampler is called with the options of a condition
that its signature has; the certificate names the others. Each of K conditions has alpha / K, so a correct sampler is
rejected in any with probability alpha at most. A pilot measures how fast each is, and the time is shared so that all
come as near to the margin as any. The first that is lossy ends the run. The bound of each condition holds with 95 %
confidence; the certificate has the larger one that holds for all of them at once, each with a K-th of the 5 %.
"""

import functools
import inspect
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from parity_certify import evidence
from parity_certify.calls import Sample, draw_batch
from parity_certify.certificate import Certificate
from parity_certify.diagnosis import Suspect, diagnose_counts
from parity_certify.distributions import Distribution, target_distribution
from parity_certify.errors import ParityError, describe_error
from parity_certify.import_by_name import get_function_name
from parity_certify.joint_tests import bound_tv
from parity_certify.processors import Engine, Logits, list_options, rename_options, shape_distribution, swap_filters
from parity_certify.result_rows import ALPHA, describe_confidence
from parity_certify.sampler import certify_sampler, check_settings

# names of options are those of transformers; besides, `drafts` of a round, `length` of the output, `end` token, and
# `rows`: the options of the rows after each prompt of one call, where seed None is a row without a seed. A sampler does
# not get `prompt`, the length of the prompts, and `prompts`, their number
DESIGN: tuple[dict[str, Any], ...] = (
    {"temperature": 0.7, "top_k": 2, "drafts": 2, "length": 4, "prompt": 1},
    {"repetition_penalty": 1.5, "top_p": 0.7, "drafts": 4, "length": 4, "prompt": 2},
    {"drafts": 3, "length": 3, "prompt": 8},
    {"min_p": 0.2, "end": 1, "drafts": 1, "length": 3, "prompt": 4},
    {"top_k": 3, "top_p": 0.8, "drafts": 2, "length": 4, "prompt": 2},  # engines apply them in one order or the other
    {"rows": ({"temperature": 0.5}, {"top_k": 2, "seed": None}), "drafts": 2, "length": 3, "prompt": 2},
)
OF_PROMPTS = ("prompt", "prompts")
OF_OUTPUT = ("drafts", "length", "end", "rows")  # options of the sampler that are none of the engine's distribution
PAIR = {"top_k", "top_p"}  # a condition with both says nothing new without one of them
BUDGET = 115.0  # seconds
LENGTH = 3  # tokens of the output where no filter leaves out tokens
PILOT = 2, 30  # sequences of a condition's pilot: of a first call, which may load or compile, and of one that is timed
POWER = 0.97  # with which a TV is found on the first seed, so that .95 remain where the second must find it too
WORST = ("certified", "consistent", "inconclusive", "lossy")  # the last that occurs is the verdict on all


@dataclass(frozen=True)
class Condition:
    """A sampler under fixed options, its distribution, further settings of `certify_sampler`, as `batch` or `vary`, and
    the distributions of samplers that misread the options, of which a lossy verdict names the one that fits."""

    name: str
    sample: Sample
    distribution: Distribution
    settings: Mapping[str, Any] = field(default_factory=dict)
    suspects: Sequence[Suspect] = ()

    @property
    def law(self) -> Distribution:  # deprecated
        """Old name of `distribution`."""
        warnings.warn("deprecated: use `distribution`", DeprecationWarning, stacklevel=2)
        return self.distribution

    @property
    def folder(self) -> str:
        """The name of the folder of its samples."""
        return "".join(c if c.isalnum() or c in ".-" else "-" for c in self.name)


def name_options(options: Mapping[str, Any]) -> str:
    """Name a condition by its options."""
    if "rows" in options:
        return f"rows of one call: {' / '.join(name_options(one) for one in options['rows'])}"
    return ", ".join(f"{name} {value}" for name, value in options.items() if name != "prompts")


def measure_rate(condition: Condition, seed: int) -> float:
    """Measure how many sequences a second a condition draws. Raises ParityError, with its name, if it fails."""
    try:
        for number, size in enumerate(PILOT):
            start = time.perf_counter()
            draw_batch(condition.sample, condition.distribution, seed, 10**6 + number, size)
        return PILOT[-1] / max(1e-9, time.perf_counter() - start)
    except ParityError as error:
        raise ParityError(f"{condition.name}: {error}") from None
    except (Exception, SystemExit) as error:  # a sampler may raise anything
        raise ParityError(f"{condition.name}: sampler: {describe_error(error)}") from error


def compute_size(condition: Condition, margin: float, alpha: float) -> int:
    """Compute how many sequences bring the bound below the margin, and find a TV of it."""
    n = evidence.needed(condition.distribution.cells, margin, miss=min(evidence.MISS, alpha))
    while evidence.find_detectable_tv(condition.distribution.cells, n, alpha, POWER) > margin:
        n = math.ceil(1.1 * n)
    return n


def certify_conditions(
    conditions: Sequence[Condition],
    *,
    missing: Mapping[str, str] | None = None,
    margin: float = 0.1,
    alpha: float = ALPHA,
    budget: float | None = BUDGET,
    n: int | None = None,
    seeds: Sequence[int] = (0, 1),
    folder: Path | None = None,
    name: str = "",
    tell: Callable[[str], None] = lambda text: None,
    **settings: Any,
) -> Certificate:
    """Certify each condition at alpha over their number; the first that is lossy ends the run.

    missing   what could not be tested, and why, for the certificate
    budget    seconds for everything but the repeat of a rejection
    n         sequences of each condition, in place of what margin and budget allow
    settings  of `certify_sampler`, for all conditions
    """
    check_settings(seeds, n=n, margin=margin, alpha=alpha, budget=budget)
    if not conditions or len({one.name for one in conditions}) < len(conditions):
        raise ParityError("conditions: allowed: at least one, each of another name")
    start = time.monotonic()
    share = alpha / len(conditions)
    sizes = [n or compute_size(one, margin, share) for one in conditions]
    seconds = [size / measure_rate(one, seeds[0]) for one, size in zip(conditions, sizes, strict=True)]  # predicted
    found: list[Certificate] = []
    for k, (one, size) in enumerate(zip(conditions, sizes, strict=True)):
        left = (budget or math.inf) - (time.monotonic() - start)
        if not n:
            size = max(100, int(size * min(1.0, 0.97 * left / sum(seconds[k:]))))
        # a rejection's repeat takes the time of the conditions after it; in the last, up to four times that of this
        limit = None if budget is None else max(left, 4 * seconds[k])
        own: dict[str, Any] = {"n": size, "budget": limit, "margin": margin, "alpha": share}
        own |= {"seeds": seeds, "name": name or get_function_name(one.sample), "tell": tell}
        own |= {"folder": folder and folder / one.folder}
        tell(f"{one.name}: {size} sequences")
        found.append(
            certify_sampler(one.sample, replace(one.distribution, name=one.name), **settings | own | dict(one.settings))
        )
        if found[-1].verdict.kind == "lossy":
            break
    return report_conditions(found, conditions, missing or {}, margin, alpha)


def report_conditions(
    found: Sequence[Certificate],
    conditions: Sequence[Condition],
    missing: Mapping[str, str],
    margin: float,
    alpha: float,
) -> Certificate:
    """Combine the certificates of the first conditions to one that says which were covered: those in which a TV of
    `margin` would have been found. A condition without a draft, as look-up has under a repetition penalty, is not
    covered, if drafts were accepted in others."""
    judged = [c for c in found if not lacks_drafts(c)] or list(found)
    result = combine_certificates(judged, [c.rows[0]["model"] for c in judged], alpha)
    result = replace(result, rows=[row for c in found for row in c.rows], parts=tuple(found))
    covered, untested = [], []
    for one, c in zip(conditions, found, strict=False):
        if c not in judged:
            untested.append(f"{one.name}: {c.verdict.reason.partition(';')[0]}")
            continue
        tv = evidence.find_detectable_tv(one.distribution.cells, min(c.details["n"]), alpha / len(conditions), POWER)
        if c.verdict.kind == "lossy" or tv <= margin:
            covered.append(f"{one.name}" if c.verdict.kind == "lossy" else f"{one.name} (finds a TV of {tv:.3f})")
        else:
            untested.append(f"{one.name}: TVs below {tv:.3f}")
    untested += [f"{one.name}: not run" for one in conditions[len(found) :]]
    untested += [f"{name}: {why}" for name, why in missing.items()]
    v = replace(result.verdict, tested=tuple(covered), untested=(*untested, *found[0].verdict.untested))
    if v.kind == "certified":
        together = describe_joint_bound(judged)
        words = f"TV <= {v.bound:.4f} ({describe_confidence(ALPHA)}) in each of {len(judged)} conditions{together}"
        v = replace(v, reason=words)
    details = result.details | {"conditions": {c.rows[0]["model"]: asdict(c.verdict) for c in found}}
    suspects = conditions[len(found) - 1].suspects
    if v.kind == "lossy" and not v.dependent and suspects and result.counts is not None:
        diagnosis = diagnose_counts(result.counts, conditions[len(found) - 1].distribution, suspects)
        if diagnosis["name"] is not None:
            details["diagnosis"] = diagnosis
    return replace(result, verdict=v, details=details)


def lacks_drafts(c: Certificate) -> bool:
    """Return whether a certificate is inconclusive for no other reason than that no draft was offered or accepted."""
    return (
        c.verdict.kind == "inconclusive"
        and len(c.details["n"]) == 1
        and 0 in (c.details["drafted"], c.details["accepted"])
    )


def compute_joint_bound(certificates: Sequence[Certificate]) -> float:
    """Compute the bound on the TV that holds for all of K certificates at once with 95 % confidence: the largest of
    theirs at a K-th of each one's error. 1 if a sample was stopped, which has no bound."""
    bounds = []
    for c in certificates:
        row = [row for row in c.rows if row["test"] == "TV certificate"][-1]
        if c.counts is None or c.distribution is None or row["effect"] >= 1:
            return 1.0
        bounds.append(bound_tv(c.counts, c.distribution.cells, row["alpha"] / len(certificates)))
    return min(1.0, max(bounds))


def describe_joint_bound(certificates: Sequence[Certificate]) -> str:
    """Say what holds for all certificates at once, to go after what holds for each; "" for one."""
    return f", <= {compute_joint_bound(certificates):.4f} in all at once" if len(certificates) > 1 else ""


def combine_certificates(certificates: Sequence[Certificate], names: Sequence[str], alpha: float) -> Certificate:
    """Combine the certificates of the distributions `names` to one: the worst verdict, the largest bound."""
    worst = max(certificates, key=lambda c: (WORST.index(c.verdict.kind), c.verdict.bound or 0.0))
    v = worst.verdict
    tested = tuple(names[: len(certificates)])
    bound = max((c.verdict.bound for c in certificates if c.verdict.bound is not None), default=None)
    v = replace(v, alpha=alpha, bound=bound, tested=tested, untested=tuple(names[len(certificates) :]))
    v = replace(v, n=min(min(c.details["n"]) for c in certificates))
    if v.kind == "certified":
        words = f"TV <= {bound:.4f} ({describe_confidence(ALPHA)}) on each of: {', '.join(tested)}"
        v = replace(v, reason=words + describe_joint_bound(certificates))
    elif v.kind != "lossy":
        v = replace(v, reason=f"on {worst.rows[0]['model']}: {v.reason}")
    else:
        v = replace(v, where=f"{worst.rows[0]['model']}, {v.where}")
    counts = {key: [c.details[key] for c in certificates] for key in ("drafted", "accepted")}
    drafts: dict[str, Any] = {key: None if None in values else sum(values) for key, values in counts.items()}
    warnings = {text: None for c in certificates for text in c.warnings}
    drafts |= {"warnings": list(warnings), "joint_bound": compute_joint_bound(certificates)}
    rows = [row for c in certificates for row in c.rows]
    return replace(worst, verdict=v, rows=rows, details=worst.details | drafts, parts=tuple(certificates))


def list_names(design: Sequence[Mapping[str, Any]] = DESIGN) -> set[str]:
    """List the names of all options of the conditions."""
    return {name for options in design for name in options}


def list_keywords(sample: Callable) -> set[str] | None:
    """List the keywords of a sampler after prompts and seed; None if it takes any."""
    parameters = inspect.signature(sample).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def choose_options(keywords: set[str] | None, design: Sequence[Mapping[str, Any]] = DESIGN) -> tuple[list[dict], dict]:
    """Choose the options of each condition that a sampler with these keywords takes, each combination once. Returns
    them, and why others are missing."""
    missing: dict[str, str] = {}
    chosen: list[dict[str, Any]] = []
    for options in design:
        lacking = [name for name in options if keywords is not None and name not in {*keywords, *OF_PROMPTS}]
        missing |= dict.fromkeys(lacking, "the sampler has no such option")
        if set(options) >= PAIR and PAIR & set(lacking):
            continue
        kept = {name: value for name, value in options.items() if name not in lacking}
        if "length" in kept and not {"top_k", "top_p"} & set(kept):  # more tokens of all kinds are too many sequences
            kept["length"] = min(LENGTH, kept["length"])
        if "rows" not in lacking and kept not in chosen:
            chosen.append(kept)
    return chosen, missing


def make_prompts(options: Mapping[str, Any], vocab: int) -> np.ndarray:
    """Make the prompts [K, P] of a condition, always the same."""
    K = len(options.get("rows", ())) or options.get("prompts", 1)
    rng = np.random.default_rng(options["prompt"])
    rows: dict[tuple[int, ...], None] = {}  # a dict serves as a set that keeps its order
    while len(rows) < K:
        rows[tuple(rng.integers(vocab, size=options["prompt"]).tolist())] = None
    return np.array(list(rows))


@dataclass(frozen=True)
class Bound:
    """A sampler with fixed options, or with options by prompt: `rows`, one of each of prompts [K, P]."""

    sample: Callable
    options: Mapping[str, Any]
    prompts: np.ndarray

    def __call__(self, prompts: np.ndarray, seed: int) -> Any:
        """Call the sampler; with `rows` as a list of the options of each row."""
        options = dict(self.options)
        if "rows" in options:
            numbers = (prompts[:, None] == self.prompts).all(-1).argmax(1)
            options["rows"] = [dict(options["rows"][number]) for number in numbers]
        return self.sample(prompts, seed, **options)


def make_distribution(
    compute: Callable[..., Distribution], options: Mapping[str, Any], vocab: int, without: str = ""
) -> Distribution:
    """Enumerate the distribution of a condition, of each prompt under its own options if there are `rows`.
    compute(options, vocab=..., length=..., prompts=..., end=...) gives a distribution; `without`: an option that is
    left out."""
    prompts = make_prompts(options, vocab)
    shared = {k: v for k, v in options.items() if k not in (*OF_PROMPTS, *OF_OUTPUT)}
    settings = {"vocab": vocab, "length": options["length"], "end": options.get("end")}
    tables = []
    for prompt, own in zip(prompts, options.get("rows") or ({},) * len(prompts), strict=True):
        of_distribution = {k: v for k, v in {**shared, **own}.items() if k not in ("seed", without)}
        tables.append(compute(of_distribution, prompts=prompt[None], **settings).tables)
    return Distribution("", prompts, np.concatenate(tables), settings["length"], settings["end"])


def list_lacking(engine: Engine, design: Sequence[Mapping[str, Any]] = DESIGN) -> set[str]:
    """List the options of the conditions that an engine's distribution does not have; `rows` where it lacks one of a
    row's."""
    known = set(list_options(engine))

    def find(options: Mapping[str, Any]) -> set[str]:
        """Find those of one condition, or of a row."""
        of_distribution = [name for name in options if name not in (*OF_PROMPTS, *OF_OUTPUT, "seed")]
        return {name for name in of_distribution if not set(rename_options({name: 0}, engine)) <= known}

    rows = [row for options in design for row in options.get("rows", ())]
    return set().union(*map(find, design)) | ({"rows"} if any(map(find, rows)) else set())


def list_suspects(
    compute: Callable[..., Distribution], options: Mapping[str, Any], vocab: int, engine: Engine
) -> list[Suspect]:
    """List the distributions of samplers that misread a condition: each of its options is not applied, or top-k and
    top-p are in the other order. compute(..., engine=...): as for `make_distribution`."""

    def suspect(name: str, compute: Callable[..., Distribution], without: str = "") -> Suspect:
        """Make the suspect of one misreading."""
        return Suspect(name, lambda: make_distribution(compute, options, vocab, without).joint)

    given = {name for one in (options, *options.get("rows", ())) for name in one}
    of_distribution = sorted(given - {*OF_PROMPTS, *OF_OUTPUT, "seed"})
    found = []
    if engine and given >= PAIR:  # in front: of distributions that are equal here the first is named
        first, second = (name for name in list_options(engine) if name in PAIR)
        words = f"{second} before {first}; if the engine defines them so, name it: engine=, --engine"
        found.append(suspect(words, functools.partial(compute, engine=swap_filters(engine))))
    return found + [suspect(f"{name} is not applied", compute, name) for name in of_distribution]


def make_conditions(
    sample: Callable,
    logits: Logits,
    *,
    vocab: int,
    length: int = 3,
    engine: Engine = "transformers",
    design: Sequence[Mapping[str, Any]] = DESIGN,
) -> tuple[list[Condition], dict[str, str]]:
    """Make the conditions of `design` whose options a sampler and its engine take, and tell why others are missing.
    Arguments: see `certify_design`."""

    def compute(
        options: Mapping[str, Any], *, prompts: np.ndarray, end: int | None, engine: Engine = engine, **settings: Any
    ) -> Distribution:
        """Enumerate the engine's distribution with these options."""
        source = shape_distribution(logits, rename_options(options, engine), engine, prompts.shape[1], end)
        return target_distribution(source, prompts=prompts, end=end, **settings)

    keywords, lacking = list_keywords(sample), list_lacking(engine, design)
    keywords = (list_names(design) if keywords is None else keywords) - lacking
    chosen, missing = choose_options(keywords, design)
    missing |= dict.fromkeys(sorted(lacking), "the engine has no such option")
    conditions = []
    for options in chosen:
        given = {name: value for name, value in options.items() if name not in OF_PROMPTS}
        full = {"length": length} | options
        known = make_distribution(compute, full, vocab)
        suspects = list_suspects(compute, full, vocab, engine)
        name = name_options(options)
        conditions.append(Condition(name, Bound(sample, given, known.prompts), known, suspects=suspects))
    return conditions, missing


def certify_design(
    sample: Callable,
    logits: Logits,
    *,
    vocab: int,
    length: int = 3,
    engine: Engine = "transformers",
    design: Sequence[Mapping[str, Any]] = DESIGN,
    **settings: Any,
) -> Certificate:
    """Certify a sampler under the conditions of `DESIGN` whose options it takes.

    sample    sample(prompts [n, P], seed, **options) -> tokens, as for `certify_sampler`; options: see `DESIGN`
    logits    the target's, as for `shape_distribution`
    engine    whose distribution it is: a name of `processors.ENGINES`, or the options in the order in which they are
              applied, ["temperature", "top_p", "top_k"]. A sampler is called by transformers' names, whatever its
              engine
    length    of the output, if the sampler has no such option
    settings  of `certify_conditions`
    """
    conditions, missing = make_conditions(sample, logits, vocab=vocab, length=length, engine=engine, design=design)
    return certify_conditions(conditions, missing=missing, name=get_function_name(sample), **settings)
