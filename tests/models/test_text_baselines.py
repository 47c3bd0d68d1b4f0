"""Baselines beside any-subset models: networks of their own families, on random weights in published formats."""

import numpy as np
import pytest
import torch
from parity_decoders.anysubset.diffusion import diffusion
from parity_decoders.anysubset.sequential import sequential
from parity_decoders.protocols.anysubset import make_infilling

from parity.base.errors import ConfigError, ParityError
from parity.base.row_noise import batch_noise
from parity.decode.anysubset import record
from parity.experiment import checks
from parity.experiment.cells import cells
from parity.inputs import tasks
from parity.metrics.text_likelihood import joint_probs, log_probability
from parity.models import fetch
from parity.models.anysubset import load, mdlm
from parity.models.anysubset.causal import compute_log_probabilities
from parity.stand_ins.text import draw_state, gpt2, gpt2_small, xlnet
from parity.stand_ins.text import mdlm as write_mdlm

PREFIX = {"length": 24, "masked": 0.8, "prompt": "prefix"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


def make_spec(folder, family, *writes):
    """Write stand-ins to the folder and make the entry of a model of a family."""
    files = {name: str(folder / path) for write in writes for name, path in write(folder).items()}
    return {"family": family, "source": "files", "files": files}


@pytest.fixture(scope="module")
def baseline(folder):
    spec = make_spec(folder, "gpt2", gpt2_small, gpt2)
    return load.load(fetch.make_manifest("anysubset", "gpt2", spec, folder / "m"))


def start_of(task, loaded):
    arrays = map(torch.from_numpy, (task.tokens, task.known))
    return make_infilling(*arrays, loaded.words.mask, loaded.words.vocab, torch.from_numpy(task.end))


@pytest.mark.parametrize(
    ("kind", "settings"), [("infilling", PREFIX), ("stories", {"missing": 1}), ("stories", {"missing": 3})]
)
def test_gpt2_continues_what_is_before_a_gap(baseline, kind, settings):
    """Each token is drawn from transformers' distribution given the tokens before it, whatever the cache, and nothing
    after the gap is there."""
    task = tasks.build(kind, {"rows": 3, "data": ""} | settings, baseline.words)
    hidden = ~task.known & (np.arange(task.tokens.shape[1]) < task.end[:, None])
    assert (task.end == [np.nonzero(row)[0].max() + 1 for row in hidden]).all()
    start = start_of(task, baseline)
    drawn = [
        record(model, start, sequential(model, start, noise=batch_noise(0, task.ids)))
        for model in (baseline.subset(True), baseline.subset(False))
    ]
    assert torch.equal(drawn[0].tokens, drawn[1].tokens)
    assert drawn[0].nfe.tolist() == hidden.sum(1).tolist()
    complete = start._replace(tokens=drawn[0].tokens)
    probs, words, valid = joint_probs(baseline.subset(True), complete)
    net, separator = baseline.subset_network, baseline.words.separator
    pad = torch.where(complete.tokens == baseline.words.mask, separator, complete.tokens)
    by_judge = compute_log_probabilities(net, pad, None, separator)
    for row, n in enumerate(task.end):
        expected = by_judge[row, :n][torch.from_numpy(hidden[row, :n])].sum()
        torch.testing.assert_close(log_probability(probs, words, valid)[row], expected, atol=1e-3, rtol=1e-4)


def test_a_story_keeps_its_right_half_for_models_that_read_it(baseline):
    """Dropping context is of models that read from left to right alone."""
    words = load.load(baseline.manifest).words
    words.prompt = ""
    whole = tasks.build("stories", {"rows": 3, "data": "", "missing": 1}, words)
    cut = tasks.build("stories", {"rows": 3, "data": "", "missing": 1}, baseline.words)
    assert (whole.end > cut.end).all()
    with pytest.raises(ParityError, match="text-0: hidden tokens in several places; allowed for a model that reads"):
        tasks.build("infilling", {"rows": 3, "data": ""} | PREFIX | {"prompt": "scattered"}, baseline.words)


def test_words_that_follow_others_have_a_space_between(baseline):
    """Byte pairs put none before a text, as XLNet's tokenizer does."""
    story = tasks.build("stories", {"rows": 1, "data": "", "missing": 1}, baseline.words)
    sentences = tasks.read_stories({"rows": 1, "data": ""})[0]
    text = baseline.words.decode(story.tokens[0, : story.end[0]].tolist())
    assert text == " ".join(sentences[:3])
    passage = tasks.build("last_word", {"rows": 1, "data": ""}, baseline.words)
    assert baseline.words.decode(passage.tokens[0][~passage.known[0]].tolist())[0] == " "


def test_a_model_makes_cells_of_the_methods_that_it_runs(folder):
    models = {"asarm": make_spec(folder, "xlnet", xlnet, gpt2), "gpt2": make_spec(folder, "gpt2", gpt2_small, gpt2)}
    section = {"methods": {"sequential": [{}], "assd": [{"k": 3}]}, "tasks": {"infilling": [PREFIX]}}
    found = cells(checks.make_config({"models": models, "text": section}), [])
    ran = {(cell.spec["model"], cell.spec["method"]) for cell in found}
    assert ran == {("asarm", "sequential"), ("asarm", "assd"), ("gpt2", "sequential")}
    plain = models | {"asarm": models["asarm"] | {"methods": ["sequential"]}, "more": models["asarm"]}
    found = cells(checks.make_config({"models": plain, "text": section}), [])
    assert {cell.spec["model"] for cell in found if cell.spec["method"] == "assd"} == {"more"}
    for model, named, message in (
        ("gpt2", ["sequential", "assd"], r"models.gpt2.methods = \[assd\]: allowed with gpt2: sequential"),
        ("asarm", ["assd"], r"models.asarm.methods = \['assd'\]: needs sequential"),
    ):
        with pytest.raises(ConfigError, match=message):
            checks.make_config({"models": models | {model: models[model] | {"methods": named}}, "text": section})
    only = {"gpt2": models["gpt2"]}
    with pytest.raises(ConfigError, match=r"text.methods.assd: no model runs it \(gpt2\); allowed: sequential"):
        checks.make_config({"models": only, "text": section})
    scattered = {"methods": {"sequential": [{}]}, "tasks": {"infilling": [PREFIX | {"prompt": "scattered"}]}}
    with pytest.raises(ConfigError, match="prompt = 'scattered': gpt2 reads from left to right alone; allowed: 'pref"):
        checks.make_config({"models": only, "text": scattered})


MDLM = {"vocab_size": 50, "hidden_dim": 32, "cond_dim": 16, "n_blocks": 3, "n_heads": 2}
AUTHORS = {  # logits at (row, position), of the authors' network with these weights in float32, its attention in torch
    (0, 0): (8.4226, 25.9929, -9.4252, -5.8077),
    (1, 19): (-7.1371, 17.3439, -12.7198, -3.392),
}


def test_mdlm_computes_what_its_authors_network_does():
    net = mdlm.build(MDLM).eval()
    net.load_state_dict(draw_state(net, 3, 0.3))
    with torch.no_grad():
        logits = net((torch.arange(40) * 7 % 50).view(2, 20))
    for (row, position), expected in AUTHORS.items():
        torch.testing.assert_close(logits[row, position, :4], torch.tensor(expected), atol=2e-3, rtol=0)
    for change, message in (
        ({"time_conditioning": True}, "time_conditioning = true; allowed: false"),
        ({"n_heads": 5}, "hidden_dim = 32; allowed: a multiple of 2 x n_heads 5"),
        ({"cond_dim": None}, "config.json has no number cond_dim"),
    ):
        with pytest.raises(ParityError, match=message):
            mdlm.build(MDLM | change)


@pytest.fixture(scope="module")
def masked(folder):
    spec = make_spec(folder, "mdlm", write_mdlm, gpt2)
    return load.load(fetch.make_manifest("anysubset", "mdlm", spec, folder / "m2"))


@pytest.mark.parametrize("prompt", ["prefix", "scattered"])
def test_mdlm_fills_in_texts(masked, prompt):
    """Its distributions read the known tokens alone, in one pass as in several; what is drawn is never the mask."""
    task = tasks.build("infilling", {"rows": 3, "data": ""} | PREFIX | {"prompt": prompt}, masked.words)
    start = start_of(task, masked)
    model = masked.subset(True)
    for decoder, options in ((sequential, {}), (diffusion, {"steps": 5})):
        drawn = record(model, start, decoder(model, start, noise=batch_noise(0, task.ids), **options))
        assert (drawn.tokens != masked.words.mask).all()
        assert torch.equal(drawn.tokens[task.known], torch.from_numpy(task.tokens)[task.known])
        assert int(drawn.nfe.max()) == (5 if options else int((~task.known).sum(1).max()))
    n = int(start.begin[0])
    ranks = torch.arange(n, n + 4).repeat(3, 1)
    complete = start._replace(tokens=drawn.tokens)
    several = model.probs(complete.tokens, start.order, start.begin, ranks, ranks)
    for s in range(4):
        known = [start.order[row, : n + s] for row in range(3)]
        tokens = torch.full_like(complete.tokens, masked.words.mask)
        for row, places in enumerate(known):
            tokens[row, places] = complete.tokens[row, places]
        place = start.order[:, n + s]
        with torch.no_grad():
            logits = masked.subset_network(tokens)[torch.arange(3), place]
        logits[:, masked.words.mask] = -torch.inf
        torch.testing.assert_close(several[:, s], logits.softmax(-1), atol=1e-5, rtol=1e-4)
    drafted = model.probs(complete.tokens, start.order, start.begin, ranks, torch.full_like(ranks, n))
    assert (drafted[:, 1:] - several[:, 1:]).abs().max() > 1e-3
