"""Sampling options as functions of the prefix: from a model's logits to the distribution that an engine draws from.

    source = shape_distribution(logits, {"temperature": 0.7, "repetition_penalty": 1.3}, "transformers",
    prompt_length=3) distribution(source, vocab=4, length=3, prompts=...)

`ENGINES` has each engine's options, by its own names, in the order in which it applies them. What differs:

    repetition     transformers, vLLM: of prompt and output; SGLang: of the output; llama.cpp, mlx-lm: of the last
                   `repeat_last_n` (64), or 20, of prompt and output
    presence, frequency     vLLM, SGLang: of the output alone; llama.cpp, mlx-lm: of the same window as repetition
    temperature    llama.cpp and mlx-lm filter before they apply it, the others afterwards
    top-k, top-p   transformers, vLLM, llama.cpp: top-p of what top-k left, scaled to a sum of one; SGLang, mlx-lm:
                   top-p of all tokens, then top-k

Another engine is given as the list of its options, by transformers' names, in the order in which it applies them.
"""

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parity_certify.distributions import convert_to_array
from parity_certify.errors import ParityError

Logits = Callable[[np.ndarray], Any]  # prefixes [n, P + t], the prompt first -> logits [n, V], before any option


def count_tokens(tokens: np.ndarray, vocab: int) -> np.ndarray:
    """Count how often each token of the vocabulary is in each row of tokens [n, m]; returns [n, V]."""
    return (tokens[:, :, None] == np.arange(vocab)).sum(1)


class Prefixes(NamedTuple):
    """What a processor reads: tokens [n, P + t], where the output starts (P), the end token, and how many of the last
    tokens the penalties of llama.cpp and mlx-lm read (-1: all)."""

    tokens: np.ndarray
    start: int
    end: int | None
    window: int

    def count_all(self, vocab: int) -> np.ndarray:
        """Count prompt and output."""
        return count_tokens(self.tokens, vocab)

    def count_output(self, vocab: int) -> np.ndarray:
        """Count the output alone."""
        return count_tokens(self.tokens[:, self.start :], vocab)

    def count_window(self, vocab: int) -> np.ndarray:
        """Count the last `window` tokens of prompt and output."""
        first = 0 if self.window < 0 else max(0, self.tokens.shape[1] - self.window)
        return count_tokens(self.tokens[:, first:], vocab)


Processor = Callable[[np.ndarray, Prefixes, Any], np.ndarray]  # logits [n, V], prefixes, value -> logits [n, V]
Count = Callable[[Prefixes, int], np.ndarray]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Convert logits [n, V] to probabilities; -inf is a probability of 0. A row of -inf alone is no distribution:
    nan."""
    with np.errstate(invalid="ignore"):
        p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def forbid(logits: np.ndarray, forbidden: np.ndarray) -> np.ndarray:
    """Set the logits of forbidden tokens [n, V] to -inf."""
    return np.where(forbidden, -np.inf, logits)


def apply_temperature(logits: np.ndarray, prefixes: Prefixes, value: float) -> np.ndarray:
    """Divide by the temperature; at 0 the likeliest token is certain."""
    if value == 0:
        return forbid(logits, np.arange(logits.shape[1]) != logits.argmax(-1)[:, None])
    return logits / value


def apply_top_k(logits: np.ndarray, prefixes: Prefixes, value: int) -> np.ndarray:
    """Keep the k likeliest tokens; 0 or less keeps all."""
    if not 0 < value < logits.shape[1]:
        return logits
    return forbid(logits, logits < np.sort(logits)[:, [-int(value)]])


def apply_top_p(logits: np.ndarray, prefixes: Prefixes, value: float) -> np.ndarray:
    """Keep the likeliest tokens up to and with the one at which their sum reaches p."""
    order = np.argsort(-logits, kind="stable")
    p = np.take_along_axis(softmax(logits), order, -1)
    sorted_out = p.cumsum(-1) - p >= value
    forbidden = np.zeros(logits.shape, dtype=bool)
    np.put_along_axis(forbidden, order, sorted_out, -1)
    return logits if value >= 1 else forbid(logits, forbidden)


def apply_min_p(logits: np.ndarray, prefixes: Prefixes, value: float) -> np.ndarray:
    """Keep the tokens with at least this share of the likeliest one's probability."""
    p = softmax(logits)
    return forbid(logits, p < value * p.max(-1, keepdims=True))


