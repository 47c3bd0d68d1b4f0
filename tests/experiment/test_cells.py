"""A cell's key is a digest of all that its samples depend on, and of nothing else; what modules declare is read."""

from dataclasses import replace

import pytest

from parity.base.errors import ConfigError
from parity.experiment import cells as parity_cells
from parity.experiment import checks, code_digest, layers, module_metadata, options, paths, weights
from parity.experiment.cells import cells, find_reference, long_variant, variant, variant_key
from parity.experiment.cells import test_key as cell_test_key
from parity.experiment.schema import HeadSpec, SamplingSpec

METHODS = {"ar": [{}], "jacobi": [{}], "sjd": [{"window": 16}, {"window": 16, "init": "sample_above"}]}
TEXT = {"methods": {"sequential": [{}], "assd": [{"k": 5}]}, "tasks": {"infilling": [{"rows": 8}], "stories": [{}]}}
VECTORS = {"methods": {"mar": [{}], "cspd": [{"gamma": 4}]}, "images": 4}


def list_cells(prompt="a red circle", repeat=False, **sections):
    """List the cells of a configuration with these sections and a single prompt."""
    return cells(checks.make_config({**sections, "repeat": repeat}), [prompt])


def list_keys(prompt="a red circle", **sections):
    return {c.key for c in list_cells(prompt, **sections)}


def image(methods=METHODS, **section):
    return {"methods": methods, **section}


def test_key_holds_all_that_samples_depend_on_and_nothing_else():
    base = list_keys(image=image())
    for change in ({"sampling": {"guidance": 2.0}}, {"dtype": "float64"}, {"prompts": {"repeats": 2}}):
        assert not base & list_keys(image=image(**change)), change
    assert not base & list_keys(image=image(), seeds={"reference": 5, "control": 6, "methods": 7})
    assert not base & list_keys("a blue circle", image=image())
    figure = {"title": "t", "x": "init", "y": ["fid"]}
    for change in ({"batch": 7}, {"prompts": {"shards": 1}}, {"study": [figure]}):
        assert base == list_keys(image=image(**change)), change
    assert base == list_keys(image=image(), experiment="other", equality={"n": 50_000})
    # A default that is written out changes no key.
    assert base == list_keys(image=image({**METHODS, "jacobi": [{"window": 16}]}))


def test_an_option_that_a_later_version_adds_renames_no_cell(monkeypatch):
    """Of sampling, and of a decoder; a value that is no default does rename."""

    class Later(SamplingSpec):
        top_n_sigma: float = 0.0

    before = {c.key: c for c in list_cells(image=image())}
    later = {key: replace(c, spec=c.spec | {"sampling": c.spec["sampling"] | {"top_n_sigma": 0.0}})
             for key, c in before.items()}  # fmt: skip
    monkeypatch.setitem(parity_cells.SAMPLINGS, "discrete", Later)
    assert [c.key for c in later.values()] == list(before)
    other = [replace(c, spec=c.spec | {"sampling": c.spec["sampling"] | {"top_n_sigma": 1.0}}) for c in later.values()]
    assert not {c.key for c in other} & set(before)
    defaults = options.options("discrete", "sjd", {})
    (sjd, *_) = (c for c in before.values() if c.spec["method"] == "sjd")
    monkeypatch.setattr(parity_cells, "fill_options", lambda *_: defaults | {"newest": False})
    assert replace(sjd, spec=sjd.spec | {"options": sjd.spec["options"] | {"newest": False}}).key == sjd.key


@pytest.mark.parametrize("sections", [{"image": image()}, {"text": TEXT}, {"continuous": VECTORS}])
def test_what_is_left_out_of_a_specification_is_filled_in_again(sections):
    config = checks.make_config(sections)
    for c in cells(config, ["a"]):
        family = weights.list_models(config, c.kind)[c.spec["model"]].family
        assert parity_cells.complete(c.kind, c.asked, family) == c.spec
        assert parity_cells.complete(c.kind, c.spec, family) == c.spec


