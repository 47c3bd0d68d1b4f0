"""Rows that take the places of rows that are done: each draws what it draws in a batch of its own."""

from typing import Any

import numpy as np
import pytest
import torch
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.sampling import Sampled, TokenSampling
from parity_decoders.window import Window

from parity.decode import loop
from parity.decode.discrete import record
from parity.decode.shard_io import TIMES
from parity.experiment import options
from parity.models import add, fetch
from parity.models.discrete import cached
from parity.models.discrete.cached import EagleDrafter
from parity.models.discrete.load import load, load_encoder
from parity.models.discrete.tabular import TabularModel
from parity.stand_ins.discrete import anole, anole_drafter
from tests.tables import generate_variants, import_decoder, make_table

N, AT_ONCE, L = 40, 6, 7
REFILLING = [m for m in options.methods("discrete") if options.declaration("discrete", m).REFILLS]
GRAMMAR = torch.tensor([-1, -1, 3, -1, -1, 3, 3])
LAWS = {
    "guided": (make_table(4, L, pair=True), None, TokenSampling(guidance=1.8)),
    "grammar": (make_table(4, L), GRAMMAR, TokenSampling(top_k=3)),
}


def of_tables(law: str, rows: int) -> Sampled:
    logits, forced, sampling = LAWS[law]
    return Sampled(TabularModel(logits, L, rows, width=3, forced=forced), sampling)


def together(law: str, method: str, given: dict[str, Any]) -> Any:
    model, start = of_tables(law, N), torch.zeros(N, dtype=torch.int64)
    return record(
        model, start, import_decoder("discrete", method)(model, start, noise=counted_noise(2, range(N)), **given)
    )


def refilled(law: str, method: str, given: dict[str, Any]) -> Any:
    model, start = of_tables(law, AT_ONCE), torch.zeros(AT_ONCE, dtype=torch.int64)
    noise, keys = counted_noise(2, range(AT_ONCE)), counted_noise(2, range(N)).keys
    model.queue = loop.Queue(model, noise, keys, lambda rows: of_tables(law, rows.stop - rows.start))
    return record(model, start, import_decoder("discrete", method)(model, start, noise=noise, **given))


SAME = ("tokens", "step", "nfe", "nodes", "kept")
CASES = [v for v in generate_variants("discrete") if v.method in REFILLING]


@pytest.mark.parametrize("variant", CASES, ids=[v.name for v in CASES])
@pytest.mark.parametrize("law", list(LAWS))
def test_a_row_in_another_place_and_pass_is_the_same_row(law, variant):
    own, other = (f(law, variant.method, variant.options) for f in (together, refilled))
    for name in SAME:
        assert torch.equal(getattr(own, name), getattr(other, name)), name
    assert other.passes >= own.nfe.sum() / AT_ONCE > own.passes


FORGETS = [
    ("jacobi", Noise, "replace", lambda self, rows, keys: None),
    ("sjd", Window, "_forget_rows", lambda self, rows: None),
    ("sjd_coupled", Window, "_forget_rows", lambda self, rows: self.drawn.clear()),
]


@pytest.mark.parametrize(("method", "owner", "name", "nothing"), FORGETS, ids=[f"{m}: {n}" for m, _, n, _ in FORGETS])
def test_what_is_left_of_the_row_before_is_seen(method, owner, name, nothing, monkeypatch):
    """What must fail, and does."""
    given = options.cap_small("discrete", method, options.options("discrete", method, {}))
    own = together("guided", method, given)
    monkeypatch.setattr(owner, name, nothing)
    other = refilled("guided", method, given)
    assert not torch.equal(own.tokens, other.tokens) or not torch.equal(own.nfe, other.nfe)


# --- a network, whose rows have prompts


def cell(method: str) -> dict[str, Any]:
    given = options.cap_small("discrete", method, options.options("discrete", method, {}))
    return {"method": method, "options": given, "sampling": {}, "seed": 0, "dtype": "float64"}


def same(own: Any, other: Any) -> None:
    for name in set(own.columns) - {
        *TIMES,
        "first_seconds",
        "passes",
        "draft_calls",
        "draft_tokens",
        "batch",
        "at_once",
    }:
        assert np.array_equal(own.columns[name], other.columns[name]), name


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A model that reads words, its drafter, and captions of 1 to 60 of them."""
    folder, apart = tmp_path_factory.mktemp("anole"), tmp_path_factory.mktemp("drafter")
    files, drafter = anole(folder), anole_drafter(apart)["drafter"]
    said = add.find(str(folder / files["model"]), None, {"drafter": apart / drafter}).entry
    manifest = fetch.make_manifest("discrete", "m", said, folder / "out")
    texts = [" ".join(["a", "red", "fox"] * (1 + 20 * (i % 4 == 3))) for i in range(9)]
    inputs = {k: v.numpy() for k, v in load_encoder(manifest)(texts).items()}
    ids = np.array([f"{i}" for i in range(9)])
    return load(manifest, dtype=torch.float64, needs="drafter"), {"ids": ids, "captions": ids, **inputs}


@pytest.mark.parametrize("method", ["sjd", "eagle", "lantern_pp"])
def test_a_longer_prompt_takes_the_place_of_a_shorter_one(method, words):
    """Prompts end where the picture begins: the batch's are padded anew."""
    loaded, rows = words
    spec = cell(method) | {"sampling": {"guidance": 2.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}}
    same(*(loop.decode("discrete", loaded, spec, rows, 3, refill=refill) for refill in (False, True)))


@pytest.mark.parametrize("of", [cached.Cached, EagleDrafter], ids=["target", "drafter"])
def test_a_prompt_that_is_kept_from_the_row_before_is_seen(of, words, monkeypatch):
    """What must fail, and does: keys and values of the row that was done, in either network."""
    loaded, rows = words
    spec = cell("lantern_pp") | {"sampling": {"guidance": 2.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}}
    own = loop.decode("discrete", loaded, spec, rows, 3)
    take = cached.SlotCache.take_prompts

    def kept(self: Any, which: Any, fresh: Any, prefixes: Any) -> int:
        at, olds = which.nonzero()[:, 0], [x.clone() for x in self.list_tensors()]
        more = take(self, which, fresh, prefixes)
        for x, old in zip(self.list_tensors(), olds, strict=True):
            if isinstance(self, of):
                x[at, more : more + prefixes[0]] = old[at, : prefixes[0]]
        return more

    monkeypatch.setattr(cached.SlotCache, "take_prompts", kept)
    other = loop.decode("discrete", loaded, spec, rows, 3, refill=True)
    assert not np.array_equal(own.tokens, other.tokens) or not np.array_equal(own.nfe, other.nfe)
