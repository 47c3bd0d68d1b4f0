"""The batch loop and its clock, on models that count their passes."""

import numpy as np
import pytest
import torch
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled

from parity.base.errors import ParityError
from parity.decode.loop import decode
from parity.experiment.options import options
from parity.models.discrete.tabular import TabularModel
from tests.tables import make_table

L = 7


class Counting(TabularModel):
    """A tabular model that counts its passes."""

    passes = 0

    def logits(self, tokens, positions):
        self.passes += 1
        return super().logits(tokens, positions)


class Loaded:
    """Loaded networks of a job that make tabular models, with a draft model if `drafts`, and list them in `models`."""

    device = torch.device("cpu")

    def __init__(self, drafts=False):
        self.models = []
        self.drafts = drafts

    def model(self, rows, sampling, queue=None):
        networks = [Counting(make_table(3, L), L, len(rows["ids"]), width=L) for _ in range(1 + self.drafts)]
        self.models += networks
        return Sampled(networks[0], TokenSampling(), dict(zip(("draft",), networks[1:], strict=False)), queue)


class Scarce(Loaded):
    """Loaded networks whose models of more than `fits` rows end in an error, by default too little memory."""

    def __init__(self, fits, error=torch.cuda.OutOfMemoryError):
        super().__init__()
        self.fits, self.error = fits, error

    def model(self, rows, sampling, queue=None):
        if len(rows["ids"]) > self.fits:
            raise self.error
        return super().model(rows, sampling, queue)


def make_spec(method="sjd", **method_options):
    """Make the specification of a discrete method with seed 0, its options completed by defaults."""
    return {"method": method, "options": options("discrete", method, method_options), "sampling": {}, "seed": 0}


ROWS = {"ids": np.array([f"{i}" for i in range(7)]), "captions": np.array(["c"] * 7)}


def test_out_of_memory_halves_the_batch_with_the_same_tokens(capsys):
    loaded = Scarce(1)
    shard = decode("discrete", loaded, make_spec(window=3), ROWS, 7)
    assert [len(model.rows) for model in loaded.models] == [1] * 7
    lines = [line for line in capsys.readouterr().err.splitlines() if "out of memory" in line]
    assert lines == [f"out of memory: batch {n} on cpu; {n // 2} from here on, with the same tokens" for n in (7, 3)]
    assert shard.ids.tolist() == ROWS["ids"].tolist()
    assert np.array_equal(shard.tokens, decode("discrete", Loaded(), make_spec(window=3), ROWS, 7).tokens)
    with pytest.raises(ParityError, match="out of memory: batch 1 on cpu: one row does not fit; allowed: a device"):
        decode("discrete", Scarce(0), make_spec(window=3), ROWS, 2)
    with pytest.raises(ZeroDivisionError):
        decode("discrete", Scarce(0, ZeroDivisionError), make_spec(window=3), ROWS, 2)


def test_calls_of_a_speculator_are_counted_separately():
    """A pass of `spec` calls its draft model once a draft, with one token each but the first, which reads two."""
    loaded = Loaded(drafts=True)
    shard = decode("discrete", loaded, make_spec("spec", gamma=2), ROWS, 7)
    target, draft = loaded.models
    assert target.passes == shard.passes[0]
    assert (shard.draft_calls == draft.passes).all()
    assert shard.passes[0] < shard.draft_calls[0] < shard.draft_tokens[0]
    assert (decode("discrete", Loaded(), make_spec(window=3), ROWS, 7).draft_calls == 0).all()
