"""A wrong configuration is one line that names the key, the value and what is allowed."""

import json
from pathlib import Path

import pytest
import yaml

from parity.experiment import config
from parity.experiment import paths as layout

ROOT = Path(__file__).parent.parent
GOOD = {"methods": {"ar": [{}], "jacobi": [{}], "sjd": [{"window": 16}, {"window": 16, "init": "sample_above"}]}}

BAD = {
    "unknown key": ({"foo": 1}, ["foo = 1", "unknown key", "prompts"]),
    "unknown key below": ({"equality": {"alpa": 0.1}}, ["equality.alpa = 0.1", "unknown key", "alpha"]),
    "unknown method": ({"methods": {"ar": [{}], "sjdd": [{}]}}, ["methods.sjdd", "allowed", "jacobi, "]),
    "unknown option": (
        {"methods": {"ar": [{}], "sjd": [{"windows": 3}]}},
        ["methods.sjd.0.windows = 3", "window, init, refine"],
    ),
    "option of another method": ({"methods": {"ar": [{"window": 4}]}}, ["methods.ar.0.window = 4", "no options"]),
    "option out of range": (
        {"methods": {"ar": [{}], "sjd": [{"window": 0}]}},
        ["methods.sjd.0.window = 0", "greater than or equal to 1"],
    ),
    "window longer than the sequence": (
        {"methods": {"ar": [{}], "sjd": [{"window": 257}]}},
        ["methods.sjd.0.window = 257", "at most 256 with models.scenes"],
    ),
    "lead longer than a row": (
        {"methods": {"ar": [{}], "zipar": [{"ahead": 17}]}},
        ["methods.zipar.0.ahead = 17", "at most 16 with models.scenes"],
    ),
    "group larger than the codebook": (
        {"methods": {"ar": [{}], "gsd": [{"group": 1025}]}},
        ["methods.gsd.0.group = 1025", "at most 1024"],
    ),
    "option not a choice": (
        {"methods": {"ar": [{}], "sjd": [{"init": "up"}]}},
        ["methods.sjd.0.init = 'up'", "repeat_above"],
    ),
    "text for a number": (
        yaml.safe_load("sampling: {temperature: 1e-4}"),
        ["sampling.temperature = '1e-4'", "1.0e-04"],
    ),
    "text for a whole number": ({"batch": "8"}, ["batch = '8'", "whole number"]),
    "out of range": ({"sampling": {"top_p": 2.0}}, ["sampling.top_p = 2.0", "less than or equal to 1"]),
    "same variant twice": (
        {"methods": {"ar": [{}], "sjd": [{}, {"window": 16}]}},
        ["methods.sjd.1 = {'window': 16}", "same variant as methods.sjd.0"],
    ),
    "no baseline": ({"methods": {"sjd": [{}]}}, ["methods", "needs ar"]),
    "no variant": ({"methods": {"ar": []}}, ["methods.ar = []", "no variant"]),
    "same sampling twice": ({"sampling": [{"top_k": 5}, {"top_k": 5}]}, ["sampling", "twice"]),
    "seeds that share noise": ({"seeds": {"control": 0}}, ["seeds", "must differ"]),
    "figure over no setting": (
        {"study": [{"title": "t", "x": "windows", "y": ["nfe"]}]},
        ["study.0.x = 'windows'", "init", "step_compression"],
    ),
    "figure of no measure": (
        {"study": [{"title": "t", "x": "init", "y": ["FID"]}]},
        ["study.0.y = 'FID'", "allowed", "fid"],
    ),
    "lines by no setting": (
        {"study": [{"title": "t", "x": "init", "y": ["fid"], "by": ["delta"]}]},
        ["study.0.by = 'delta'", "method, model, sampling.guidance"],
    ),
    "limit to a value that none has": (
        {"study": [{"title": "t", "x": "init", "y": ["fid"], "where": {"window": 17}}]},
        ["study.0.where.window = 17", "a value that a variant has (16)"],
    ),
    "two variants at one place": (
        {"study": [{"title": "t", "x": "window", "y": ["fid"]}]},
        ["study.0.by = ['method']", "window apart", "init"],
    ),
    "two figures of a title": (
        {"study": [{"title": "A b", "x": "init", "y": ["fid"]}, {"title": "a B", "x": "init", "y": ["nfe"]}]},
        ["study.1.title = 'a B'", "twice"],
    ),
    "unknown key of a figure": (
        {"study": [{"title": "t", "x": "init", "y": ["fid"], "z": 1}]},
        ["study.0.z = 1", "unknown key", "where"],
    ),
    "path in a name": ({"experiment": "../x"}, ["experiment = '../x'", "allowed"]),
    "moving revision": (
        {"models": {"m": {"source": "hub", "repo": "a/b", "revision": "main"}}},
        ["models.m.revision = 'main'", "allowed"],
    ),
    "no such grid": ({"models": {"m": {"grid": 12}}}, ["models.m.grid = 12", "allowed: 8 or 16"]),
    "grid of published files": (
        {"models": {"m": {"source": "files", "files": {"vq": "x.pt"}, "sha256": {"vq": "0" * 64}, "grid": 16}}},
        ["models.m", "grid is of source 'embedded' alone", "network"],
    ),
    "no digests": ({"models": {"m": {"source": "files", "files": {"vq": "x.pt"}}}}, ["models.m", "sha256"]),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_configuration_is_one_clear_line(case):
    change, parts = BAD[case]
    with pytest.raises(config.ConfigError) as error:
        config.load({**GOOD, **change})
    assert "\n" not in str(error.value) and all(part in str(error.value) for part in parts), str(error.value)


@pytest.mark.parametrize(
    ("content", "spec", "parts"),
    [
        (None, {}, ["no such file"]),
        (b"", {}, ["holds no prompt"]),
        (b"\n  \n", {}, ["holds no prompt"]),
        (b"a red \xff circle\n", {}, ["not UTF-8 at byte 6"]),
        (b"ok\n" + b"word " * 30 + b"\n", {}, ["prompt 2", "30 words", "at most 23"]),
        (b"one\ntwo\n", {"limit": 3}, ["prompts.limit = 3", "holds 2"]),
        (b"one\ntwo\n", {"shards": 5}, ["prompts.shards = 5", "2 images"]),
    ],
)
def test_wrong_prompt_file_is_one_clear_line(tmp_path, content, spec, parts):
    if content is not None:
        (tmp_path / "p.txt").write_bytes(content)
    with pytest.raises(config.ConfigError) as error:
        config.read_prompts(config.PromptSpec(file="p.txt", **spec), tmp_path)
    assert "\n" not in str(error.value) and all(part in str(error.value) for part in ["prompts.", *parts]), str(
        error.value
    )


def keys(change):
    loaded = config.load({**GOOD, **change})
    return {c["key"] for c in config.cells(loaded, ["a red circle"])}


def test_key_holds_all_that_samples_depend_on_and_nothing_else():
    base = keys({})
    for change in (
        {"sampling": {"guidance": 2.0}},
        {"dtype": "float64"},
        {"prompts": {"repeats": 2}},
        {"seeds": {"reference": 5, "control": 6, "methods": 7}},
    ):
        assert not base & keys(change), change
    for change in ({"batch": 7}, {"experiment": "other"}, {"prompts": {"shards": 1}}, {"equality": {"n": 50_000}}):
        assert base == keys(change), change
    loaded = config.load(GOOD)
    assert not base & {c["key"] for c in config.cells(loaded, ["a blue circle"])}


def test_adding_an_option_value_adds_one_cell_and_taking_it_back_changes_nothing():
    more = {"methods": {**GOOD["methods"], "sjd": [*GOOD["methods"]["sjd"], {"window": 17}]}}
    assert len(keys(more) - keys({})) == 1 and keys({}) < keys(more)
    assert keys({"methods": {**GOOD["methods"], "jacobi": [{"window": 16}]}}) == keys(
        {}
    )  # a default written out is the same cell


def test_repeating_decodes_every_method_once_more_on_a_seed_of_its_own():
    once, twice = config.load(GOOD), config.load({**GOOD, "repeat": True})
    more = [c for c in config.cells(twice, ["a"]) if c["role"] == "again"]
    assert len(more) == 4 and {c["spec"]["seed"] for c in more} == {3}
    assert len(config.cells(twice, ["a"])) == len(config.cells(once, ["a"])) + 4


def test_defaults_of_the_code_are_what_the_options_say():
    assert config.options("sjd", {}) == {"window": 16, "init": "random", "refine": True, "tolerance": 0.0}
    assert config.claim("zipar") == "lossy" and layout.small({"ahead": 8, "window": 16, "init": "random"}) == {
        "ahead": 1,
        "window": 3,
        "init": "random",
    }
    assert config.claim("sjd") == "lossless" == config.claim("sjd", {"window": 4, "tolerance": 0.0})
    assert config.claim("sjd", {"tolerance": 0.1}) == config.claim("sjd_coupled", {"store": "q"}) == "lossy"
    assert (
        config.coupled("mtj", {}) and config.coupled("jacobi", {"coupling": "shared"}) and not config.coupled("sjd", {})
    )
    assert not config.coupled("sjd_coupled", {"coupling": "maximal"})


def test_schema_file_is_the_schema():
    """`python -m parity.schema` writes it."""
    stored = json.loads((ROOT / "workflow/schemas/config.schema.json").read_text())
    assert stored == config.schema()


PUBLISHED = sorted((ROOT / "workflow/published").glob("*.csv"))


@pytest.mark.parametrize(
    "file", [ROOT / "config.yaml", *sorted((ROOT / "workflow/experiments").glob("*.yaml"))], ids=lambda p: p.name
)
def test_every_configuration_we_ship_is_valid(file, all_weights):
    raw = yaml.safe_load(file.read_text())
    loaded = config.load(raw)
    config.check_sources(loaded, PUBLISHED)
    assert config.cells(loaded, config.read_prompts(loaded.prompts, ROOT))


@pytest.mark.parametrize(
    ("paper", "parts"),
    [
        ("Teng (SJD), Table 9", ["Teng et al. 2024 (SJD)"]),
        ("Teng et al. 2024 (SJD), Table 99", ["a table of Teng et al. 2024 (SJD)", "Table 9"]),
    ],
)
def test_a_figure_of_an_unknown_paper_or_table_is_one_clear_line(paper, parts):
    figure = {"title": "t", "x": "init", "y": ["fid"], "paper": paper}
    with pytest.raises(config.ConfigError) as error:
        config.check_sources(config.load({**GOOD, "study": [figure]}), PUBLISHED)
    assert "\n" not in str(error.value) and all(
        part in str(error.value) for part in [f"study.0.paper = {paper!r}", *parts]
    )
    config.check_sources(
        config.load({**GOOD, "study": [{**figure, "paper": "Teng et al. 2024 (SJD), Fig. 8, Table 9"}]}), PUBLISHED
    )


def test_a_study_is_no_part_of_a_key():
    assert keys({}) == keys({"study": [{"title": "t", "x": "init", "y": ["fid"]}]})


def companion(file: Path, **header) -> None:
    """A safetensors file that is all header."""
    text = json.dumps({"__metadata__": {"config": json.dumps(header)}}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize("method", ["eagle", "lantern", "lantern_pp", "vvs"])
@pytest.mark.parametrize(
    ("header", "parts"),
    [
        (None, ["has no drafter", "recipe drafter", "train_embedded"]),
        (
            {"vocab": 64, "grid": 16, "target": "ab"},
            ["drafter.safetensors was trained for another target", "its vocab is 64", "allowed: 1024"],
        ),
        ({"vocab": 1024, "grid": 8, "target": "ab"}, ["its grid is 8", "allowed: 16"]),
        ({"vocab": 1024, "grid": 16, "target": "cd"}, ["the SHA-256 of its target is cd", "allowed: ab"]),
        ({}, ["its vocab is None"]),
    ],
)
def test_a_drafter_of_another_target_is_one_clear_line(tmp_path, monkeypatch, method, header, parts):
    monkeypatch.setattr(config, "EMBEDDED", tmp_path)
    config._header.cache_clear()
    companion(tmp_path / "llamagen.safetensors", vocab=1024, grid=16)
    (tmp_path / "SHA256SUMS").write_text("ab  llamagen.safetensors\n")
    if header is not None:
        companion(tmp_path / "drafter.safetensors", **header)
    try:
        with pytest.raises(config.ConfigError) as error:
            config.load({"methods": {"ar": [{}], method: [{}]}})
        assert "\n" not in str(error.value) and all(part in str(error.value) for part in parts), str(error.value)
        companion(tmp_path / "drafter.safetensors", vocab=1024, grid=16, target="ab")
        config._header.cache_clear()
        config.load({"methods": {"ar": [{}], method: [{}]}})
        if method != "eagle":
            with pytest.raises(
                config.ConfigError, match=f"methods.{method}.0.k = 1024: allowed: at most 1023 with models.scenes"
            ):
                config.load({"methods": {"ar": [{}], method: [{"k": 1024}]}})
    finally:
        config._header.cache_clear()


def test_published_files_need_a_drafter_of_their_own(tmp_path):
    digest = "0" * 64
    files = {"transformer": "t.safetensors", "vq": "v.safetensors"}
    model = {"source": "files", "files": files, "sha256": dict.fromkeys(files, digest)}
    with pytest.raises(config.ConfigError, match="needs a drafter"):
        config.load({"models": {"m": model}, "methods": {"ar": [{}], "eagle": [{}]}})
    companion(tmp_path / "d.safetensors", vocab=16384, grid=16, target=digest)
    files = {**files, "drafter": str(tmp_path / "d.safetensors")}
    model = {"source": "files", "files": files, "sha256": dict.fromkeys(files, digest)}
    config.load({"models": {"m": model}, "methods": {"ar": [{}], "eagle": [{}]}})


def test_sizes_of_the_embedded_model(all_weights):
    """Two grids in one experiment: revisions and limits of their own. What was trained beside it leaves the 16x16 model's revision as it was."""
    _, (before, digest) = all_weights
    specs = {"scenes": {}, "scenes8": {"grid": 8}}
    loaded = config.load({"models": specs, "methods": {"ar": [{}], "sjd": [{"window": 64}], "zipar": [{}]}})
    small, large = loaded.models["scenes8"], loaded.models["scenes"]
    assert config.revision(large) == before == digest != config.revision(small)
    assert (
        config.largest(small) == {"window": 64, "ahead": 8, "group": 1024, "k": 1023, "top_k": 1024}
        and config.largest(large)["window"] == 256
    )
    assert {c["spec"]["revision"] for c in config.cells(loaded, ["a"])} == {config.revision(m) for m in (small, large)}
    for change in ({"sjd": [{"window": 65}]}, {"zipar": [{"ahead": 9}]}):
        with pytest.raises(config.ConfigError, match=r"at most (64|8) with models.scenes8"):
            config.load({"models": specs, "methods": {"ar": [{}], **change}})
        config.load({"models": {"scenes": {}}, "methods": {"ar": [{}], **change}})


def test_what_was_not_trained_is_one_line_that_names_its_recipe(all_weights):
    folder, _ = all_weights
    small, spec = {"models": {"m": {"grid": 8}}, "methods": {"ar": [{}]}}, {"methods": {"ar": [{}], "spec": [{}]}}
    config.load(small), config.load(spec)
    for file, raw, parts in (
        ("llamagen8", small, ["models.m.grid = 8", "recipe llamagen8"]),
        ("draft", spec, ["methods.spec", "models.scenes", "recipe draft"]),
    ):
        (folder / f"{file}.safetensors").unlink()
        with pytest.raises(config.ConfigError) as error:
            config.load(raw)
        assert "\n" not in str(error.value) and all(
            part in str(error.value) for part in [*parts, f"{file}.safetensors"]
        )
    assert config.load({"methods": {"ar": [{}], "sjd": [{}]}})
    with pytest.raises(config.ConfigError, match="needs a draft trained for this model"):
        config.load({**spec, "models": {"m": {"source": "files"}}})
