"""A wrong configuration is one line that names the key, the value and what is allowed; random ones are taken or
refused in one line."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from docs.reference import make_schema
from parity.base.errors import ConfigError
from parity.experiment import checks, paths, weights
from parity.experiment.cells import cells, list_text_tasks
from parity.experiment.options import options, tell_renamed
from parity.experiment.prompt_files import read_prompts
from tests.benchmarks.conftest import load_script

ROOT = Path(__file__).parents[2]
METHODS = {"ar": [{}], "jacobi": [{}], "sjd": [{"window": 16}, {"window": 16, "init": "sample_above"}]}
TOP = ("experiment", "models", "networks", "protocol", "seeds", "repeat", "equality", "text", "continuous")
ZERO = "0" * 64


def image(methods=METHODS, **section):
    """Make a configuration with a section on images; keys in TOP are put at the top level."""
    top = {k: section.pop(k) for k in TOP if k in section}
    return {**top, "image": {"methods": methods, **section}}


def assert_refused(words, call, *arguments, **options):
    """Assert that a call raises ConfigError in one line that holds all words."""
    with pytest.raises(ConfigError) as error:
        call(*arguments, **options)
    text = str(error.value)
    assert all(word in text for word in words), text


def add(**methods):
    """Make a configuration on images with these methods beside plain decoding."""
    return image({"ar": [{}], **methods})


def figure(**fields):
    """Make a configuration on images with one figure of a study, some of whose fields are replaced."""
    return image(study=[{"title": "t", "x": "init", "y": ["fid"], **fields}])


def model(**fields):
    """Make a configuration on images that declares a LlamaGen "m" with these fields."""
    return image(models={"m": {"family": "llamagen", **fields}})


def network(name="clip", **fields):
    """Make a configuration on images that declares a network that judges, with these fields."""
    return image(networks={name: {"file": "x", "sha256": ZERO} | fields})


def text(methods=None, **section):
    """Make a configuration with a section on texts, these methods beside plain decoding."""
    return {"text": {"methods": {"sequential": [{}], **(methods or {})}, **section}}


def vectors(methods=None, family="", **section):
    """Make a configuration with a section on vectors, these methods beside plain decoding, on a model of `family`."""
    models = {"models": {family: {"family": family}}} if family else {}
    return {"continuous": {"methods": {"mar": [{}], **(methods or {})}, **section}, **models}


LOCAL = {"family": "llamagen", "source": "files"}
THREE = ("transformer", "vq", "text")
WRONG = [  # a wrong configuration, and words that its line of error must hold
    (image(foo=1), ["image.foo = 1", "unknown key", "prompts"]),
    (add(sjdd=[{}]), ["image.methods.sjdd", "allowed", "jacobi, "]),
    (add(sjd=[{"windows": 3}]), ["image.methods.sjd.0.windows = 3", "window, init, refine"]),
    (image({"ar": [{"window": 4}]}), ["image.methods.ar.0.window = 4", "no options"]),
    (add(sjd=[{"window": 0}]), ["image.methods.sjd.0.window = 0", "greater than or equal to 1"]),
    (add(sjd=[{"window": 257}]), ["image.methods.sjd.0.window = 257", "at most 256 with models.scenes"]),
    (add(sjd=[{"init": "up"}]), ["image.methods.sjd.0.init = 'up'", "repeat_above"]),
    (image(sampling={"temperature": "1e-4"}), ["image.sampling.temperature = '1e-4'", "1.0e-04"]),
    *(
        (raw, [f"sampling{place}.guidance = {value}", "allowed: 1, which is no guidance, or more"])
        for value in (0, 0.5, -1, 0.999)
        for raw, place in (
            (image(sampling={"guidance": value}), ""),
            (image(sampling=[{"top_k": 5}, {"guidance": value}]), ".1"),
            (vectors(sampling={"guidance": value}), ""),
        )
    ),
    (vectors(batch=[1, 0]), ["continuous.batch.1 = 0", "greater than or equal to 1"]),
    (image(sampling={"top_k": -1}), ["image.sampling.top_k = -1", "greater than or equal to 0"]),
    (image(sampling={"top_p": 0}), ["image.sampling.top_p = 0", "greater than 0"]),
    (image(sampling={"temperature": 0}), ["image.sampling.temperature = 0", "greater than 0"]),
    (image(seeds={"methods": -1}), ["seeds.methods = -1", "greater than or equal to 0"]),
    (image(seeds={"again": 2**63}), [f"seeds.again = {2**63}", f"less than or equal to {2**63 - 1}"]),
    (image(seeds={"control": True}), ["seeds.control = True", "a whole number"]),
    (image(seeds={"control": "1"}), ["seeds.control = '1'", "a whole number"]),
    (image(prompts={"sample": -1}), ["image.prompts.sample = -1", "greater than or equal to 0"]),
    (image(equality={"seeds": [1, -1]}), ["equality.seeds.1 = -1", "greater than or equal to 0"]),
    (add(sjd=[{}, {"window": 16}]), ["image.methods.sjd.1 = {'window': 16}", "same variant as image.methods.sjd.0"]),
    (image({"sjd": [{}]}), ["image.methods", "needs ar"]),
    (image({"ar": []}), ["image.methods.ar = []", "no variant"]),
    (image(sampling=[{"top_k": 5}, {"top_k": 5}]), ["image.sampling", "twice"]),
    (image(seeds={"control": 0}), ["seeds", "must differ"]),
    (figure(x="windows"), ["image.study.0.x = 'windows'", "init", "step_compression"]),
    (figure(y=["FID"]), ["image.study.0.y = 'FID'", "allowed", "fid"]),
    (figure(where={"window": 17}), ["image.study.0.where.window = 17", "a value that a variant has (16)"]),
    (figure(where={"window": {1}}), ["where"]),
    (figure(x="window"), ["image.study.0.by = ['method']", "window apart", "init"]),
    (
        image(study=[{"title": "A b", "x": "init", "y": ["fid"]}, {"title": "a B", "x": "init", "y": ["nfe"]}]),
        ["image.study.1.title = 'a B'", "twice"],
    ),
    (image(experiment="../x"), ["experiment = '../x'", "allowed"]),
    (model(source="hub", repo="a/b", revision="main"), ["models.m.revision = 'main'", "allowed"]),
    (model(grid=12), ["models.m.grid = 12", "allowed: 8 or 16"]),
    (
        model(source="files", files={"vq": "x.pt"}, sha256={"vq": "0" * 64}, grid=16),
        ["models.m", "grid is of source 'embedded' alone", "network"],
    ),
    (model(source="files", network={"grid": float("nan")}), ["models.m.network.grid = nan", "allowed"]),
    (model(source="files", files=dict.fromkeys(THREE, "x")), ["models.m", "sha256"]),
    (model(files={"vq": "x"}), ["models.m", "source 'hub' or 'files'"]),
    (image(**{"a\nb": 1}), ["image.a\\nb = 1", "unknown key"]),
    (image(prompts={"file": "a\0b"}), ["image.prompts.file", "control characters"]),
    ({"experiment": "x"}, ["no section", "image, text, continuous"]),
    (image(protocol="sdj"), ["protocol = 'sdj'", "clean, sjd, lantern, torchfid50k"]),
    (network(file="nowhere"), ["networks.clip.file = 'nowhere'", "no such"]),
    (network(sha256="1"), ["networks.clip.sha256"]),
    (network("clap"), ["networks.clap", "clip, inception"]),
    (network(repo="a/b"), ["networks.clip", "repo and revision"]),
    (image(reference="nowhere"), ["image.reference = 'nowhere'", "no such"]),
    (text({"gpt2": [{}]}), ["text.methods.gpt2", "'prefix'"]),
    (text(tasks={"stories": [{"data": "none.csv"}]}), ["text.tasks.stories.0.data = 'none.csv'", "no such file"]),
    (text(tasks={"infilling": [{"length": 8, "masked": 0.01}]}), ["text.tasks.infilling.0", "hides no position"]),
    (text(tasks={"stories": [{"missing": 2}]}), ["text.tasks.stories.0.missing = 2", "allowed: 1 or 3"]),
    (
        text() | {"models": {"m": {**LOCAL, "family": "xlnet", "files": {"xlnet": "x"}}}},
        ["models.m.files", "needs judge"],
    ),
    (vectors(family="mars"), ["models.mars.family = 'mars'", "unknown family", "harmon"]),
    ({"continuous": {"methods": {"cspd": [{}]}}}, ["continuous.methods = ['cspd']", "needs mar"]),
    (vectors({"mar": [{"iterations": 4}]}, "xar"), ["continuous.methods.mar", "iterations = 4 with xar", "0"]),
    (vectors({"cspd": [{"gamma": 65}]}), ["continuous.methods.cspd.0.gamma = 65", "at most 64"]),
    (
        vectors(family="harmon", sampling={"guidance": 2.0}),
        ["continuous.sampling.guidance_schedule = 'linear'", "harmon", "constant"],
    ),
    (vectors(family="xar", sampling={"sampler": "ddim"}), ["continuous.sampling.sampler = 'ddim'", "xar", "'ddpm'"]),
    (vectors({"cspd": [{"verify": "blind"}]}, "gmm"), ["continuous.methods.cspd", "verify = 'blind' with gmm"]),
    (vectors(batch=[4, 4]), ["continuous.batch = [4, 4]", "twice"]),
]


@pytest.mark.parametrize(("raw", "words"), WRONG, ids=[parts[0] for _, parts in WRONG])
def test_wrong_configuration_is_one_clear_line(raw, words):
    assert_refused(words, lambda: cells(checks.make_config(raw), ["a"]))


def test_the_schema_takes_what_we_ship_and_no_unknown_option():
    validator, raw = Draft202012Validator(make_schema()), yaml.safe_load((ROOT / "config.yaml").read_text())
    validator.validate(raw)
    raw["image"]["methods"]["sjd"] = [{"windows": 16}]
    assert not validator.is_valid(raw)


PUBLISHED = sorted((ROOT / "workflow/published").glob("*.csv"))


@pytest.mark.parametrize(
    "file",
    [
        ROOT / "config.yaml",
        *(p for p in sorted((ROOT / "workflow/experiments").glob("*.yaml")) if "source: hub" not in p.read_text()),
    ],
    ids=lambda p: p.name,
)
def test_every_configuration_we_ship_is_valid(file):
    loaded = checks.make_config(yaml.safe_load(file.read_text()))
    checks.check_sources(loaded, PUBLISHED)
    prompts = read_prompts(loaded.image.prompts, ROOT, checks.count_allowed_words(loaded)) if loaded.image else []
    assert cells(loaded, prompts) or list_text_tasks(loaded)


@pytest.mark.parametrize(
    ("paper", "words"),
    [
        ("Teng (SJD), Table 9", ["Teng et al. 2024 (SJD)"]),
        ("Teng et al. 2024 (SJD), Table 99", ["a table of Teng et al. 2024 (SJD)", "Table 9"]),
    ],
)
def test_a_figure_of_an_unknown_paper_is_one_clear_line(paper, words):
    assert_refused(
        [f"image.study.0.paper = {paper!r}", *words],
        checks.check_sources,
        checks.make_config(figure(paper=paper)),
        PUBLISHED,
    )
    checks.check_sources(checks.make_config(figure(paper="Teng et al. 2024 (SJD), Fig. 8, Table 9")), PUBLISHED)


def write_speculator(file: Path, **header) -> None:
    """Write a safetensors file without tensors, whose header holds a configuration."""
    text = json.dumps({"__metadata__": {"config": json.dumps(header)}}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (None, ["has no drafter", "drafter.safetensors is missing", "train_embedded"]),
        (
            {"vocab": 64, "grid": 16, "target": "ab"},
            ["drafter.safetensors was trained for another target", "its vocab is 64", "allowed: 1024"],
        ),
        ({"vocab": 1024, "grid": 16, "target": "cd"}, ["the SHA-256 of its target is cd", "allowed: ab"]),
    ],
)
def test_a_drafter_of_another_target_is_one_clear_line(tmp_path, monkeypatch, header, words):
    monkeypatch.setattr(weights, "EMBEDDED", tmp_path)
    write_speculator(tmp_path / "llamagen.safetensors", vocab=1024, grid=16)
    (tmp_path / "SHA256SUMS").write_text("ab  llamagen.safetensors\n")
    if header is not None:
        write_speculator(tmp_path / "drafter.safetensors", **header)
    methods = ("eagle", "lantern", "lantern_pp", "vvs")
    for method in methods:
        assert_refused(words, checks.make_config, add(**{method: [{}]}))
    write_speculator(tmp_path / "drafter.safetensors", vocab=1024, grid=16, target="ab")
    checks.make_config(add(**{method: [{}] for method in methods}))
    with pytest.raises(ConfigError, match=r"methods.vvs.0.k = 1024: allowed: at most 1023 with models.scenes"):
        checks.make_config(add(vvs=[{"k": 1024}]))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder of links to the package's weights, in place of it, with a list of digests that may be changed."""
    folder = tmp_path / "weights"
    folder.mkdir()
    for file in weights.EMBEDDED.glob("*.safetensors"):
        (folder / file.name).symlink_to(file)
    (folder / "SHA256SUMS").write_bytes((weights.EMBEDDED / "SHA256SUMS").read_bytes())
    monkeypatch.setattr(weights, "EMBEDDED", folder)
    return folder


