"""`parity train arm`: an any-subset model of text, trained on files, resumed, written for transformers, and decoded."""

import json
import re
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import parity
from parity.base.errors import ParityError
from parity.embedded import stories
from parity.models.anysubset.vocabulary import Pieces, read_pieces
from parity.models.anysubset.xlnet import xlnet
from parity.stand_ins import write
from parity.train import arm, joint, loop, texts
from tests.train.conftest import Killed, kill_at, run

TINY = ("--from", "scratch", "--layers", 1, "--width", 16, "--heads", 2)
FEW = ("--steps", 6, "--batch", 4, "--length", 16, "--every", 3, "--device", "cpu")


@pytest.fixture
def corpus() -> Path:
    """A file of twenty documents of the embedded grammar."""
    file = Path("corpus.jsonl")
    file.write_text("".join(json.dumps({"text": " ".join(stories.draw_document(i))}) + "\n" for i in range(20)))
    return file


def read_weights(out: str) -> dict[str, torch.Tensor]:
    return load_file(Path(out, "xlnet/model.safetensors"))


def are_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_killed_training_goes_on_and_its_network_decodes(corpus, monkeypatch):
    """The weights are those of an undisturbed run, and not of another seed; `assd` decodes them from the experiment
    that was written, and a judge is asked for only where it is needed."""
    monkeypatch.setattr(loop, "fit", partial(loop.fit, saved_every=0))
    write("gpt2", Path("judge"))
    judge = ("--judge", "judge/gpt2-large")
    run(monkeypatch, "arm", corpus, *TINY, *FEW, *judge, "--out", "whole")
    with monkeypatch.context() as patch:
        kill_at(patch, joint.JointLesson, "compute_loss", 4)
        with pytest.raises(Killed):
            run(patch, "arm", corpus, *TINY, *FEW, "--out", "killed")
    assert not Path("killed/xlnet").exists()
    with pytest.raises(ParityError, match=r"of a run with scheme = .*low.* go on with that, or delete it"):
        run(monkeypatch, "arm", corpus, *TINY, *FEW, "--out", "killed", "--low", 0.5)
    run(monkeypatch, "arm", corpus, *TINY, *FEW, "--out", "killed")
    run(monkeypatch, "arm", corpus, *TINY, *FEW, "--out", "other", "--seed", 1)
    whole, killed, other = (read_weights(out) for out in ("whole", "killed", "other"))
    assert are_equal(whole, killed)
    assert not are_equal(whole, other)
    assert not Path("killed/arm.pt").exists()
    log = json.loads(Path("whole/arm.json").read_text())["log"]
    assert [row["step"] for row in log if "held_out" in row and "step" in row] == [3, 6]
    assert "# any-subset XLNet" in Path("whole/arm.md").read_text()
    model = parity.load("arm", Path("whole/arm.yaml"))
    (text,) = model.generate(["on monday ___ ___ to make a ___ ."], method="assd", seed=1)
    assert text.text.startswith("on monday")
    assert "___" not in text.text


def test_a_published_folder_is_fine_tuned_on_code_and_goes_on_with_its_dropout(monkeypatch):
    """Of XLNet's kind, with dropout: two runs are equal, one without it differs, and the tokenizer is written too."""
    monkeypatch.setattr(loop, "fit", partial(loop.fit, saved_every=0))
    write("xlnet", Path("."))
    for out, dropout in (("with", 0.5), ("without", 0.0)):
        folder = Path(f"{out}-model")
        shutil.copytree("ASARM", folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"dropout": dropout}))
    Path("source").mkdir()
    for i in range(8):
        (Path("source") / f"{i}.py").write_text(stories.join_source(stories.draw_snippet(i).lines[0]) * 4)
    flags = ("source", "--code", "--tokenizer", "xlnet-base-cased", *FEW)
    run(monkeypatch, "arm", *flags, "--from", "with-model", "--out", "whole")
    with monkeypatch.context() as patch:
        kill_at(patch, joint.JointLesson, "compute_loss", 4)
        with pytest.raises(Killed):
            run(patch, "arm", *flags, "--from", "with-model", "--out", "killed")
    run(monkeypatch, "arm", *flags, "--from", "with-model", "--out", "killed")
    run(monkeypatch, "arm", *flags, "--from", "without-model", "--out", "without")
    assert are_equal(read_weights("whole"), read_weights("killed"))
    assert not are_equal(read_weights("whole"), read_weights("without"))
    pieces = read_pieces(Path("whole/xlnet"))
    assert pieces.marked
    assert pieces.mask == read_pieces(Path("xlnet-base-cased")).mask


def test_training_lowers_the_loss_of_held_out_rows(corpus, monkeypatch):
    fast = ("--steps", 60, "--rate", 0.02, "--every", 30, "--batch", 8, "--length", 16, "--device", "cpu")
    run(monkeypatch, "arm", corpus, *TINY, *fast, "--out", "o")
    log = [row["held_out"] for row in json.loads(Path("o/arm.json").read_text())["log"] if "step" in row]
    uniform = np.log(len(read_pieces(Path("o/xlnet")).tokenizer))
    assert log[-1] < 0.9 * uniform