DEFAULTS = (
    {"guidance": 1.8, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
    {"steps": 25, "sampler": "ddpm", "eta": 1.0, "temperature": 1.0, "guidance": 1.0, "guidance_schedule": "linear"}
    | {"clip": 0.0, "last": "noise"},
)


def test_a_changed_default_of_sampling_raises_the_number_that_names_samples():
    """Keys leave defaults out, so samples at an old default would be taken for those at the new one."""
    now = SamplingSpec().model_dump(), HeadSpec().model_dump()
    kept = [{k: values[k] for k in old} for values, old in zip(now, DEFAULTS, strict=True)]
    assert (code_digest.ENGINE, kept) == (1, list(DEFAULTS)), "raise ENGINE, then write both here"


@pytest.mark.parametrize("sections", [{"image": image()}, {"text": TEXT}, {"continuous": VECTORS}])
def test_repeating_adds_each_method_once_on_its_own_seed(sections):
    all_cells, twice = list_cells(**sections), list_cells(**sections, repeat=True)
    repetitions = [c for c in twice if c.role == "again"]
    assert {c.spec["seed"] for c in repetitions} == {3}
    assert len(twice) == len(all_cells) + len(repetitions)
    variants = {(c.spec["method"], str(c.spec["options"]), str(c.spec.get("task"))) for c in all_cells}
    assert len(repetitions) == len(variants)


def test_repeats_number_images_on_and_leave_the_first_run_as_it_is():
    """Plain decoding and the method have three runs, the control one. More repeats change no cell of fewer."""
    once, thrice = list_cells(continuous=VECTORS), list_cells(continuous={**VECTORS, "repeats": 3})
    assert [c.key for c in thrice if not c.is_repetition] == [c.key for c in once]
    runs = [c for c in thrice if c.is_repetition]
    assert {c.role for c in runs} == {"run"}
    assert [(c.spec["method"], c.spec["first"]) for c in runs] == [(m, n) for m in ("mar", "cspd") for n in (4, 8)]
    assert len({c.key for c in thrice}) == len(thrice)
    assert list_keys(continuous={**VECTORS, "repeats": 2}) < {c.key for c in thrice}


def test_shards_of_texts_and_vectors_change_no_key_and_share_jobs():
    sections = {"text": TEXT, "continuous": VECTORS}
    for shards, jobs, expected in ((None, 64, (1, 0)), (4, 64, (4, 1)), (4, 3, (3, 2)), (4, 1, (1, 4))):
        sharded = {name: {**section, "shards": shards, "jobs": jobs} for name, section in sections.items()}
        assert list_keys(**sharded) == list_keys(**sections)
        config = checks.make_config(sharded)
        for kind in ("anysubset", "continuous"):
            assert (paths.jobs(config, kind), paths.shards_of_a_job(config, kind)) == expected


def test_a_method_that_drafts_is_run_on_models_with_a_draft_alone():
    """Such as a draft model by itself, beside draft and verification."""
    models = {}
    for name, parts in (("both", ("target", "draft", "kl")), ("alone", ("target", "kl"))):
        models[name] = {"family": "mar", "source": "hub", "repo": "o/m", "revision": "0" * 40}
        models[name] |= {"files": {p: f"{p}.safetensors" for p in parts}, "sha256": dict.fromkeys(parts, "0" * 64)}
    methods = {(c.spec["model"], c.spec["method"]) for c in list_cells(continuous=VECTORS, models=models)}
    assert methods == {("both", "mar"), ("both", "cspd"), ("alone", "mar")}
    assert checks.describe_unread(checks.make_config({"continuous": VECTORS, "models": models})) == [
        "models.alone names no draft model: cspd is not run on it"
    ]
    with pytest.raises(ConfigError, match="needs draft, for a method that drafts"):
        list_cells(continuous=VECTORS, models={"alone": models["alone"]})


CHEAPER = {"methods": {"mar": [{"iterations": 16}, {"iterations": 8}], "cspd": [{"gamma": 4}]}, "images": 4}


def test_mar_in_few_passes_is_the_baseline_without_plain_decoding():
    """The first of several variants."""
    all_cells = list_cells(continuous=CHEAPER)
    roles = [(c.role, c.spec["method"], c.spec["options"].get("iterations")) for c in all_cells]
    assert roles == [
        ("reference", "mar", 16),
        ("control", "mar", 16),
        ("method", "mar", 8),
        ("method", "cspd", None),
    ]
    assert {find_reference(c, all_cells).key for c in all_cells} == {all_cells[0].key}
    with_plain = CHEAPER["methods"] | {"mar": [{"iterations": 16}, {}]}
    assert [c.spec["options"] for c in list_cells(continuous=CHEAPER | {"methods": with_plain})][1]["iterations"] == 0


def test_a_cell_timed_beside_another_baseline_is_another():
    """And beside plain decoding the specification does not name the baseline."""
    cspd = {}
    for variants in ([{}], [{"iterations": 16}], [{"iterations": 8}]):
        section = {"methods": {"mar": variants, "cspd": [{}]}, "images": 4}
        cspd[str(variants)] = list_cells(continuous=section)[-1]
    assert len({c.key for c in cspd.values()}) == 3
    assert [c.spec.get("baseline", {}).get("iterations") for c in cspd.values()] == [None, 16, 8]


def test_a_baseline_that_is_not_plain_decoding_is_not_tested():
    """Methods are, as ever: against the target's distribution of one token, and on models of known distribution."""
    config = checks.make_config({"continuous": CHEAPER})
    declared = {"continuous": layers.read_layers("continuous")}
    by_role = {c.role + c.spec["method"]: c for c in cells(config, [])}
    tested = {name: layers.select_layers(config, declared, c) for name, c in by_role.items()}
    assert tested == {"referencemar": [], "controlmar": [], "methodmar": [], "methodcspd": ["one_token"]}
    assert [name for name, c in by_role.items() if variant(config, c)] == ["methodcspd"]


def test_an_unread_setting_makes_no_other_cell():
    two = {"sampling": [{"temperature": 0.8}, {"temperature": 0.8, "clip": 4.0}], "methods": {"mar": [{}]}}
    for family, cells_of in (("gmm", 2), ("mar", 4)):
        assert len(list_keys(models={"m": {"family": family}}, continuous=two)) == cells_of


COUNTED = """CLAIM = "lossy"
def wrong(
    model, start, *, noise, n: Annotated[int, Interval(ge=1), Counts("positions", small=3, most="length")] = 16
): ...
"""


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ('CLAIM = "good"', "CLAIM"),
        ('CLAIM = "lossy"\ndef other(): ...', "wrong("),
        ('CLAIM = "lossy"\ndef wrong(model, start, *, noise, n: list = 3): ...', "n: list"),
        ('CLAIM = "lossy"\ndef wrong(model, start, *, noise, n: Literal[open("x")] = 3): ...', "n: "),
        ('CLAIM = "lossy"\ndef wrong(model, start, *, noise, n: int): ...', "n has no type or no default"),
        (COUNTED.replace("positions", "windows"), "n: Counts: 'windows'; allowed: positions, lag"),
        (COUNTED.replace("length", "width"), "n: Counts: 'width'; allowed: length, row, vocab"),
        (COUNTED.replace("small", "tiny"), "n: "),
        (COUNTED.replace("Counts", "Sums"), "n: Sums("),
    ],
)
def test_a_wrong_declaration_is_one_line_that_names_it(source, named, tmp_path, monkeypatch):
    (tmp_path / "discrete").mkdir(parents=True)
    (tmp_path / "discrete/wrong.py").write_text(source)
    monkeypatch.setattr(module_metadata, "DECODERS", tmp_path)
    for cached in (module_metadata.read_outline, options.declaration):  # of another case, which ran before this one
        cached.cache_clear()
    with pytest.raises(ConfigError) as error:
        options.declaration("discrete", "wrong") and options.options("discrete", "wrong", {})
    for cached in (module_metadata.read_outline, options.declaration):
        cached.cache_clear()
    assert "parity_decoders/discrete/wrong.py" in str(error.value)
    assert named in str(error.value)