def test_sizes_of_the_embedded_model(package):
    """Two grids in one experiment have their own revisions and limits; training one leaves the other's revision."""
    spec = {"family": "llamagen"}
    specs = {"scenes": spec, "scenes8": spec | {"grid": 8}}
    methods = {"ar": [{}], "sjd": [{"window": 64}], "zipar": [{}]}
    loaded = checks.make_config(image(methods, models=specs))
    small, large = loaded.models["scenes8"], loaded.models["scenes"]
    revision = weights.compute_revision(large)
    assert revision != weights.compute_revision(small)
    lines = (package / "SHA256SUMS").read_text().splitlines(keepends=True)
    (package / "SHA256SUMS").write_text(
        "".join(line for line in lines if "llamagen8" not in line and "dra" not in line)
    )
    assert weights.compute_revision(large) == revision
    (package / "SHA256SUMS").write_text("".join(lines))
    assert weights.list_option_sizes(small) == {"length": 64, "row": 8, "vocab": 1024, "vocab - 1": 1023}
    assert weights.list_option_sizes(large)["length"] == 256
    assert {c.spec["revision"] for c in cells(loaded, ["a"])} == {weights.compute_revision(m) for m in (small, large)}
    for change in ({"sjd": [{"window": 65}]}, {"zipar": [{"ahead": 9}]}):
        with pytest.raises(ConfigError, match=r"at most (64|8) with models.scenes8"):
            checks.make_config(image({"ar": [{}], **change}, models=specs))
        checks.make_config(add(**change))


