"""What metrics read of a cell of an any-subset model: rows of text, what was to be filled in, and who judges them."""

import json
from functools import cached_property
from typing import Any

from parity.base.files import read_arrays
from parity.metrics.samples import Files
from parity.models.anysubset import load


class Sample(Files):
    @cached_property
    def labels(self) -> dict[str, Any]:
        """Task and text of every row, further columns of the records."""
        return {"task_kind": self.spec["task_kind"], "task": self.spec["task"], "text": self.texts}

    @cached_property
    def loaded(self) -> load.Loaded:
        return load.load(self.manifest, self.device)

    @cached_property
    def extra(self) -> list[Any]:
        """What a metric needs to know of each row beside its tokens."""
        return json.loads(str(read_arrays(self.inputs[0])["extra"]))

    @cached_property
    def texts(self) -> list[str]:
        """Every row as text, prompt and what was filled in."""
        rows, words = zip(self.shard.tokens, self.shard.end, strict=True), self.loaded.words
        decode = words.decode_code if self.spec["task_kind"] == "code" else words.decode
        return [decode(t[:n].tolist()) for t, n in rows]

    @cached_property
    def filled(self) -> list[str]:
        """The text that was filled in, row by row, without the prompt."""
        rows = zip(self.shard.tokens, self.column("known", self.inputs), self.shard.end, strict=True)
        words = self.loaded.words
        decode = words.decode_line if self.spec["task_kind"] == "code" else words.decode
        return [decode(t[:n][~known[:n]].tolist()) for t, known, n in rows]