def test_rows_are_the_documents_with_separators_between_them(corpus):
    documents = list(texts.read_documents([corpus]))
    pieces = Pieces(texts.make_word_tokenizer(texts.count_words(documents)))
    rows = texts.pack(documents, pieces.encode, pieces.separator, 16)
    words = " ".join(f"{document} {stories.SEPARATOR}" for document in documents).split()
    assert pieces.decode(rows.flatten().tolist()).split() == words[: rows.size]
    assert 0 <= len(words) - rows.size < 16
    assert pieces.encode("on xylophone")[1] == pieces.tokenizer.unk_token_id


def test_a_batch_in_parts_has_the_gradient_of_the_whole(monkeypatch):
    """In float32: where the processor has bfloat16, parts round otherwise than the whole."""
    monkeypatch.setattr(joint, "reduce_precision", lambda device: nullcontext())
    gradients = []
    for at_once in (8, 3, 8):
        torch.manual_seed(0)
        net = xlnet(20, 16, 1, 2)
        rows = np.random.default_rng(len(gradients) // 2).integers(1, 20, (30, 12))
        lesson = joint.JointLesson(net, rows, torch.ones(1, 12).long(), joint.Scheme(), 8, at_once)
        lesson.compute_loss(0, np.random.default_rng(5))[0].backward()
        gradients.append(net.transformer.word_embedding.weight.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert not torch.allclose(gradients[0], gradients[2])  # of other rows


def test_schedules_are_the_papers():
    """E.2: from 15 % to 90 to 99 % in 5,000 of 75,000 steps, the lattice alone, a rate of 1e-4 that falls in a line.
    With fewer steps, warm-ups take the same share of them, unless they are given."""
    schedule = arm.make_schedule("text", {})
    assert (schedule.steps, schedule.batch, schedule.rate, schedule.permutations) == (75_000, 320, 1e-4, 0)
    scheme = joint.Scheme(schedule.start, schedule.low, schedule.high, schedule.masking_warmup, 0)
    rates = {step: joint.draw_masking_rates(scheme, step, 4000, np.random.default_rng(0)) for step in (0, 2500, 5000)}
    for step, low, high in ((0, 0.15, 0.15), (2500, 0.525, 0.57), (5000, 0.90, 0.99)):
        assert np.allclose([rates[step].min(), rates[step].max()], [low, high], atol=1e-3)
    assert arm.make_schedule("code", {}).masking_warmup == 20_000
    assert arm.make_schedule("text", {"steps": 150}).warmup == 10
    assert arm.make_schedule("text", {"steps": 150, "warmup": 3}).warmup == 3
    line = [loop.compute_rate(step, 100, 10, 1.0, linear=True) for step in (0, 9, 55, 100)]
    assert np.allclose(line, [0.1, 1, 0.5, 0])
    assert not np.isclose(loop.compute_rate(100, 100, 10, 1.0), 0)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("corpus.jsonl", *TINY, "--low", "0.995"), r"--low 0\.995: allowed: at most --high, 0\.99"),
        (("corpus.jsonl", *TINY, "--rate", "0"), r"--rate = 0\.0: .*"),
        (("corpus.jsonl", *TINY, "--decay", "steep"), r"--decay = 'steep': .*linear"),
        (("corpus.jsonl", *TINY, "--batch", "0"), "--batch = 0: "),
        (("corpus.jsonl", *TINY, "--at-once", "0"), "--at-once 0: allowed: above 0"),
        (("corpus.jsonl", *TINY, "--length", "9999"), "text: too short for a row of 9999 tokens; allowed: more text"),
        (("absent.txt", *TINY), r"text absent\.txt: no file; allowed: files, folders"),
        (("bad.jsonl", *TINY), r"bad\.jsonl, line 2: .* has no text; allowed: "),
        (("latin.txt", *TINY), r"latin\.txt: not UTF-8 at byte 1"),
        (
            ("corpus.jsonl", "--from", "nowhere"),
            "--from nowhere: no config.json; allowed: a folder of XLNetLMHeadModel",
        ),
        (("corpus.jsonl", "--from", "embedded", "--width", "8"), "--width: allowed with --from scratch alone"),
        (("corpus.jsonl", "--from", "scratch", "--width", "18"), "--width 18: allowed: a multiple of twice --heads 4"),
        (("embedded", "--from", "scratch", "--code"), "text embedded: allowed: alone, without --code"),
        (("corpus.jsonl", "--from", "bert"), "--from bert: model_type = 'bert'; allowed: 'xlnet'"),
    ],
)
def test_bad_input_is_one_clear_line(flags, line, corpus, monkeypatch):
    Path("bad.jsonl").write_text('{"text": "a b"}\n{"title": "c"}\n')
    Path("latin.txt").write_bytes(b"a\xe9b")
    Path("bert").mkdir()
    Path("bert/config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ParityError) as caught:
        run(monkeypatch, "arm", *flags, "--device", "cpu")
    assert re.search(line, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