def test_what_was_not_trained_is_one_line_that_names_its_target(package):
    small, spec = model(grid=8), add(spec=[{}])
    checks.make_config(small), checks.make_config(spec)
    for file, raw, words in (
        ("llamagen8", small, ["models.m.grid = 8", "snakemake train_embedded"]),
        ("draft", spec, ["methods.spec", "models.scenes", "snakemake train_embedded"]),
    ):
        (package / f"{file}.safetensors").unlink()
        assert_refused([*words, f"{file}.safetensors"], checks.make_config, raw)
    assert checks.make_config(add(sjd=[{}]))


def test_on_and_off_are_words_where_words_are_asked_for():
    """YAML reads them as truth values."""
    config = checks.make_config(image() | yaml.safe_load("refill: on\ncompile: off\ncapture: off"))
    assert (config.refill, config.compile, config.capture) == ("on", "off", "off")
    drafted = checks.make_config(add(vvs=yaml.safe_load("[{schedule: off, truncate: on}]")))
    vvs = [c.spec["options"] for c in cells(drafted, ["a"]) if c.spec["method"] == "vvs"]
    assert {(options["schedule"], options["truncate"]) for options in vvs} == {("off", True)}
    assert checks.make_config(image() | yaml.safe_load("compile: on")).compile == "on"
    with pytest.raises(ConfigError, match=r"compile = .*allowed: 'auto', 'on' or 'off'"):
        checks.make_config(image() | yaml.safe_load("compile: yes please"))


