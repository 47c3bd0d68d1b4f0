"""Finished samples, kept: a file a batch, so that a second call goes on where the first stopped (or failed)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parity_certify.errors import ParityError
from parity_certify.files import read_arrays, read_json, write_arrays, write_json


class Batch(NamedTuple):
    """Prompt numbers [n], tokens [n, L], and how many drafts were offered and accepted; -1: the engine does not say."""

    prompts: np.ndarray
    tokens: np.ndarray
    drafted: int = -1
    accepted: int = -1


@dataclass
class Store:
    """Batches of one sampler by seed and number; without a folder they live as long as the call."""

    folder: Path | None = None
    held: dict[tuple[int, int], Batch] = field(default_factory=dict)
    seen: dict[int, dict[int, float]] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"kept in {self.folder}" if self.folder else "not kept: no folder was given"

    def file(self, seed: int, number: int) -> Path:
        assert self.folder is not None
        return self.folder / "samples" / f"{seed}-{number:05d}.npz"

    def get(self, seed: int, number: int) -> Batch | None:
        if self.folder is None:
            return self.held.get((seed, number))
        if not self.file(seed, number).exists():
            return None
        found = read_arrays(self.file(seed, number))
        return Batch(found["prompts"], found["tokens"], int(found["drafted"]), int(found["accepted"]))

    def put(self, seed: int, number: int, batch: Batch) -> None:
        if self.folder is None:
            self.held[seed, number] = batch
            return
        drafts = {"drafted": np.array(batch.drafted), "accepted": np.array(batch.accepted)}
        write_arrays(self.file(seed, number), prompts=batch.prompts, tokens=batch.tokens, **drafts)

    def looks(self, seed: int) -> dict[int, float] | None:
        """Sizes that were looked at, in order, and the p-value of `all four` there; None where nothing is kept."""
        if self.folder is None:
            return None
        file = self.folder / f"looks-{seed}.json"
        return {int(n): p for n, p in read_json(file)} if file.exists() else {}

    def looked(self, seed: int, looks: dict[int, float]) -> None:
        if self.folder is not None:
            write_json(self.folder / f"looks-{seed}.json", [[n, p] for n, p in looks.items()])

    def check(self, spec: dict) -> None:
        """The folder is for one sampler: ParityError if it holds another's samples."""
        if self.folder is None:
            return
        file = self.folder / "spec.json"
        if file.exists() and (kept := read_json(file)) != spec:
            other = sorted(k for k in {*kept, *spec} if kept.get(k) != spec.get(k))
            raise ParityError(f"{self.folder}: holds samples of another sampler ({', '.join(other)} differ)")
        write_json(file, spec)
