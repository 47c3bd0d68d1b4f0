"""Published any-subset models and judges, by folder and by repository, through the user's path: on every task, decoded,
judged; and what does not fit as one line."""

import json
import shutil

import numpy as np
import pytest
import torch
from parity_decoders.anysubset.assd import assd
from parity_decoders.anysubset.sequential import sequential
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
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    return {part: str(folder / path) for write in (xlnet, gpt2) for part, path in write(folder).items()}


def spec(files, source="files", **more):
    """A model of the configuration."""
    return {"family": "xlnet", "source": source, "files": files, **more}


@pytest.fixture(scope="module")
def loaded(given, tmp_path_factory):
    return load.load(fetch.make_manifest("anysubset", "xlnet", spec(given), tmp_path_factory.mktemp("m")))


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_task_has_its_own_data_for_a_published_tokenizer(loaded, kind):
    """Without `data:`, texts of the embedded grammar in its pieces; what is hidden is what the task says."""
    task = tasks.build(kind, {"rows": 3, "data": ""} | SETTINGS[kind], loaded.words)
    for row in range(len(task.ids)):
        n = task.end[row]
        assert task.known[row, :n].any()
        assert not task.known[row, :n].all()
        decode = loaded.words.decode_line if kind == "code" else loaded.words.decode
        hidden = decode(task.tokens[row, :n][~task.known[row, :n]].tolist())
        if kind == "stories":
            assert hidden == task.extra[row]
        if kind == "code":  # the source with the hidden line in its place passes its tests
            scope: dict = {}
            exec(join_program(task.extra[row], "", hidden) + task.extra[row]["tests"], scope)


SOURCE = "def f(a,  b):\n    c = a\tif b\n"


def test_source_is_read_and_written_with_the_marks_that_the_code_model_was_trained_with(loaded):
    """As the authors' own code does it: two spaces become <unk>, and only then three <pad>; the tokenizer's own way
    forgets both, and line ends."""
    words = loaded.words
    spoken = words.tokenizer.convert_ids_to_tokens(words.encode_code(SOURCE))
    marks = [piece for piece in spoken if piece.startswith("<")]
    assert marks == ["<unk>", "<cls>", "<unk>", "<unk>", "<sep>", "<cls>"]
    assert "<unk>" not in words.tokenizer.convert_ids_to_tokens(words.encode(SOURCE))
    three = words.tokenizer.convert_ids_to_tokens(words.encode_code("   x"))
    assert three[0] == "<unk>"
    assert "<pad>" not in three
    marked = words.tokenizer.convert_tokens_to_ids(["<pad>", "<cls>", "<sep>", "<unk>"])
    assert words.decode_code(marked) == "   " + "\n" + "\t" + "  "
    for line in ("    c = a\n", "        return d\n", "  x\n"):
        assert words.decode_line(words.encode_code(line)) == line
        assert words.decode(words.encode(line)) != line
    assert words.decode_line(words.encode_code("return d\n")) == "eturn d\n", "the first character, whatever it is"


def test_a_tokenizer_without_the_marks_reads_source_as_it_is(loaded):
    other = loaded.judge_words
    assert not other.marked
    assert other.encode_code(SOURCE) == other.encode(SOURCE)
    assert other.decode_line(other.encode_code(SOURCE)) == other.decode_code(other.encode(SOURCE)) == SOURCE


def test_a_published_pair_decodes_and_is_judged(loaded):
    """By transformers' forward and by ours with keys and values kept: the same tokens; perplexities are finite though
    the judge's tokenizer has no mask and other pieces."""
    task = tasks.build("infilling", {"rows": 2, "data": ""} | SETTINGS["infilling"], loaded.words)
    assert task.tokens.shape == (2, 32)
    start = make_infilling(*map(torch.from_numpy, (task.tokens, task.known)), loaded.words.mask, loaded.words.vocab,
                      torch.from_numpy(task.end))  # fmt: skip
    drawn = {}
    for decoder, options in ((sequential, {}), (assd, {"k": 4})):
        both = [record(m := loaded.subset(cache), start, decoder(m, start, noise=batch_noise(0, task.ids), **options))
                for cache in (True, False)]  # fmt: skip
        assert torch.equal(both[0].tokens, both[1].tokens)
        assert torch.equal(both[0].tokens[task.known], torch.from_numpy(task.tokens)[task.known])
        drawn[decoder] = both[0].tokens
    texts = [loaded.words.decode(row.tolist()) for row in drawn[assd]]
    words = loaded.judge_words
    assert not loaded.one_vocabulary
    assert words.mask is None
    tokens, end = reread(texts, words)
    perplexity = perplexities(loaded.gpt2, tokens, end, words.mask, words.separator)
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
def test_a_wrong_model_is_one_line_before_any_job(given, name):
    change, message = WRONG[name]
    with pytest.raises(ConfigError, match=message) as error:
        files = {part: file for part, file in {**given, **change}.items() if file}
        checks.load({"models": {"m": spec(files)}, "text": {"methods": {"sequential": [{}]}}})
    assert "\n" not in str(error.value)


def test_a_tokenizer_that_does_not_fit_is_one_line(given, tmp_path):
    """More pieces than the network has words; no mask; none that can be read."""
    small = tmp_path / "small"
    shutil.copytree(given["xlnet"], small)
    config = json.loads((small / "config.json").read_text(encoding="utf-8"))
    (small / "config.json").write_text(json.dumps(config | {"vocab_size": 100}), encoding="utf-8")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("<html>", encoding="utf-8")
    for change, message in (
        ({"xlnet": str(small)}, r"has \d+ pieces, the network 100; allowed: the tokenizer it was trained with"),
        ({"tokenizer": given["judge"]}, r"pieces, the network|has no mask; allowed: XLNet's"),
        ({"tokenizer": str(broken)}, r"no tokenizer that can be read"),
    ):
        with pytest.raises(ParityError, match=message) as error:
            fetch.make_manifest("anysubset", "xlnet", spec({**given, **change}), tmp_path / "m")
        assert "\n" not in str(error.value)


def test_a_folder_that_is_gone_after_planning_is_one_line(given, tmp_path):
    folder = shutil.copytree(given["xlnet"], tmp_path / "xlnet")
    model = load.load(fetch.make_manifest("anysubset", "xlnet", spec({**given, "xlnet": str(folder)}), tmp_path / "m"))
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(ParityError, match=r"xlnet = .*no such file; it was there when the run was planned"):
        model.subset(True)
