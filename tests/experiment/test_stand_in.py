"""`stand_in: true`: every published network gives way to a tiny random one, and nothing else of the experiment does."""

import copy

from parity.experiment import checks, stand_in

ENTRY = {
    "family": "llamagen", "source": "files", "files": {"transformer": "t.pt", "vq": "v.pt", "text": "t5"},
    "sha256": dict.fromkeys(("transformer", "vq", "text"), "a" * 64),
    "network": {"vocab": 64, "dim": 64, "layers": 1, "heads": 1, "grid": 4, "prefix": 8, "caption_dim": 32},
}  # fmt: skip
SUM = {"model": "a" * 64}
RAW = {
    "experiment": "table",
    "stand_in": True,
    "models": {
        "xl": {
            "family": "llamagen", "source": "hub", "repo": "o/n",
            "files": {"transformer": "t.pt", "drafter": "hub:o/d:."},
        },
        "other": {
            "family": "chameleon", "stand_in": "anole", "source": "files", "files": {"model": "/m"}, "sha256": SUM,
        },
        "scenes": {"family": "llamagen"},
    },
    "image": {
        "prompts": {"file": "data/captions.json", "caption": "sjd", "limit": 5000, "shards": 50},
        "reference": "data/val2017",
        "methods": {"ar": [{}], "sjd": [{"window": 8}, {"window": 32}, {"window": 64}]},
        "study": [{"title": "t", "x": "window", "y": ["nfe"], "where": {"window": [8, 32, 64]}}],
    },
}  # fmt: skip


DRAFTERS = {
    name: {"files": {"drafter": name}, "sha256": {"drafter": digit * 64}}
    for name, digit in (("eagle_drafter", "b"), ("anole_drafter", "c"))
}


def made(asked):
    def make(names):
        asked.extend(names)
        return {name: copy.deepcopy(DRAFTERS.get(name, ENTRY)) for name in names}

    return make


def test_published_models_give_way_and_the_embedded_one_stays():
    asked = []
    raw = stand_in.replaced(RAW, made(asked))
    models = raw["models"]
    assert asked == ["llamagen", "eagle_drafter", "anole"]
    assert models["scenes"] == {"family": "llamagen"} and models["other"] == ENTRY
    assert models["xl"]["files"]["drafter"] == "eagle_drafter" and models["xl"]["sha256"]["drafter"] == "b" * 64
    assert raw["experiment"] == "table-stand_in" and "reference" not in raw["image"]
    assert RAW["image"]["prompts"]["limit"] == 5000, "what was given is left as it was"


def test_a_drafter_of_anole_gives_way_to_one_of_its_own_kind():
    asked, raw = [], copy.deepcopy(RAW)
    other = raw["models"]["other"]
    other["files"]["drafter"], other["sha256"] = "/d", SUM | {"drafter": "d" * 64}
    models = stand_in.replaced(raw, made(asked))["models"]
    assert asked == ["llamagen", "eagle_drafter", "anole", "anole_drafter"]
    assert models["other"]["sha256"]["drafter"] == "c" * 64 and models["xl"]["sha256"]["drafter"] == "b" * 64


def test_options_are_cut_to_what_the_small_networks_have_and_no_variant_is_twice():
    raw = stand_in.replaced(RAW, made([]))
    assert raw["image"]["methods"]["sjd"] == [{"window": 8}, {"window": 16}]
    assert raw["image"]["study"][0]["where"] == {"window": [8, 16]}
    assert raw["image"]["prompts"] == {"file": "prompts/plain.txt", "limit": 2}


def test_prompts_that_are_at_hand_stay_and_classes_are_numbers(tmp_path):
    (tmp_path / "p.txt").write_text("a cat\n")
    given = {"file": str(tmp_path / "p.txt"), "limit": 9, "shards": 4}
    assert stand_in.prompts(given, False) == {"file": given["file"], "limit": 2, "repeats": 1, "shards": 1}
    assert stand_in.prompts({"file": "none"}, True)["file"] == "prompts/classes.txt"


def test_without_it_nothing_changes():
    raw = {**RAW, "stand_in": False}
    assert stand_in.replaced(raw, made([])) is raw


def test_the_tests_are_as_small_as_the_schema_lets_them_be():
    given = {"experiment": "e", "stand_in": True, "image": {"methods": {"ar": [{}]}}}
    config = checks.load(stand_in.replaced(given, made([])))
    assert config.stand_in and config.equality.n == 10_000 and config.equality.long == 0