def add_bias(logits: np.ndarray, prefixes: Prefixes, value: Any) -> np.ndarray:
    """Add to the logits of single tokens: {token: bias}, or pairs of both. Raises ParityError for anything else."""
    logits = logits.copy()
    try:
        for token, bias in value.items() if isinstance(value, Mapping) else value:
            (single,) = token if isinstance(token, list | tuple) else (token,)
            logits[:, int(single)] += float(bias)
    except (TypeError, ValueError, IndexError):
        raise ParityError(f"bias {value!r}: allowed: pairs of one token and a number") from None
    return logits


def make_repetition_penalty(count: Count) -> Processor:
    """Make the processor that divides positive logits of tokens that occurred, and multiplies negative ones."""

    def apply(logits: np.ndarray, prefixes: Prefixes, value: float) -> np.ndarray:
        """Penalise tokens with a count."""
        scaled = np.where(logits > 0, logits / value, logits * value)
        return np.where(count(prefixes, logits.shape[1]) > 0, scaled, logits)

    return apply


def make_frequency_penalty(count: Count) -> Processor:
    """Make the processor that subtracts the penalty for each time that a token occurred."""
    return lambda logits, prefixes, value: logits - value * count(prefixes, logits.shape[1])


def make_presence_penalty(count: Count) -> Processor:
    """Make the processor that subtracts the penalty from each token that occurred."""
    return lambda logits, prefixes, value: logits - value * (count(prefixes, logits.shape[1]) > 0)


def forbid_ngrams(logits: np.ndarray, prefixes: Prefixes, value: int) -> np.ndarray:
    """Forbid tokens that would end an n-gram of prompt and output a second time; 0 forbids none."""
    tokens, n = prefixes.tokens, int(value)
    forbidden = np.zeros(logits.shape, dtype=bool)
    if n > 0:
        last = tokens[:, tokens.shape[1] - n + 1 :]
        for i in range(tokens.shape[1] - n + 1):
            rows = np.flatnonzero((tokens[:, i : i + n - 1] == last).all(1))
            forbidden[rows, tokens[rows, i + n - 1]] = True
    return forbid(logits, forbidden)


def forbid_end(logits: np.ndarray, prefixes: Prefixes, value: int) -> np.ndarray:
    """Forbid the end token until the output has this many tokens."""
    if prefixes.end is None or prefixes.tokens.shape[1] - prefixes.start >= value:
        return logits
    return forbid(logits, np.arange(logits.shape[1]) == prefixes.end)


REPETITION = make_repetition_penalty(Prefixes.count_all)
ENGINES: dict[str, dict[str, Processor]] = {
    "transformers": {
        "sequence_bias": add_bias, "repetition_penalty": REPETITION, "no_repeat_ngram_size": forbid_ngrams,
        "min_new_tokens": forbid_end, "temperature": apply_temperature, "top_k": apply_top_k, "top_p": apply_top_p,
        "min_p": apply_min_p,
    },
    "vllm": {
        "min_tokens": forbid_end, "logit_bias": add_bias, "repetition_penalty": REPETITION,
        "frequency_penalty": make_frequency_penalty(Prefixes.count_output),
        "presence_penalty": make_presence_penalty(Prefixes.count_output), "temperature": apply_temperature,
        "min_p": apply_min_p, "top_k": apply_top_k, "top_p": apply_top_p,
    },
    "llama.cpp": {
        "logit_bias": add_bias, "repeat_penalty": make_repetition_penalty(Prefixes.count_window),
        "frequency_penalty": make_frequency_penalty(Prefixes.count_window),
        "presence_penalty": make_presence_penalty(Prefixes.count_window), "top_k": apply_top_k, "top_p": apply_top_p,
        "min_p": apply_min_p, "temperature": apply_temperature,
    },
    "sglang": {
        "frequency_penalty": make_frequency_penalty(Prefixes.count_output),
        "presence_penalty": make_presence_penalty(Prefixes.count_output),
        "repetition_penalty": make_repetition_penalty(Prefixes.count_output), "logit_bias": add_bias,
        "temperature": apply_temperature, "top_p": apply_top_p, "top_k": apply_top_k, "min_p": apply_min_p,
    },
    "mlx-lm": {
        "logit_bias": add_bias, "repetition_penalty": make_repetition_penalty(Prefixes.count_window),
        "presence_penalty": make_presence_penalty(Prefixes.count_window),
        "frequency_penalty": make_frequency_penalty(Prefixes.count_window), "top_p": apply_top_p,
        "min_p": apply_min_p, "top_k": apply_top_k, "temperature": apply_temperature,
    },
}  # fmt: skip
WINDOW = "repeat_last_n"  # llama.cpp's option for all its penalties
WINDOWS = {"llama.cpp": 64, "mlx-lm": 20}  # tokens that the penalties read unless given
NAMES = {"llama.cpp": {"repetition_penalty": "repeat_penalty"}}  # an engine's names that are not transformers'
Engine = str | Sequence[str] | Mapping[str, Processor]  # of `ENGINES`, a list of options in order, or these processors
LIMITS: dict[str, tuple[float, float]] = {
    "temperature": (0, math.inf), "top_k": (-1, math.inf), "top_p": (1e-9, 1), "min_p": (0, 1),
    "repetition_penalty": (1e-9, math.inf), "repeat_penalty": (1e-9, math.inf), "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2), "no_repeat_ngram_size": (0, math.inf), "min_new_tokens": (0, math.inf),
    "min_tokens": (0, math.inf), WINDOW: (-1, math.inf),
}  # fmt: skip


