"""Published any-subset models and judges from folders: on every task, decoded and judged, or refused in one line."""

import json
import shutil

import numpy as np
import pytest
import torch
from parity_decoders.anysubset.assd import assd
from parity_decoders.protocols.anysubset import make_infilling

from parity.base.errors import ConfigError, ParityError
from parity.base.row_noise import batch_noise
from parity.decode.anysubset import record
from parity.experiment import checks
from parity.inputs import tasks
from parity.metrics.text_likelihood import perplexities, reread
from parity.metrics.text_quality import join_program
from parity.models import fetch
from parity.models.anysubset import load
from parity.stand_ins.text import gpt2, xlnet

SETTINGS = {
    "infilling": {"length": 32, "masked": 0.9, "prompt": "scattered"},
    "stories": {"missing": 3},
    "code": {},
    "last_word": {},
    "choice": {},
}
COMMIT = "c" * 40


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Paths of the files of a random text model and its judge in published formats, by the part they are."""
    folder = tmp_path_factory.mktemp("text")
    return {name: str(folder / path) for write in (xlnet, gpt2) for name, path in write(folder).items()}


def make_spec(files, source="files", **fields):
    return {"family": "xlnet", "source": source, "files": files, **fields}


@pytest.fixture(scope="module")
def loaded(files, tmp_path_factory):
    return load.load(fetch.make_manifest("anysubset", "xlnet", make_spec(files), tmp_path_factory.mktemp("m")))


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_task_has_data_for_a_published_tokenizer(loaded, kind):
    """Without `data:` these are texts of the embedded grammar in the tokenizer's pieces."""
    task = tasks.build(kind, {"rows": 3, "data": ""} | SETTINGS[kind], loaded.words)
    for row in range(len(task.ids)):
        n = task.end[row]
        assert task.known[row, :n].any()
        assert not task.known[row, :n].all()
        decode = loaded.words.decode_line if kind == "code" else loaded.words.decode
        hidden = decode(task.tokens[row, :n][~task.known[row, :n]].tolist())
        if kind == "stories":
            assert hidden == task.extra[row]
        if kind == "code":  # a source passes its tests with the hidden line in its place
            scope: dict = {}
            exec(join_program(task.extra[row], "", hidden) + task.extra[row]["tests"], scope)


SOURCE = "def f(a,  b):\n    c = a\tif b\n"


def test_source_keeps_the_marks_of_the_code_model(loaded):
    """As in the authors' code, two spaces become <unk> before three become <pad>; the plain tokenizer loses them."""
    words = loaded.words
    pieces = words.tokenizer.convert_ids_to_tokens(words.encode_code(SOURCE))
    marks = [piece for piece in pieces if piece.startswith("<")]
    assert marks == ["<unk>", "<cls>", "<unk>", "<unk>", "<sep>", "<cls>"]
    assert "<unk>" not in words.tokenizer.convert_ids_to_tokens(words.encode(SOURCE))
    three = words.tokenizer.convert_ids_to_tokens(words.encode_code("   x"))
    assert three[0] == "<unk>"
    assert "<pad>" not in three
    ids_of_marks = words.tokenizer.convert_tokens_to_ids(["<pad>", "<cls>", "<sep>", "<unk>"])
    assert words.decode_code(ids_of_marks) == "   " + "\n" + "\t" + "  "
    for line in ("    c = a\n", "        return d\n", "  x\n"):
        assert words.decode_line(words.encode_code(line)) == line
        assert words.decode(words.encode(line)) != line
    assert words.decode_line(words.encode_code("return d\n")) == "eturn d\n", "the first character, whatever it is"


