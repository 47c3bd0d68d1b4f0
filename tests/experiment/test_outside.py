"""Decoders of others, of a file or an installed package, run as ours do; what is wrong with one is said in a line."""

import sys

import pytest
import torch

from parity.base.errors import ConfigError, ParityError
from parity.certify import certify
from parity.experiment import checks, code_digest, decoder_sources, decoders, module_metadata, options
from parity.experiment.cells import cells
from parity.experiment.decoders import import_decoder
from parity.generate import load
from parity.methods.__main__ import list_rows
from parity.new import __main__ as new
from parity.train import own
from parity.verify import verify
from tests import tables

CACHED = (
    decoder_sources.list_installed, module_metadata.parse_outline, options.declaration, options.make_option_schema,
    code_digest.find_file, code_digest.digest_source, code_digest.digest_module,
    code_digest.digest,
)  # fmt: skip
PLAIN, DRAFTED = (new.fill(template, name="mine") for template in ("discrete.py", "drafted.py"))
FILE = "mine.py:mine"
PROMPTS = ["a large red circle on a blue background", "a small green square on a yellow background"]
IMAGE = {"prompts": {"file": "prompts.txt", "limit": 2, "shards": 1}}


def forget():
    """Forget all that was read of modules, as a new process has."""
    for cached in CACHED:
        cached.cache_clear()
    for name in [name for name in sys.modules if name.startswith("decoder_") or name in ("mine", "parts")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, with two prompts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    forget()
    yield tmp_path
    forget()


def make_config(methods):
    return checks.make_config({"image": {**IMAGE, "methods": {"ar": [{}], **methods}}})


def list_cells(methods):
    """List the cells of an experiment by the name of their method, without the controls."""
    config = make_config(methods)
    return {c.spec["method"]: c for c in cells(config, ["a", "b"]) if c.role in ("reference", "method")}


def refuse(methods):
    """Return the line by which a configuration is refused."""
    with pytest.raises(ConfigError) as error:
        make_config(methods)
    assert "\n" not in str(error.value)
    return str(error.value)


def install(folder, package, name, value, source=PLAIN):
    """Install a package as pip does: its module `mine` and the entry point of a decoder."""
    site = folder / package
    site.mkdir()
    (site / f"{value.partition(':')[0]}.py").write_text(source)
    (site / f"{package}-1.0.dist-info").mkdir()
    (site / f"{package}-1.0.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (site / f"{package}-1.0.dist-info/entry_points.txt").write_text(f"[parity.decoders]\n{name} = {value}\n")
    return site


def test_the_same_code_draws_the_same_tokens_wherever_it_is(folder, monkeypatch):
    """In our tree, in a file and in an installed package."""
    (folder / "mine.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(install(folder, "others", "theirs", "mine:mine"))
    forget()
    table = tables.make_table(4, 6)
    drawn = [
        tables.decode_table(import_decoder("discrete", name), table, 6, 40).tokens for name in ("ar", FILE, "theirs")
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
    (folder / "mine.py").write_text(PLAIN.replace('"sample"', '"draft"'))
    forget()
    assert not torch.equal(drawn[0], tables.decode_table(import_decoder("discrete", FILE), table, 6, 40).tokens)


def test_a_cell_of_a_file_has_a_key_of_its_code_and_a_name_for_a_folder(folder):
    (folder / "mine.py").write_text(PLAIN)
    before = list_cells({FILE: [{}], "sjd": [{}]})
    assert before[FILE].name == f"scenes/mine-{before[FILE].key}"
    for edit, changes in ((PLAIN.replace("say here", "or here"), False), (PLAIN + "\nMORE = 1\n", True)):
        (folder / "mine.py").write_text(edit)
        forget()
        after = list_cells({FILE: [{}], "sjd": [{}]})
        assert (after[FILE].key != before[FILE].key) is changes
        assert all(after[name].key == before[name].key for name in ("ar", "sjd"))


def test_an_edit_of_a_module_installed_beside_the_decoder_makes_other_cells(folder, monkeypatch):
    """Of a package of single modules, as of one that is a folder."""
    site = install(folder, "others", "theirs", "mine:mine", f"import layers\n{PLAIN}")
    (site / "layers.py").write_text("WIDTH = 8\n")
    (site / "others-1.0.dist-info/RECORD").write_text("mine.py,,\nlayers.py,,\nothers-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(site)
    code_digest.ROOTS.pop("mine", None)
    keys = []
    for text in ("WIDTH = 8\n", "WIDTH = 8  # of a layer\n", "WIDTH = 16\n"):
        (site / "layers.py").write_text(text)
        forget()
        keys.append(list_cells({"theirs": [{}]})["theirs"].key)
    assert keys[0] == keys[1] != keys[2]


WRONG = {
    "no such file": ({}, "missing.py:mine", "missing.py: no such file"),
    "no function": ({"mine.py": PLAIN}, "mine.py:other", "has no function other(model, start, *, noise, ...)"),
    "a name": ({"mine.py": PLAIN}, "mine.py:Other", "'Other': allowed: a name of lower-case letters"),
    "no claim": ({"mine.py": PLAIN.replace("CLAIM", "CLAIMS")}, FILE, "mine.py.CLAIM: required"),
    "another kind": ({"mine.py": PLAIN + '\nKIND = "continuous"\n'}, FILE, "KIND = 'continuous'; allowed here"),
    "arguments": ({"mine.py": PLAIN.replace("start, *,", "*,")}, FILE, "mine(model, *, noise): allowed: mine("),
    "an option": ({"mine.py": PLAIN.replace("noise)", "noise, k)")}, FILE, "k has no type or no default"),
    "no Python": ({"mine.py": "def mine("}, FILE, "mine.py: no Python"),
    "no class": ({"mine.py": PLAIN + '\nDRAFT = "Guess"\n'}, FILE, "DRAFT = 'Guess': allowed: a class of this file"),
    "no draft": ({"mine.py": DRAFTED.replace("    draft,\n", "")}, FILE, "*, noise, draft, ...)"),
    "unknown": ({}, "mime", "unknown method; allowed: ar, "),
}  # fmt: skip


@pytest.mark.parametrize(("files", "method", "problem"), WRONG.values(), ids=WRONG)
def test_a_wrong_decoder_is_one_line_that_names_its_key(folder, files, method, problem):
    for name, text in files.items():
        (folder / name).write_text(text)
    line = refuse({method: [{}]})
    assert line.startswith(f"image.methods.{method}: ")
    assert problem in line


def test_one_name_for_two_decoders_is_refused(folder, monkeypatch):
    """In two files, in two packages, and of a package and Parity."""
    for name in ("mine.py", "yours.py"):
        (folder / name).write_text(PLAIN)
    assert "image.methods.yours.py:mine: the name of mine.py:mine too" in refuse({FILE: [{}], "yours.py:mine": [{}]})
    for package, name in (("one", "theirs"), ("two", "theirs"), ("three", "sjd")):
        monkeypatch.syspath_prepend(install(folder, package, name, "mine:mine"))
    forget()
    line = refuse({"theirs": [{}]})
    assert "several packages" in line
    assert "one 1.0" in line
    assert "two 1.0" in line
    assert "parity, three 1.0" in refuse({"sjd": [{}]})
    rows, problems = list_rows([], ["discrete"])
    assert {problem.partition(":")[0] for problem in problems} == {"theirs", "sjd"}
    assert "mtj" in [row[0] for row in rows]


def test_the_list_says_what_each_decoder_claims_and_needs(folder, monkeypatch):
    (folder / "mine.py").write_text(DRAFTED)
    monkeypatch.syspath_prepend(install(folder, "others", "theirs", "mine:mine"))
    forget()
    rows, problems = list_rows([FILE], ["discrete", "anysubset", "continuous"])
    of = {row[0]: row[1:] for row in rows}
    assert not problems
    assert of[FILE] == ("discrete", "lossless", "its own Neighbours, trained", "mine.py")
    assert of["theirs"] == ("discrete", "lossless", "-", "others 1.0")
    assert of["mtj_heads"][2:] == ("heads", "parity")
    assert of["assd"][0] == "anysubset"


def test_a_file_is_found_beside_the_workflow_too(folder):
    raw = {"image": {"methods": {FILE: [{}], "here.py:mine": [{}]}}}
    (folder / "here.py").touch()
    found = checks.resolve_paths(raw, lambda name: f"far/{name}")["image"]["methods"]
    assert set(found) == {f"far/{FILE}", "here.py:mine"}


# --- A draft network of one's own

SMALL = DRAFTED.replace("DRAFT_ROWS = 256", "DRAFT_ROWS = 8").replace("range(200)", "range(40)")
HASTY = ("& ~bonus", "| ~bonus")  # all drafts are accepted


def test_a_drafted_decoder_is_certified_and_one_that_accepts_all_is_lossy(folder):
    """On models of known distribution, for which the network has new weights."""
    for name, source, verdict in (("right", DRAFTED, "certified"), ("wrong", DRAFTED.replace(*HASTY), "lossy")):
        (folder / f"{name}.py").write_text(source.replace("mine", name))
        decoder = import_decoder("discrete", f"{name}.py:{name}")
        settings = {"n": 3000, "models": "small", "margin": 0.1, "claim": "lossy"}
        assert certify(decoder, **settings, gamma=2).verdict.kind == verdict


CONFIG = """
models: {scenes: {family: llamagen, grid: 8}}
image:
  prompts: {file: prompts.txt, limit: 2, shards: 1}
  methods: {ar: [{}], "mine.py:mine": [{}], "hasty.py:hasty": [{}]}
"""


def test_a_draft_network_is_trained_and_saves_passes(folder, monkeypatch):
    """On the embedded model: without its file the decoder is refused; trained, it needs fewer passes than plain
    decoding. Its tokens pass `parity verify`, those of a copy that accepts all drafts do not."""
    (folder / "mine.py").write_text(SMALL)
    (folder / "hasty.py").write_text(SMALL.replace("mine", "hasty").replace(*HASTY))
    (folder / "config.yaml").write_text(CONFIG)
    generator = load("", folder / "config.yaml", "", "cpu")
    with pytest.raises(ParityError, match="mine: its draft network is not trained"):
        generator.generate(PROMPTS, FILE)
    files = {c.spec["method"]: c.spec.get("own_draft", "") for c in cells(generator.config, [])}
    for method in (FILE, "hasty.py:hasty"):
        monkeypatch.setattr("sys.argv", ["", "--method", method, "--device", "cpu"])
        own.main()
        assert (folder / files[method]).stat().st_size > 1000
    passes = [made.passes for made in generator.generate(PROMPTS, FILE)]
    assert sum(passes) < 0.95 * 2 * 64, passes
    counts = decoders.count_draft_parameters()
    assert counts and min(counts.values()) > 100, counts
    assert not verify(generator, PROMPTS, FILE, n=8).is_fault
    assert verify(generator, PROMPTS, "hasty.py:hasty", n=8).is_fault
