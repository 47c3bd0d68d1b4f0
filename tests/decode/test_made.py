"""Tokens made elsewhere: they enter as the method that made them, and are refused in one line where they do not fit."""

import json
from functools import cache

import numpy as np
import pytest

from parity.base.errors import ConfigError, ParityError
from parity.base.files import read_arrays, write_arrays, write_json
from parity.decode import loop, made
from parity.decode.shard_io import read_shard
from parity.equality.layers import CellFiles, run_layer
from parity.experiment import checks
from parity.experiment.cells import cells, find_reference, group_cells, variant
from parity.experiment.options import options
from parity.metrics import passes, speed
from parity.models import fetch
from tests.decode.conftest import MODELS, SAMPLING

N, SIDE = 12, 8  # images, and codes of a row
SIZES = {"vocab": 1024, "rows": SIDE, "columns": SIDE, "line": 0, "end": 0}
PROMPTS = [f"a small red circle and {i} large squares" for i in range(N)]
SETTINGS = {"seeds": [11, 12], "margin_clip": 0.02, "margin_logp": 0.05, "swaps": 99}
ABOUT = {"name": "theirs", "by": "its authors", "device": "an A100", "command": "python sample.py"}


class Workplace:
    """A folder with a model and prompts, in which methods are decoded and their tokens enter as made elsewhere."""

    def __init__(self, folder):
        self.folder = folder
        self.manifest = fetch.make_manifest("discrete", "scenes", MODELS["discrete"], folder)
        write_json(folder / "manifest.json", self.manifest)
        rng = np.random.default_rng(0)  # random embeddings in place of the text encoder's
        self.inputs = {"ids": np.array([f"{i:05d}/000" for i in range(N)]), "captions": np.array(PROMPTS)}
        self.inputs |= {"embeddings": rng.standard_normal((N, 24, 128), np.float32), "valid": np.ones((N, 24), int)}
        for k, part in enumerate(np.split(np.arange(N), [5])):
            write_arrays(folder / f"{k}.npz", **{name: column[part] for name, column in self.inputs.items()})
        self.decode = cache(self.decode_anew)

    def make_spec(self, method, chosen, seed):
        shared = {"model": "scenes", "sampling": SAMPLING, "dtype": "float32", "seed": seed}
        return shared | {"method": method, "options": options("discrete", method, chosen)}

    def decode_anew(self, method, seed, temperature=1.0):
        spec = self.make_spec(method, {"window": 8} if method == "sjd" else {}, seed)
        spec |= {"sampling": SAMPLING | {"temperature": temperature}}
        loaded = loop.load("discrete", self.manifest, spec)
        return loop.decode("discrete", loaded, spec, self.inputs, batch=6)

    def write_tokens(self, shard, *columns, name="tokens.npz", **changes):
        given = {"tokens": shard.tokens, "prompts": shard.captions, **{c: shard.columns[c] for c in columns}}
        named = {"nfe": "passes"}
        given = {named.get(c, c): values for c, values in (given | changes).items() if values is not None}
        np.savez(self.folder / name, **given)
        return self.folder / name

    def take(self, run_main, file, part=1, **chosen):
        """Run the command that takes tokens, of both parts; return the shard of one."""
        spec = self.make_spec("made", {"tokens": str(file), **ABOUT, **chosen}, 2)
        flags = ["--tokens", file, "--inputs", self.folder / "0.npz", self.folder / "1.npz", "--part", part, 2]
        for flag in ("seconds", "plain_seconds"):
            flags += [f"--{flag.replace('_', '-')}", chosen[flag]] if flag in chosen else []
        out = self.folder / f"made-0000000{part}/shards/{part}-of-2.npz"
        write_json(out.parents[1] / "spec.json", spec)
        run_main(made.main, "--spec", json.dumps(spec), "--sizes", json.dumps(SIZES), *flags, "--out", out)
        return read_shard(out)

    def test(self, run_main, file, **chosen):
        """Take tokens and run both layers on them; return their rows by test."""
        shards = []
        for part in range(2):
            self.take(run_main, file, part, **chosen)
            shards.append(self.folder / f"made-0000000{part}/shards/{part}-of-2.npz")
        return self.run_layers(shards, self.folder / "made-00000001")

    def run_layers(self, shards, folder):
        inputs = [self.folder / "0.npz", self.folder / "1.npz"]
        files = (shards, inputs, self.folder / "manifest.json")
        probs = folder / "probs.npz"
        rows = run_layer("teacher_forced", CellFiles("discrete", folder, SETTINGS, *files, None, None, probs))["rows"]
        write_arrays(folder / "features.npz", ids=self.inputs["ids"], logp=read_arrays(probs)["logp"])
        baseline = self.folder / "ar-00000000"
        if baseline != folder:
            cell = CellFiles("discrete", folder, SETTINGS, shards, baseline_folder=baseline)
            rows += run_layer("paired", cell)["rows"]
        return {f"{r['layer']}: {r['test']}": r for r in rows}

    def test_own(self, method, seed):
        """Run both layers on the shards of a method itself; return their rows by test."""
        from parity.decode.shard_io import write_shard

        folder = self.folder / f"{method}-0000000{seed}"
        write_json(folder / "spec.json", self.make_spec(method, {"window": 8} if method == "sjd" else {}, seed))
        columns = dict(self.decode(method, seed).columns)
        write_shard(folder / "shards/0-of-1.npz", columns, {})
        return self.run_layers([folder / "shards/0-of-1.npz"], folder)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    place = Workplace(tmp_path_factory.mktemp("made"))
    place.test_own("ar", 0)
    return place


