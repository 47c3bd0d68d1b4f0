"""Rows that take the places of rows that are done: each draws what it draws in a batch of its own."""

from typing import Any

import numpy as np
import pytest
import torch

from parity.base.noise import Noise, counted_noise
from parity.decode import loop
from parity.decode.discrete import record
from parity.decode.queue import Queue
from parity.decode.shard_io import TIMES
from parity.decoders.window import Window
from parity.experiment import options
from parity.models import add, fetch
from parity.models.discrete import cached, llamagen
from parity.models.discrete.cached import EagleDrafter
from parity.models.discrete.llamagen import FeatureDrafter, Transformer
from parity.models.discrete.load import encoder, load
from parity.models.discrete.sampling import Sampled, TokenSampling
from parity.models.discrete.tabular import TabularModel
from parity.stand_ins.discrete import anole, anole_drafter
from tests.decoders.test_elsewhere import LLAMAGEN, random
from tests.tables import decoder, table, variants

N, AT_ONCE, L = 40, 6, 7
REFILLING = [m for m in options.methods("discrete") if loop.refills("discrete", m)]
GRAMMAR = torch.tensor([-1, -1, 3, -1, -1, 3, 3])
LAWS = {
    "guided": (table(4, L, pair=True), None, TokenSampling(guidance=1.8)),
    "grammar": (table(4, L), GRAMMAR, TokenSampling(top_k=3)),
}


def of_tables(law: str, rows: int) -> Sampled:
    logits, forced, sampling = LAWS[law]
    return Sampled(TabularModel(logits, L, rows, width=3, forced=forced), sampling)


def together(law: str, method: str, given: dict[str, Any]) -> Any:
    model, start = of_tables(law, N), torch.zeros(N, dtype=torch.int64)
    return record(model, start, decoder("discrete", method)(model, start, noise=counted_noise(2, range(N)), **given))


def refilled(law: str, method: str, given: dict[str, Any]) -> Any:
    model, start = of_tables(law, AT_ONCE), torch.zeros(AT_ONCE, dtype=torch.int64)
    noise, keys = counted_noise(2, range(AT_ONCE)), counted_noise(2, range(N)).keys
    model.queue = Queue(model, noise, keys, lambda rows: of_tables(law, rows.stop - rows.start))
    return record(model, start, decoder("discrete", method)(model, start, noise=noise, **given))


SAME = ("tokens", "step", "nfe", "nodes", "kept")
CASES = [v for v in variants("discrete") if v.method in REFILLING]


@pytest.mark.parametrize("variant", CASES, ids=[v.name for v in CASES])
@pytest.mark.parametrize("law", list(LAWS))
def test_a_row_in_another_place_and_pass_is_the_same_row(law, variant):
    own, other = (f(law, variant.method, variant.given) for f in (together, refilled))
    for name in SAME:
        assert torch.equal(getattr(own, name), getattr(other, name)), name
    assert other.passes >= own.nfe.sum() / AT_ONCE > own.passes


def test_every_method_whose_rows_end_apart_refills():
    assert set(options.methods("discrete")) - set(REFILLING) == {"ar", "zipar"}  # all of its rows end in one pass


FORGETS = [
    ("jacobi", Noise, "replace", lambda self, rows, keys: None),
    ("sjd", Window, "_begin", lambda self, rows: None),
    ("sjd_coupled", Window, "_begin", lambda self, rows: self.drawn.clear()),
]


@pytest.mark.parametrize(("method", "owner", "name", "nothing"), FORGETS, ids=[f"{m}: {n}" for m, _, n, _ in FORGETS])
def test_what_is_left_of_the_row_before_is_seen(method, owner, name, nothing, monkeypatch):
    """What must fail, and does."""
    given = options.small("discrete", options.options("discrete", method, {}))
    own = together("guided", method, given)
    monkeypatch.setattr(owner, name, nothing)
    other = refilled("guided", method, given)
    assert not torch.equal(own.tokens, other.tokens) or not torch.equal(own.nfe, other.nfe)


# --- networks, whose rows have prompts


