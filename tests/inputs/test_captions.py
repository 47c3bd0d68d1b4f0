"""Prompt shards and encoded captions, through the commands that make them."""

import json
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parity.base.errors import ParityError
from parity.base.files import read_arrays, read_json, write_json
from parity.experiment.schema import PromptSpec
from parity.inputs.__main__ import main
from parity.inputs.prompts import encode, write_prompts
from parity.models import fetch


@pytest.fixture
def command(monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["inputs", *map(str, arguments)])
        main()

    return run


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(9, 30), repeats=st.integers(1, 4), shards=st.integers(1, 9))
def test_shards_are_contiguous_and_even(tmp_path, n, repeats, shards):
    write_prompts(PromptSpec(file=f"classes:{n}", limit=n, repeats=repeats, shards=shards), tmp_path)
    parts = [[entry["id"] for entry in read_json(tmp_path / f"{k}.json")] for k in range(shards)]
    assert [name for part in parts for name in part] == [f"{i:05d}/{r:03d}" for i in range(n) for r in range(repeats)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_prompts_to_encoded_shards(tmp_path, command):
    """A caption's embedding does not depend on the shard it is in, up to the order of sums in a product."""
    prompts = ["a small red circle", "two large striped squares on a blue background", "a ring"]
    (tmp_path / "p.txt").write_text("\n".join(prompts) + "\n")
    write_json(tmp_path / "manifest.json", fetch.make_manifest("discrete", "scenes", {"family": "llamagen"}, tmp_path))
    found = {}
    for shards in (1, 2):
        out = tmp_path / str(shards)
        spec = {"file": str(tmp_path / "p.txt"), "limit": 3, "shards": shards}
        command("prompts", "--spec", json.dumps(spec), "--out", out)
        for k in range(shards):
            files = ("--prompts", out / f"{k}.json", "--checkpoint", tmp_path / "manifest.json")
            command("captions", *files, "--out", out / f"{k}.npz")
        parts = [read_arrays(out / f"{k}.npz") for k in range(shards)]
        found[shards] = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    one, two = found[1], found[2]
    assert one["ids"].tolist() == two["ids"].tolist() == [f"0000{i}/000" for i in range(3)]
    assert one["captions"].tolist() == prompts
    assert np.array_equal(one["valid"], two["valid"])
    assert np.allclose(one["embeddings"], two["embeddings"], atol=1e-5)
    words = one["valid"].sum(1)
    assert words.tolist() == [len(p.split()) + 1 for p in prompts]
    assert one["valid"][:, -1].all()  # padded on the left
    assert not one["embeddings"][one["valid"] == 0].any()
    assert one["embeddings"][one["valid"] == 1].any(-1).all()
    assert [e["id"] for e in read_json(tmp_path / "2/1.json")] == ["00001/000", "00002/000"]


def test_a_caption_that_does_not_fit_is_named(tmp_path):
    manifest = fetch.make_manifest("discrete", "scenes", {"family": "llamagen"}, tmp_path)
    assert encode(manifest, ["red " * 23])["valid"].all()
    with pytest.raises(ParityError, match=r"red red .* allowed: at most"):
        encode(manifest, ["red " * 24])
