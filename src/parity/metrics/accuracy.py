"""How often a text model's likeliest answer is right: the last word of a passage, or the end of a story among four
(Guo & Ermon 2025, Table 10). Nothing is decoded."""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from parity_decoders.protocols.anysubset import make_infilling
from torch import Tensor

from parity.base.digests import read_manifest
from parity.base.files import write_json
from parity.inputs import tasks
from parity.metrics.estimates import flat, mean_error
from parity.metrics.text_likelihood import joint_probs, log_probability
from parity.models.anysubset import load

BATCH = 64  # this many rows are evaluated in a forward of the network
Answers = list[tuple[bool, bool | None]]  # by question: is it answered correctly, and was its pair of words held out?
Probs = Iterator[tuple[Tensor, Tensor, Tensor]]


def compute_probs(task: tasks.Task, loaded: load.Loaded) -> Probs:
    """Yield by batches the distributions [B, S, V] of the hidden tokens, the tokens, and a mask of where there is one
    [B, S]."""
    model, words = loaded.subset(True), loaded.words
    columns = [torch.from_numpy(x).to(loaded.device) for x in (task.tokens, task.known, task.end)]
    for tokens, known, end in zip(*(column.split(BATCH) for column in columns), strict=True):
        start = make_infilling(tokens.long(), known, words.mask, words.vocab, end.long())
        yield joint_probs(model, start._replace(tokens=tokens.long()))


def score_last_words(probs: Probs, extra: list[bool | None]) -> Answers:
    """List for every passage whether each token of its last word is the likeliest, and its `extra`: whether its pair of
    words was held out of training."""
    right = [r for p, hidden, valid in probs for r in ((p.argmax(-1) == hidden) | ~valid).all(1).tolist()]
    return list(zip(right, extra, strict=True))


def score_choices(probs: Probs, extra: list[tuple[int, bool, bool | None]]) -> Answers:
    """List for every question whether its right end has the largest log-probability per token, and whether its pair was
    held out. extra, of each row: number of its question, whether it is the right end, whether held out."""
    values = [v for batch in probs for v in (log_probability(*batch) / batch[-1].sum(1)).tolist()]
    questions: dict[int, list[tuple[float, bool, bool | None]]] = {}
    for value, (question, correct, held) in zip(values, extra, strict=True):
        questions.setdefault(question, []).append((value, correct, held))
    return [(max(ends)[1], ends[0][2]) for ends in questions.values()]


def run(a: argparse.Namespace) -> None:
    """Answer a task's questions; write the accuracy, its error, and that of known and of held-out pairs apart."""
    started = time.perf_counter()
    loaded = load.load(read_manifest(a.checkpoint), a.device)
    task = tasks.build(a.task_kind, a.settings, loaded.words)
    answered: Any = {"last_word": score_last_words, "choice": score_choices}[a.task_kind]
    answers = answered(compute_probs(task, loaded), task.extra)
    mean, error = mean_error(np.array([right for right, _ in answers], float))
    figures: dict[str, Any] = {"task_kind": a.task_kind, "accuracy": mean, "error": flat(error), "n": len(answers)}
    for name, held_out in (("known_pairs", False), ("held_out_pairs", True)):
        correct = [right for right, held in answers if held is held_out]
        figures[f"accuracy_{name}"] = float(np.mean(correct)) if correct else None
    write_json(a.out, figures | {"seconds": round(time.perf_counter() - started, 2)})
