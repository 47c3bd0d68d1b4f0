"""Models whose distribution is known, one module for each kind of decoder: what the exact layer draws from.

A module of this folder has, for its kind,

    targets(which="full")  its targets; `which` is "full" or "small" (the same where a kind has few)
    DRAWS                  default number of draws of the Monte-Carlo null
    FAMILY                 what Holm's correction runs over: "targets", each test over all targets, where one test
                           decides; "all", the deciding tests of all targets together

A target has its name, the length of its sequences and

    draw(decoder, n, seed, options, threads=1, strict=False)
                           n draws of a decoder, a function of the seed alone. Raises ParityError that names row and
                           position of what is no token; with `strict`, for decoders that claim to be lossless, also
                           of a token of probability zero
    make_rows(drawn, layer, seed, draws)
                           rows of the tests of what `draw` returned under a seed
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from parity_certify.joint_tests import digits, make_code_rows
from parity_certify.result_rows import Row
from parity_certify.seeding import derive_row_key
from parity_decoders.noise import Noise, counted_noise

from parity.base.errors import ParityError

Decoder = Callable[..., Iterator[Any]]
CHUNK = 8192  # number of rows decoded at once; the tensors of this many stay in the processor's cache


class Enumerated:
    """A target whose outcomes are all listed: draws are their numbers (codes), first token most significant."""

    name: str
    probs: Any  # [K] probabilities of the outcomes, by code

    @property
    def shape(self) -> tuple[int, int]:
        """Return the size of the vocabulary and the number of tokens of an outcome."""
        raise NotImplementedError

    def decode_codes(self, decoder: Decoder, noise: Noise, options: dict[str, Any]) -> np.ndarray:
        """Decode one sequence for each row of the noise. Returns their codes [n]."""
        raise NotImplementedError

    def draw(
        self,
        decoder: Decoder,
        n: int,
        seed: int,
        options: dict[str, Any],
        threads: int = 1,
        strict: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> np.ndarray:
        """Draw n sequences by a decoder, in chunks on `threads` threads, and return their codes [n]. Raises ParityError
        if the decoder stops early, draws what is no token or, if `strict`, a token of probability zero."""
        key = derive_row_key(seed, self.name)

        def draw_chunk(first: int) -> np.ndarray:
            with prefix_errors(self.name + (f", from {first} on:" if first else ",")):
                noise = counted_noise(key, range(first, min(first + CHUNK, n)), dtype)
                code = self.decode_codes(decoder, noise, options)
                if strict:
                    check_support(self.probs, *self.shape, code)
                return code

        torch.set_num_threads(1)  # torch gets one thread, as its tensors are small; chunks run side by side instead
        with ThreadPoolExecutor(threads) as pool:
            return np.concatenate(list(pool.map(draw_chunk, range(0, n, CHUNK))))

    def make_rows(self, drawn: np.ndarray, layer: str, seed: int, draws: int) -> list[Row]:
        return make_code_rows(layer, self.name, drawn, self.probs, *self.shape, seed=seed, draws=draws)


@contextmanager
def prefix_errors(model: str) -> Iterator[None]:
    """Context manager: prefix the message of a ParityError that is raised inside with "model" and the model's name."""
    try:
        yield
    except ParityError as error:
        raise ParityError(f"model {model} {error}") from error


def check_support(probs: np.ndarray, vocab: int, length: int, code: np.ndarray) -> None:
    """Raise ParityError, naming row and position, if a sequence of code [B] is impossible under probs
    [vocab^length]."""
    bad = np.flatnonzero(probs[code] == 0)
    if len(bad):
        tokens = digits(vocab, length)[code[bad[0]]]
        joint = probs.reshape([vocab] * length)
        position = next(i for i in range(length) if joint[tuple(tokens[: i + 1])].sum() == 0)
        problem = f"token {tokens[position]} of probability zero was sampled"
        raise ParityError(f"row {bad[0]}, position {position}: {problem}")


def make_generator(name: str, seed: int) -> torch.Generator:
    """Make the generator of a random model, a function of its name and a seed."""
    return torch.Generator().manual_seed(derive_row_key(seed, name) % 2**63)