def read_numbers(rows):
    """Read what tests found, by name, of those that ran."""
    names = ("n", "statistic", "p_value", "effect", "verdict")
    return {test: [row[name] for name in names] for test, row in rows.items() if row["verdict"] != "not run"}


def write_csv(file, text):
    file.write_text(text)
    return str(file)


def test_tokens_of_a_method_are_tested_as_the_method_itself(workplace, run_main):
    shard = workplace.decode("sjd", 2)
    own = read_numbers(workplace.test_own("sjd", 2))
    seconds = write_csv(workplace.folder / "times.csv", "images,seconds\n6,2.5\n6,2\n")
    full = workplace.test(run_main, workplace.write_tokens(shard, "step", "nfe"), seconds=seconds)
    assert read_numbers(full) == own
    assert {test.partition(":")[0] for test in own} == {"teacher-forced", "paired"}
    assert not any(row["verdict"] == "rejected" for row in full.values())


def test_without_the_pass_of_a_token_the_tests_of_slots_say_so(workplace, run_main):
    own = read_numbers(workplace.test_own("sjd", 2))
    bare = workplace.test(run_main, workplace.write_tokens(workplace.decode("sjd", 2)))
    untested = bare["teacher-forced: slots"]
    assert (untested["verdict"], "column step" in untested["note"]) == ("not run", True)
    by_slot = {test for test in own if ", slot" in test} | {"teacher-forced: rows of a batch"}
    found = read_numbers(bare)
    assert {test: found[test] for test in found} == {test: own[test] for test in own if test not in by_slot}
    assert "rows of a batch" in str(bare["teacher-forced: rows of a batch"]["test"])
    assert bare["teacher-forced: rows of a batch"]["verdict"] == "not run"  # which rows shared a batch is not known


def test_tokens_of_another_distribution_are_found(workplace, run_main):
    cold = workplace.decode("ar", 5, 0.5)
    rows = workplace.test(run_main, workplace.write_tokens(cold), claim="lossless")
    assert min(row["p_holm"] for row in rows.values() if row["p_holm"] is not None) < 1e-6


def test_a_token_that_the_model_never_draws_is_a_rejection_and_no_error(workplace, run_main, monkeypatch):
    file = workplace.write_tokens(workplace.decode("ar", 0))
    monkeypatch.setitem(SAMPLING, "top_k", 40)  # tokens were drawn without
    rows = workplace.test(run_main, file)
    assert rows["teacher-forced: support"]["verdict"] == "rejected"