QUOTES = "write it in quotes"


@pytest.mark.parametrize(
    ("yaml_text", "words"),
    [
        ("experiment: 2026-11-27", ["experiment = datetime.date(2026, 11, 27)", "reads it as a date", QUOTES]),
        ("experiment: 2026-11-27 10:00:00", ["experiment = ", "reads it as a time", QUOTES]),
        ("experiment: 007", ["experiment = 7", "reads it as a number", QUOTES]),
        ("experiment: 1.5", ["experiment = 1.5", "reads it as a number", QUOTES]),
        ("experiment: off", ["experiment = False", "yes, no, on, off", QUOTES]),
        ("protocol: yes", ["protocol = True", QUOTES]),
        ("models: {on: {family: llamagen}}", ["models: key = True", "yes, no, on, off", QUOTES]),
        ("models: {12: {family: llamagen}}", ["models: key = 12", "a number", QUOTES]),
        ("models: {null: {family: llamagen}}", ["models: key = None", "nothing", QUOTES]),
        ("models: {m: {family: 2026-01-02}}", ["models.m.family = ", "a date", QUOTES]),
        (f"models: {{m: {{family: xlnet, revision: {'1' * 40}}}}}", ["models.m.revision = 1111", "a number", QUOTES]),
        ("image: {methods: {ar: [{}], 3: [{}]}}", ["image.methods: key = 3", "a number", QUOTES]),
        ("image: {methods: {ar: [{}], sjd: [{no: 3}]}}", ["image.methods.sjd.0: key = False", QUOTES]),
        ("image: {methods: {ar: [{}]}, prompts: {column: 1}}", ["image.prompts.column = 1", "a number", QUOTES]),
        ("1: 2", ["config: key = 1", "a number", QUOTES]),
        ("repeat: y", ["repeat = 'y'", "true or false"]),
        ("repeat: 'yes'", ["repeat = 'yes'", "true or false", "unquoted"]),
        ("equality: {n: 1e5}", ["equality.n = '1e5'", "write 100000, unquoted"]),
        ("image: {methods: {ar: {}}}", ["image.methods.ar = {}", "a list"]),
    ],
)
def test_a_text_that_yaml_reads_as_another_type_is_one_line_that_says_so(yaml_text, words):
    assert_refused(words, checks.make_config, image() | yaml.safe_load(yaml_text))