def test_a_published_pair_decodes_and_is_judged(loaded):
    """The judge's tokenizer has other pieces and no mask."""
    task = tasks.build("infilling", {"rows": 2, "data": ""} | SETTINGS["infilling"], loaded.words)
    assert task.tokens.shape == (2, 32)
    words = loaded.words
    known = map(torch.from_numpy, (task.tokens, task.known))
    start = make_infilling(*known, words.mask, words.vocab, torch.from_numpy(task.end))
    model = loaded.subset(True)
    drawn = record(model, start, assd(model, start, noise=batch_noise(0, task.ids), k=4)).tokens
    assert torch.equal(drawn[task.known], torch.from_numpy(task.tokens)[task.known])
    texts = [words.decode(row.tolist()) for row in drawn]
    judge_words = loaded.judge_words
    assert not loaded.one_vocabulary
    assert judge_words.mask is None
    tokens, end = reread(texts, judge_words)
    perplexity = perplexities(loaded.gpt2, tokens, end, judge_words.mask, judge_words.separator)
    assert np.isfinite(perplexity).all()
    assert (perplexity > 1).all()


WRONG = {
    "a branch": ({"tokenizer": "hub:o/n@nlp"}, r"models.m.files.tokenizer = 'hub:o/n@nlp': allowed: .*hub:owner/name@"),
    "no digest": ({"xlnet": f"hub:o/n@{COMMIT}"}, r"sha256: needs xlnet"),
    "one of two": ({"judge": None}, r"models.m.files = .*: needs judge"),
    "no weights": ({"xlnet": "."}, r"models.m.files.xlnet: .: no config.json"),
    "no tokenizer": ({"tokenizer": "."}, r"models.m.files.tokenizer = '.': needs a tokenizer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_model_is_one_line_before_any_job(files, name):
    change, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        files = {part_name: file for part_name, file in {**files, **change}.items() if file}
        checks.make_config({"models": {"m": make_spec(files)}, "text": {"methods": {"sequential": [{}]}}})


def test_an_unfit_tokenizer_is_one_line(files, tmp_path):
    """It has more pieces than the network has words, no mask, or cannot be read."""
    small = tmp_path / "small"
    shutil.copytree(files["xlnet"], small)
    config = json.loads((small / "config.json").read_text(encoding="utf-8"))
    (small / "config.json").write_text(json.dumps(config | {"vocab_size": 100}), encoding="utf-8")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("<html>", encoding="utf-8")
    for change, message in (
        ({"xlnet": str(small)}, r"has \d+ pieces, the network 100; allowed: the tokenizer it was trained with"),
        ({"tokenizer": files["judge"]}, r"pieces, the network|has no mask; allowed: XLNet's"),
        ({"tokenizer": str(broken)}, r"no tokenizer that can be read"),
    ):
        with pytest.raises(ParityError, match=message):
            fetch.make_manifest("anysubset", "xlnet", make_spec({**files, **change}), tmp_path / "m")


@pytest.mark.parametrize(
    ("component", "key", "value", "message"),
    [
        ("judge", "vocab_size", 9999, r"wte\.weight is \[\d+, \d+\], and its config.json makes it \[9999, "),
        ("xlnet", "d_inner", 7, r"ff\.layer_1\.\w+ is .* its config.json makes it \[7"),
        ("judge", "n_head", 7, r"config\.json: no judge can be built"),
        ("xlnet", "n_layer", 9, "lacks or has too much"),
    ],
)
def test_a_configuration_of_other_weights_is_found_before_decoding(files, tmp_path, component, key, value, message):
    shutil.copytree(files[component], tmp_path / component)
    config = tmp_path / component / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: value}))
    changed = make_spec(files | {component: str(tmp_path / component)})
    with pytest.raises(ParityError, match=message) as error:
        fetch.make_manifest("anysubset", "xlnet", changed, tmp_path / "out")
    assert component in str(error.value)


def test_a_folder_that_is_gone_after_planning_is_one_line(files, tmp_path):
    folder = shutil.copytree(files["xlnet"], tmp_path / "xlnet")
    spec = make_spec({**files, "xlnet": str(folder)})
    model = load.load(fetch.make_manifest("anysubset", "xlnet", spec, tmp_path / "m"))
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(ParityError, match=r"xlnet = .*no such file; it was there when the run was planned"):
        model.subset(True)