def test_a_part_has_its_own_rows_and_says_what_is_not_known(workplace, run_main):
    shard = workplace.decode("sjd", 2)
    taken = workplace.take(run_main, workplace.write_tokens(shard), 1)
    assert taken.ids.tolist() == workplace.inputs["ids"][5:].tolist()
    assert np.array_equal(taken.tokens, shard.tokens[5:])
    assert taken.provenance["lacks"] == ["passes", "step", "seconds"]
    assert taken.provenance["made"]["by"] == "its authors"
    grid = shard.tokens.reshape(N, SIDE, SIDE).astype(np.int64)
    again = workplace.take(run_main, workplace.write_tokens(shard, tokens=grid), 1)
    assert np.array_equal(again.tokens, taken.tokens)


def test_line_tokens_are_laid_out_as_the_model_has_them():
    sizes = {"vocab": 10, "rows": 2, "columns": 3, "line": 1, "end": 2}
    codes = np.arange(6)[None]
    assert made.lay_codes(codes, sizes, forced=True).tolist() == [[0, 1, 2, 10, 3, 4, 5, 10, 11, 12]]
    assert made.lay_codes(codes + 1, sizes).tolist() == [[1, 2, 3, 0, 4, 5, 6, 0, 0, 0]]


WRONG = {
    "tokens has shape": {"tokens": np.zeros((N, 60), int)},
    "allowed: 0 to 1023": {"tokens": np.full((N, 64), 1024)},
    "tokens has dtype": {"tokens": np.zeros((N, 64))},
    "no column prompts": {"prompts": None},
    "no column tokens": {"tokens": None},
    "in row 3; allowed: the experiment's": {"prompts": np.array([*PROMPTS[:3], "another", *PROMPTS[4:]])},
    "prompts has 11 rows": {"prompts": np.array(PROMPTS[:11]), "tokens": np.zeros((11, 64), int)},
    "Object arrays": {"prompts": np.array([*PROMPTS], object)},
    "passes has shape": {"passes": np.ones(3, int)},
    "passes = 0 in row 0": {"passes": np.zeros(N, int)},
    "step = 9 in row 0; allowed: at most its passes": {"step": np.full((N, 64), 9), "passes": np.full(N, 8)},
}


@pytest.mark.parametrize("words", WRONG)
def test_tokens_that_do_not_fit_are_refused_in_one_line(workplace, words):
    file = workplace.write_tokens(workplace.decode("sjd", 2), name="wrong.npz", **WRONG[words])
    with pytest.raises(ParityError) as error:
        made.read_tokens(file, PROMPTS, SIZES)
    assert str(error.value).startswith(f"{file}: ")
    assert words in str(error.value)
    assert "allowed: " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("images,time\n12,3\n", "no column seconds"),
        ("seconds\n3\n", "images are 1 in all; allowed: 12"),
        ("images,seconds\n12,nan\n", "seconds = 'nan'"),
        ("images,seconds\n6,1\n6,fast\n", "in row 2"),
        ("images,seconds\n6,1,2\n", "row 1"),
    ],
)
def test_seconds_that_do_not_fit_are_refused_in_one_line(tmp_path, text, words):
    file = write_csv(tmp_path / "times.csv", text)
    with pytest.raises(ParityError, match="allowed") as error:
        made.read_seconds(tmp_path / "times.csv", N)
    assert str(error.value).startswith(f"{file}: ")
    assert words in str(error.value)


def make_config(tmp_path, **chosen):
    """Make an experiment on images with tokens made elsewhere beside plain decoding."""
    np.savez(tmp_path / "tokens.npz", tokens=np.zeros((2, 64), int))
    (tmp_path / "prompts.txt").write_text("a red circle\na blue ring\n")
    variants = [{"name": "theirs", "tokens": str(tmp_path / "tokens.npz"), **chosen}]
    prompts = {"file": str(tmp_path / "prompts.txt"), "limit": 2}
    return {"image": {"prompts": prompts, "methods": {"ar": [{}], "sjd": [{}], "made": variants}}}