def test_a_new_decoder_says_itself_what_its_options_count(tmp_path, monkeypatch):
    """An option of any name: capped on small models, bounded by a model's size, and how far long models must reach."""
    (tmp_path / "discrete").mkdir(parents=True)
    (tmp_path / "discrete/newest.py").write_text(COUNTED.replace("wrong", "newest").replace("n:", "horizon:"))
    monkeypatch.setattr(module_metadata, "DECODERS", tmp_path)
    chosen = options.options("discrete", "newest", {})
    assert chosen == {"horizon": 16}
    assert options.cap_small("discrete", "newest", chosen) == {"horizon": 3}
    assert options.list_bounds("discrete", "newest", {"length": 64, "vocab": 8}) == {"horizon": 64}
    assert options.measure_reach("discrete", "newest", chosen) == {"positions": 16, "lag": 0, "steps": 0}


def test_variants_of_any_window_share_an_exact_test():
    config = checks.make_config({"image": image({"ar": [{}], "sjd": [{"window": 8}, {"window": 16}]}), "text": TEXT})
    test_keys = {variant_key(config, v) for c in cells(config, ["a"]) if (v := variant(config, c))}
    assert len(test_keys) == 4  # one each for ar, sjd, sequential and assd


def test_a_lossy_methods_tests_take_a_fifth_of_the_samples():
    config = checks.make_config({"image": image({"ar": [{}], "sjd": [{}], "gsd": [{}]}), "equality": {"n": 100_000}})
    exact, lossy = (c for c in cells(config, ["a"]) if c.spec["method"] in ("sjd", "gsd"))
    for of_cell in (variant, long_variant):
        assert of_cell(config, exact).n // 5 == of_cell(config, lossy).n


def test_long_models_are_as_long_as_the_longest_images():
    """Embedded images have no more tokens than long models always have, so that their tests stay as they are."""
    lumina = {
        "family": "chameleon",
        "source": "hub",
        "repo": "o/n",
        "revision": "0" * 40,
        "files": {"model": ".", "vq": "v"},
        "sha256": {"model": "0" * 64, "vq": "0" * 64},
    }
    longest = {}
    for name, models in (("embedded", {}), ("lumina", {"lumina": lumina})):
        config = checks.make_config({"models": models, "image": image({"ar": [{}], "sjd": [{}]})})
        longest[name] = {long_variant(config, c).longest for c in cells(config, ["a"])}
    assert longest == {"embedded": {0}, "lumina": {48 * 49 + 1}}


def test_the_level_of_tests_reaches_every_job_that_tests():
    keys, settings = set(), []
    for alpha in (0.05, 0.01):
        config = checks.make_config({"image": image({"ar": [{}], "sjd": [{}]}), "equality": {"alpha": alpha}})
        all_cells = cells(config, ["a"])
        pair = variant(config, all_cells[-1]), long_variant(config, all_cells[-1])
        keys.add(cell_test_key(config, *pair))
        declared = {"discrete": layers.read_layers("discrete")}
        settings += [s["alpha"] for c in all_cells for s in layers.layer_settings(config, declared, c).values()]
    assert len(keys) == 2
    assert set(settings) == {0.05, 0.01}
