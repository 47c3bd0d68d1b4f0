"""Decoding with any-subset decoders: how a batch of texts begins, and what a run records."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from parity_decoders.noise import Noise
from parity_decoders.protocols.anysubset import AnySubsetModel, Infilling, make_infilling
from parity_decoders.steps import Fill
from torch import Tensor

from parity.decode.clock import Clock, Timed
from parity.decode.output_buffer import TimedCanvas
from parity.experiment.options import declaration


@dataclass
class Filled:
    """A batch of texts filled in and their cost."""

    tokens: Tensor  # [B, N] tokens of the whole text, prompt included
    step: Tensor  # [B, N] int16: the loop, from 1, in which a token became final; 0 for the prompt
    nfe: Tensor  # [B] evaluations of the model that a row needed
    aux: Tensor  # [B] passes of the auxiliary drafter
    loops: Tensor  # [B] loops the row took part in
    accepted_drafts: Tensor  # [B] drafts of a row that were accepted; -1 where the decoder does not draft
    passes: int  # evaluations of the model one after another: in each loop as many as the row that needs most
    seconds: float  # wall time of the batch


def record(model: AnySubsetModel, start: Infilling, steps: Iterator[Fill]) -> Filled:
    """Run a decoder to its end and record its tokens and their cost. Raises ParityError that names row and position if
    it stops early or draws what is not in the vocabulary."""
    B, N = start.tokens.shape
    device = start.tokens.device
    canvas = TimedCanvas(start.tokens)
    nfe, aux, loops = (torch.zeros(B, dtype=torch.int64, device=device) for _ in range(3))
    passes = torch.zeros((), dtype=torch.int64, device=device)
    accepted = torch.full((B,), -1, device=device)
    for positions, new, final, calls, drafts, n_kept in steps:
        canvas.write(torch.where(final, positions, N), new)
        nfe += calls
        passes += calls.max()
        aux += 0 if drafts is None else drafts
        loops += calls > 0
        accepted = accepted if n_kept is None else accepted.clamp(min=0) + n_kept
    ranks = torch.arange(N, device=device)
    is_missing = (ranks >= start.begin[:, None]) & (ranks < start.end[:, None])
    needed = torch.zeros_like(is_missing).scatter_(1, start.order, is_missing)
    seconds = canvas.finish(needed)
    wrong = (canvas.tokens < 0) | (canvas.tokens >= model.vocab) | (canvas.tokens == model.mask)
    allowed = f"0 to {model.vocab - 1} without the mask {model.mask}"
    canvas.refuse(needed & wrong, f"the decoder drew token {{token}}; allowed: {allowed}, of logits that are numbers")
    return Filled(canvas.tokens, canvas.step.to(torch.int16), nfe, aux, loops, accepted, int(passes), seconds)


def make_starter(loaded: Any, spec: dict[str, Any]) -> Callable[[dict[str, np.ndarray], Noise], tuple[Any, Infilling]]:
    """Make a function of (rows, noise) that gives the model, one for all of a job's batches, and the texts to fill in.
    Columns of rows: tokens [n, N], known [n, N] bool, which of them are the prompt, and end [n], words of each text."""
    judge = declaration("anysubset", spec["method"]).NETWORK == "judge"
    model = (loaded.causal if judge else loaded.subset)(spec["cache"])
    words = loaded.words

    def start(rows: dict[str, np.ndarray], noise: Noise) -> tuple[Any, Infilling]:
        tokens, known, end = (torch.from_numpy(rows[k]).to(noise.keys.device) for k in ("tokens", "known", "end"))
        return model, make_infilling(tokens.long(), known, words.mask, words.vocab, end.long())

    return start


def count_plain_passes(model: AnySubsetModel, start: Infilling, options: dict[str, Any]) -> int:
    """Count the missing words of the text that misses most."""
    return int((start.end - start.begin).max())


def time_networks(model: AnySubsetModel, clock: Clock) -> Timed:
    return Timed(model, "target", clock, ("probs",))


def parameters(loaded: Any) -> dict[str, int]:
    """Return {}: parameters are not counted, because no method has a second network."""
    return {}


def columns(rows: dict[str, np.ndarray], model: Any, start: Infilling, filled: Filled) -> dict[str, Any]:
    """Make the columns of a shard by name: the fields of `filled`, those that make its tokens an `Infilling` again, and
    `missing`, the number of words that were filled in."""
    layout = {"order": start.order, "begin": start.begin, "end": start.end}
    return vars(filled) | layout | {"missing": start.end - start.begin}