def get_processors(engine: Engine) -> Mapping[str, Processor]:
    """Return the processors of an engine by its options, in its order. Raises ParityError for an engine that is not in
    `ENGINES`, and for a list with an option that transformers does not have."""
    if isinstance(engine, Mapping):
        return engine
    known = ENGINES if isinstance(engine, str) else ENGINES["transformers"]
    unknown = [engine] if isinstance(engine, str) else list(engine)
    if unknown := [name for name in unknown if name not in known]:
        allowed = f"{', '.join(ENGINES)}, or its options in order, of {', '.join(ENGINES['transformers'])}"
        raise ParityError(f"engine {', '.join(map(repr, unknown))}: allowed: {allowed}")
    return ENGINES[engine] if isinstance(engine, str) else {name: ENGINES["transformers"][name] for name in engine}


def parse_engine(text: str) -> Engine:
    """Parse an engine's name, or its options in order, "temperature,top_p,top_k". Raises ParityError: see
    `get_processors`."""
    engine: Engine = text if text in ENGINES else text.split(",")
    get_processors(engine)
    return engine


def swap_filters(engine: Engine) -> Mapping[str, Processor]:
    """Return the processors of an engine with top-k and top-p in the other order."""
    swapped = {"top_k": "top_p", "top_p": "top_k"}
    processors = get_processors(engine)
    return {swapped.get(name, name): processors[swapped.get(name, name)] for name in processors}


def rename_options(options: Mapping[str, Any], engine: Engine) -> dict[str, Any]:
    """Rename options, named as in transformers, to those of an engine."""
    names = NAMES.get(engine, {}) if isinstance(engine, str) else {}
    return {names.get(name, name): value for name, value in options.items()}


def list_options(engine: Engine) -> list[str]:
    """List the options of an engine that change its distribution. Raises ParityError: see `get_processors`."""
    return [*get_processors(engine), *([WINDOW] if engine == "llama.cpp" else [])]


def check_options(options: Mapping[str, Any], engine: Engine) -> None:
    """Raise ParityError for an option that the engine does not have, or a value outside its limits."""
    known = list_options(engine)
    for name, value in options.items():
        if name not in known:
            what = engine if isinstance(engine, str) else "this engine"
            raise ParityError(f"{name}: {what} has no such option of sampling; allowed: {', '.join(known)}")
        if name not in LIMITS:  # a bias is read where it is applied
            continue
        low, high = LIMITS[name]
        if not isinstance(value, numbers.Real) or not low <= float(value) <= high:
            above = "above 0" if 0 < low < 1e-6 else f"{low:g} or more"
            raise ParityError(f"{name} {value!r}: allowed: {above}{f', up to {high:g}' if high < math.inf else ''}")


def shape_distribution(
    logits: Logits, options: Mapping[str, Any], engine: Engine, prompt_length: int, end: int | None = None
) -> Callable[[np.ndarray], np.ndarray]:
    """Make the function from prefixes [n, P + t] to probabilities [n, V] of an engine with these options, for
    `distribution`. prompt_length: P. Raises ParityError for an option that the engine does not have."""
    check_options(options, engine)
    processors = get_processors(engine)
    window = int(options.get(WINDOW, WINDOWS.get(engine, -1) if isinstance(engine, str) else -1))

    def compute_probabilities(tokens: np.ndarray) -> np.ndarray:
        """Apply the engine's processors to the logits, in its order."""
        prefixes = Prefixes(tokens, prompt_length, end, window)
        x = convert_to_array(logits(tokens)).astype(float)
        for name, process in processors.items():
            if name in options:
                x = process(x, prefixes, options[name])
        return softmax(x)

    return compute_probabilities