@pytest.mark.parametrize("name", ["2026-11-27", "007", "off", "null", "1.5"])
def test_in_quotes_it_is_a_name(name):
    text = f"experiment: '{name}'\nmodels: {{'{name}': {{family: llamagen}}}}"
    config = checks.make_config(image() | yaml.safe_load(text))
    assert (config.experiment, *config.models) == (name, name)


def make_bomb(levels):
    """Make nested lists of 9 ** levels entries that share their parts, as read from a few hundred bytes of YAML."""
    lines = [f"a0: &a0 [{', '.join('x' * 9)}]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return yaml.safe_load("\n".join(lines))[f"a{levels - 1}"]


@pytest.mark.parametrize("value", [make_bomb(12), yaml.safe_load("&i {models: *i}"), "x" * 10**6])
def test_a_value_larger_than_memory_is_one_short_line(value):
    with pytest.raises(ConfigError) as error:
        checks.make_config({"image": {"methods": {"ar": [{}]}}, "seeds": value})
    assert "seeds" in str(error.value)
    assert len(str(error.value)) < 600


@pytest.fixture(scope="module")
def fuzz():
    """The module benchmarks/fuzz.py."""
    return load_script("fuzz.py")


def test_hundreds_of_configurations(fuzz):
    bases = fuzz.load_experiments()
    outcomes = {number: fuzz.try_configuration(fuzz.make_case(number, 0, bases)) for number in range(300)}
    assert {n: outcome for n, outcome in outcomes.items() if outcome not in ("taken", "refused")} == {}
    assert set(outcomes.values()) == {"taken", "refused"}


def test_a_traceback_is_found(fuzz, monkeypatch):
    monkeypatch.setattr(fuzz, "plan_run", lambda raw: raw["x"])
    assert fuzz.try_configuration({}) == "KeyError"


@pytest.fixture
def config(tmp_path):
    """A function that makes a configuration on images with a published LlamaGen, or the embedded one, and a CLIP."""
    for name in ("t", "v", "c", "five"):
        (tmp_path / name).write_bytes(b"weights")

    def make(published=True, image=None, **top):
        names = {"transformer": "t", "vq": "v", "text": "five"}
        files = {component: str(tmp_path / name) for component, name in names.items()}
        model = {"family": "llamagen"}
        if published:
            model |= {"source": "files", "files": files, "sha256": dict.fromkeys(files, ZERO)}
        clip = {"clip": {"file": str(tmp_path / "c"), "sha256": ZERO}}
        section = {"methods": {"ar": [{}]}, **(image or {})}
        return {"models": {"m": model}, "image": section, "networks": clip, **top}

    return make


def test_a_protocol_takes_its_own_clip(config):
    wrong = config(protocol="sjd")
    wrong["networks"]["clip"]["architecture"] = "ViT-B-16"  # the same network except for its activation
    with pytest.raises(ConfigError, match=r"networks.clip.architecture = 'ViT-B-16': .* allowed: 'ViT-B-16-quickgelu'"):
        checks.make_config(wrong)
    wrong["networks"]["clip"]["architecture"] = "ViT-B-16-quickgelu"
    assert checks.make_config(wrong).protocol == "sjd"


def test_networks_judge_published_models_alone(config, tmp_path):
    published, ours = (checks.make_config(config(p, {"reference": str(tmp_path / "five")})) for p in (True, False))
    (cell, *_), (our_cell, *_) = (cells(c, ["a"]) for c in (published, ours))
    assert len(paths.judges(published, cell)) == 1
    assert paths.is_judged(published, cell)
    assert not paths.judges(ours, our_cell)
    assert not any("networks" in name for name in paths.manifests(ours))
    assert paths.reference(published, ["a"], cell).count("/") < paths.reference(ours, ["a"], our_cell).count("/")
    another = published.model_copy(update={"protocol": "sjd"})
    assert paths.reference(published, ["a"], cell) != paths.reference(another, ["a"], cell)
    assert paths.reference_images(published, "discrete", True) == (str(tmp_path / "five"), 0)
    limited = checks.make_config(config(image={"reference": str(tmp_path / "five"), "reference_images": 64}))
    assert paths.reference_images(limited, "discrete", True)[1] == 64


@pytest.mark.parametrize(
    "key",
    ["image.prompts.file", "image.reference", "networks.clip.file", "models.m.files.vq", "text.tasks.stories.0.data"],
)
@pytest.mark.parametrize("in_folder", [False, True])
def test_a_link_that_leads_nowhere_is_one_line_that_says_so(config, tmp_path, monkeypatch, key, in_folder):
    """As git-annex leaves them before the content is there; the link may be a folder above the file."""
    monkeypatch.chdir(tmp_path)
    Path("gone").symlink_to(".git/annex/objects/x")
    name = "gone/x.txt" if in_folder else "gone"
    raw = config()
    raw["text"] = {"methods": {"sequential": [{}]}, "tasks": {"stories": [{"data": ""}]}}
    *parents, last = key.split(".")
    holder = raw
    for part in parents:
        holder = holder[int(part)] if isinstance(holder, list) else holder.setdefault(part, {})
    holder[last] = name
    if last == "file" and "prompts" in key:
        holder["format"] = "lines"
        call = lambda: read_prompts(checks.make_config({"image": raw["image"]}).image.prompts)  # noqa: E731
    else:
        call = lambda: checks.make_config(raw)  # noqa: E731
    assert_refused(
        [f"{key} = '{name}'", "a link to '.git/annex/objects/x', which is not there", "annex get gone"], call
    )
    Path("gone").unlink()
    with pytest.raises(ConfigError, match=r"no such (folder or )?file"):
        call()


@pytest.mark.parametrize(
    ("kind", "method", "old", "new"),
    [
        ("discrete", "sjd_pp", {"law": "drawn"}, {"store": "drawn"}),
        ("discrete", "sjd_vp", {"law": "target"}, {"store": "target"}),
        ("continuous", "coupled", {"law": "path"}, {"goal": "path"}),
    ],
)
def test_an_option_s_old_name_is_read_and_said(kind, method, old, new, capsys):
    tell_renamed.cache_clear()
    assert options(kind, method, old) == options(kind, method, new)
    assert capsys.readouterr().err == f"note: option law of {method} is called {next(iter(new))} now\n"
    with pytest.raises(ConfigError, match="law"):
        options("discrete", "sjd", {"law": "drawn"})