class LlamaGenOf:
    """Small random networks of LlamaGen's kind, each row's caption in its inputs."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.net, self.small = random(Transformer(LLAMAGEN)), random(Transformer(LLAMAGEN), 1)
        self.drafter = random(FeatureDrafter(LLAMAGEN), 2)

    def model(self, rows: dict[str, np.ndarray], sampling: dict[str, Any]) -> Sampled:
        condition, valid = (torch.from_numpy(rows[k]) for k in ("embeddings", "valid"))
        model = llamagen.LlamaGen(self.net, condition, valid, True)
        codes = torch.randn(16, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        model.raw_codebook, model.codebook = codes, torch.nn.functional.normalize(codes)
        model.drafter = EagleDrafter(self.drafter, model)
        model.draft = llamagen.LlamaGen(self.small, condition, valid, True, returns=True)
        return Sampled(model, TokenSampling(guidance=1.8, top_k=12))


def captions(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    valid = np.arange(3) >= rng.integers(0, 3, n)[:, None]
    ids = np.array([f"{i}" for i in range(n)])
    return {"ids": ids, "captions": ids, "embeddings": rng.normal(size=(n, 3, 4)), "valid": valid}


CAPTIONS, NETS = captions(11), LlamaGenOf()


def cell(method: str) -> dict[str, Any]:
    given = options.small("discrete", options.options("discrete", method, {}))
    return {"method": method, "options": given, "sampling": {}, "seed": 0, "dtype": "float64"}


def same(own: Any, other: Any) -> None:
    for name in set(own.columns) - {*TIMES, "first_seconds", "passes", "batch", "at_once"}:
        assert np.array_equal(own.columns[name], other.columns[name]), name


@pytest.mark.parametrize("method", REFILLING)
def test_a_shard_that_is_refilled_is_the_shard(method):
    """Its captions, features, drafts and drafter, too; times are of all its rows."""
    rows = captions(11)
    own = loop.decode("discrete", LlamaGenOf(), cell(method), rows, 4, 1)
    other = loop.decode("discrete", LlamaGenOf(), cell(method), rows, 4, 1, refill=True)
    same(own, other)
    assert set(other.batch) == {11} and set(other.at_once) == {4} and len(set(other.passes)) == 1
    assert np.isfinite(other.plain_seconds).all() and np.isfinite(other.single_seconds).sum() == 1
    assert set(own.at_once) == {4, 3} and other.passes[0] <= np.unique(own.passes).sum() * 3


def test_rows_that_begin_compile_nothing_and_leave_the_cache_where_it_is():
    """They are few or many: compiled, each number of them would be another graph."""
    reads: list[int] = []

    def read(net: Any, x: torch.Tensor, *given: Any) -> torch.Tensor:
        reads.append(len(x))
        return cached.a_pass(net, x, *given)

    def model(rows: slice) -> Sampled:
        condition, valid = (torch.from_numpy(CAPTIONS[k][rows]) for k in ("embeddings", "valid"))
        return Sampled(llamagen.LlamaGen(NETS.net, condition, valid, True, read=read), TokenSampling(guidance=1.8))

    noise, keys = counted_noise(2, range(4)), counted_noise(2, range(11)).keys
    batch, start = model(slice(4)), torch.zeros(4, dtype=torch.int64)
    batch.queue, cache = Queue(batch, noise, keys, model), batch.model.cache[0][0].data_ptr()
    record(batch, start, decoder("discrete", "jacobi")(batch, start, noise=noise, window=3))
    assert set(reads) == {8}  # with guidance, a row counts twice
    assert batch.model.cache[0][0].data_ptr() == cache  # nor is the cache, which may be most of a GPU, made anew


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A model that reads words, its drafter, and captions of 1 to 60 of them."""
    folder, apart = tmp_path_factory.mktemp("anole"), tmp_path_factory.mktemp("drafter")
    files, drafter = anole(folder), anole_drafter(apart)["drafter"]
    said = add.entry(str(folder / files["model"]), None, {"drafter": apart / drafter})
    manifest = fetch.manifest("discrete", "m", said, folder / "out")
    texts = [" ".join(["a", "red", "fox"] * (1 + 20 * (i % 4 == 3))) for i in range(9)]
    inputs = {k: v.numpy() for k, v in encoder(manifest)(texts).items()}
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
    rejoin = cached.begin_again

    def kept(mine: Any, fresh: Any, which: Any, prefixes: Any, cache: Any, theirs: Any) -> None:
        at, gap = which.nonzero()[:, 0], max(prefixes[0] - prefixes[1], 0)
        olds = [x[at, gap:].clone() for x in cache] if isinstance(mine, of) else theirs
        rejoin(mine, fresh, which, prefixes, cache, olds)

    monkeypatch.setattr(cached, "begin_again", kept)
    other = loop.decode("discrete", loaded, spec, rows, 3, refill=True)
    assert not np.array_equal(own.tokens, other.tokens) or not np.array_equal(own.nfe, other.nfe)