def list_made(config):
    """List the cells of an experiment, and those of them that were made elsewhere."""
    listed = cells(config, ["a red circle", "a blue ring"])
    return listed, [cell for cell in listed if cell.is_made]


def test_they_are_a_method_of_the_experiment_that_is_not_timed(tmp_path):
    config = checks.make_config(make_config(tmp_path))
    listed, (cell,) = list_made(config)
    assert (cell.role, cell.claim) == ("method", "lossless")
    assert find_reference(cell, listed).role == "reference"
    assert variant(config, cell) is None
    assert not any(one.is_made for group in group_cells(listed) for one in group)
    np.savez(tmp_path / "tokens.npz", tokens=np.ones((2, 64), int))
    assert list_made(config)[1][0].key != cell.key  # other content is another cell


def test_a_second_file_is_the_repetition(tmp_path):
    np.savez(tmp_path / "again.npz", tokens=np.ones((2, 64), int))
    raw = make_config(tmp_path, again=str(tmp_path / "again.npz"), claim="lossy")
    _, found = list_made(checks.make_config(raw))
    assert [(cell.role, cell.claim) for cell in found] == [("method", "lossy"), ("again", "lossy")]
    assert not list_made(checks.make_config(make_config(tmp_path) | {"repeat": True}))[1][1:]


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"tokens": "no.npz"}, "image.methods.made.0.tokens = 'no.npz'"),
        ({"seconds": "no.csv"}, "image.methods.made.0.seconds = 'no.csv'"),
        ({"name": "Two words"}, "image.methods.made.0.name"),
        ({"speed": 2}, "image.methods.made.0.speed"),
        ({"claim": "fast"}, "image.methods.made.0.claim"),
    ],
)
def test_a_wrong_entry_is_refused_in_one_line(tmp_path, chosen, words):
    with pytest.raises(ConfigError) as error:
        checks.make_config(make_config(tmp_path, **chosen))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_texts_cannot_be_made_elsewhere(tmp_path):
    raw = {"text": {"methods": {"sequential": [{}], "made": [{"name": "a", "tokens": "b"}]}}}
    with pytest.raises(ConfigError, match=r"text.methods.made: unknown method"):
        checks.make_config(raw)


class Sample:
    """What metrics of passes and speed read of a cell."""

    forced = None

    def __init__(self, shard):
        self.shard, self.groups = shard, np.arange(len(shard.ids))


def test_seconds_and_passes_are_as_reported_and_no_others(workplace, run_main):
    shard = workplace.decode("sjd", 2)
    seconds = write_csv(workplace.folder / "times.csv", "images,seconds\n6,3\n6,3\n")
    plain = write_csv(workplace.folder / "plain.csv", "seconds\n1\n1.2\n0.8\n")
    taken = workplace.take(run_main, workplace.write_tokens(shard, "nfe"), seconds=seconds, plain_seconds=plain)
    found = speed.measure(Sample(taken))
    assert found["reported_seconds"].value == pytest.approx(0.5)
    assert found["reported_speedup"].value == pytest.approx(2)
    assert found["reported_by"] == "by its authors on an A100"
    assert all(found[name].missing and found[name].why for name in speed.MEASURES)
    counted = passes.measure(Sample(taken))
    assert counted["nfe"].value == pytest.approx(shard.nfe[5:].mean())
    assert counted["nodes_per_pass"].why == counted["acceptance_length"].why == "not reported"
    bare = Sample(workplace.take(run_main, workplace.write_tokens(shard)))
    assert speed.measure(bare)["reported_seconds"].why == "no seconds were reported"
    assert passes.measure(bare)["nfe"].why == "not reported"
    assert passes.measure(bare)["tokens"] == SIDE**2
