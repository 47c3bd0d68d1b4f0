"""The commands that make prompt shards and encode captions."""

import json
from itertools import chain

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parity.base.errors import ParityError
from parity.base.files import read_arrays, read_json, write_json
from parity.experiment.cells import digest_prompts
from parity.experiment.schema import PromptSpec
from parity.inputs.__main__ import main
from parity.inputs.prompts import encode, write_prompts
from parity.models import fetch


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(9, 30), repeats=st.integers(1, 4), shards=st.integers(1, 9))
def test_shards_are_contiguous_and_even(tmp_path, n, repeats, shards):
    spec = PromptSpec(file=f"classes:{n}", limit=n, repeats=repeats, shards=shards)
    write_prompts(spec, digest_prompts(list(map(str, range(n)))), tmp_path)
    ids = [[entry["id"] for entry in read_json(tmp_path / f"{k}.json")] for k in range(shards)]
    assert list(chain(*ids)) == [f"{i:05d}/{r:03d}" for i in range(n) for r in range(repeats)]
    sizes = [len(shard) for shard in ids]
    assert max(sizes) - min(sizes) <= 1


def test_prompts_that_changed_after_planning_are_not_decoded(tmp_path):
    with pytest.raises(ParityError, match="changed after the run was planned"):
        write_prompts(PromptSpec(file="classes:9", limit=9), digest_prompts(["others"]), tmp_path)
    assert not list(tmp_path.iterdir())


def test_encoded_captions_do_not_depend_on_their_shard(tmp_path, run_main):
    """Up to the order of sums in a product."""
    prompts = ["a small red circle", "two large striped squares on a blue background", "a ring"]
    (tmp_path / "p.txt").write_text("\n".join(prompts) + "\n")
    write_json(tmp_path / "manifest.json", fetch.make_manifest("discrete", "scenes", {"family": "llamagen"}, tmp_path))
    encoded = {}
    for shards in (1, 2):
        out = tmp_path / str(shards)
        spec = {"file": str(tmp_path / "p.txt"), "limit": 3, "shards": shards}
        run_main(main, "prompts", "--spec", json.dumps(spec), "--digest", digest_prompts(prompts), "--out", out)
        for k in range(shards):
            files = ("--prompts", out / f"{k}.json", "--checkpoint", tmp_path / "manifest.json")
            run_main(main, "captions", *files, "--out", out / f"{k}.npz")
        arrays = [read_arrays(out / f"{k}.npz") for k in range(shards)]
        encoded[shards] = {name: np.concatenate([p[name] for p in arrays]) for name in arrays[0]}
    one, two = encoded[1], encoded[2]
    assert one["ids"].tolist() == two["ids"].tolist() == [f"0000{i}/000" for i in range(3)]
    assert one["captions"].tolist() == prompts
    assert np.array_equal(one["valid"], two["valid"])
    assert np.allclose(one["embeddings"], two["embeddings"], atol=1e-5)
    words = one["valid"].sum(1)
    assert words.tolist() == [len(p.split()) + 1 for p in prompts]
    assert one["valid"][:, -1].all()  # captions are padded on the left
    assert not one["embeddings"][one["valid"] == 0].any()
    assert one["embeddings"][one["valid"] == 1].any(-1).all()
    assert [e["id"] for e in read_json(tmp_path / "2/1.json")] == ["00001/000", "00002/000"]


def test_a_caption_that_does_not_fit_is_named(tmp_path):
    manifest = fetch.make_manifest("discrete", "scenes", {"family": "llamagen"}, tmp_path)
    assert encode(manifest, ["red " * 23])["valid"].all()
    with pytest.raises(ParityError, match=r"red red .* allowed: at most"):
        encode(manifest, ["red " * 24])
