"""Anole's released drafter, from its own layout, beside a second writing of what its code computes."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from parity.base.errors import ConfigError, ParityError
from parity.base.noise import batch_noise
from parity.decode.discrete import record
from parity.decoders.discrete.ar import ar
from parity.decoders.discrete.eagle import eagle
from parity.decoders.discrete.lantern import lantern
from parity.decoders.discrete.vvs import vvs
from parity.experiment import checks
from parity.models import add, fetch
from parity.models.discrete import chameleon, llama
from parity.models.discrete import load as models
from parity.models.discrete.cached import EagleDrafter
from parity.models.discrete.llama import LlamaConfig
from parity.stand_ins.discrete import anole, anole_drafter
from tests.families import CAPTIONS, whole

HEADS, WIDTH = 4, 16
TREE = {"total": 8, "depth": 2, "top_k": 3}


def normed(x, eps=1e-5):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def turned(x):
    """x [T, H, D] of places 0, 1, ...: the j-th number of the first half with that of the second, by float32 angles."""
    rates = 1.0 / 10000.0 ** (torch.arange(0, WIDTH, 2).float() / WIDTH)
    angles = (torch.arange(len(x))[:, None].float() * rates)[:, None]
    a, b = x[..., : WIDTH // 2], x[..., WIDTH // 2 :]
    cos, sin = angles.cos().double(), angles.sin().double()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def plain(state, ids, features):
    """The released drafter over one whole sequence without padding, by its own names: features [T, dim] of tokens
    ids [T] beside the features [T, dim] that predicted them."""
    w = {k.removeprefix("layers.0."): v.double() for k, v in state.items()}
    x = torch.cat([w["embed_tokens.weight"][ids], features], -1) @ w["fc.weight"].T + w["fc.bias"]
    h = normed(x) * w["input_layernorm.weight"]
    q, k, v = ((h @ w[f"self_attn.{part}_proj.weight"].T).unflatten(-1, (HEADS, WIDTH)) for part in "qkv")
    for part in (q, k):
        part.sub_(part.mean(-1, keepdim=True)).div_((part.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt())
    q, k = (
        turned(x * w[f"self_attn.{part}_norm.weight"] + w[f"self_attn.{part}_norm.bias"])
        for part, x in (("q", q), ("k", k))
    )
    later = torch.arange(len(ids))[None] > torch.arange(len(ids))[:, None]
    scores = (torch.einsum("shd,thd->hst", q, k) / WIDTH**0.5).masked_fill(later, -torch.inf)
    x = x + torch.einsum("hst,thd->shd", scores.softmax(-1), v).flatten(1) @ w["self_attn.o_proj.weight"].T
    h = normed(x) * w["post_attention_layernorm.weight"]
    return x + (F.silu(h @ w["mlp.gate_proj.weight"].T) * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafter")
    return folder / anole_drafter(folder)["drafter"]


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    return whole("anole", tmp_path_factory.mktemp("anole"))


@torch.inference_mode()
def sequences(family, tokens):
    """Of each row, words first, then those without: the ids and transformers' hidden states, padding left off."""
    rows = []
    for which in ("words", "negative"):
        valid = family.inputs["valid" if which == "words" else f"{which}_valid"]
        for b, own in enumerate(valid.bool()):
            ids = torch.cat([family.inputs[which][b][own], family.ids[tokens[b]]])
            read = family.language.get_input_embeddings()(ids)[None]
            rows.append((ids, family.language(inputs_embeds=read).last_hidden_state[0]))
    return rows


def test_a_released_drafter_computes_what_its_code_does(family, released):
    """Fed in pieces, with the target's features, rows of different padding: the logits of every position, to 1e-9; and
    with a tree of guesses."""
    state, said = chameleon.published("drafter", released, None)
    net = chameleon.Drafter(LlamaConfig(**{k: v for k, v in said.items() if k not in chameleon.WORDS})).double().eval()
    net.load_state_dict({k: v.double() for k, v in state.items()})
    tokens = torch.randint(0, 64, (3, 12), generator=torch.Generator().manual_seed(1))
    target, R = family.model(), 6
    target.drafter = EagleDrafter(net, target, llama.batch_ids(family.inputs, True)[0])
    twice, at = tokens.repeat(2, 1), lambda first, last: torch.arange(first, last).expand(R, -1)
    target.logits(torch.cat([torch.zeros_like(twice[:, :1]), twice[:, :9]], 1), at(-1, 9))
    fed = [(twice[:, a:b], at(a, b), at(a, b) - 1) for a, b in ((0, 1), (1, 5), (5, 9))]
    got = torch.cat([target.drafter.logits(*piece) for piece in fed], 1)
    first = got[:, -1, :64].argsort(-1, descending=True)[:, :2]  # two guesses of token 9, and one behind the second
    nodes = target.drafter.tree(first, at(9, 10).expand(-1, 2), torch.full((R, 2), -1))
    third = nodes[:, 1, :64].argmax(-1)[:, None]
    below = target.drafter.tree(third, at(10, 11), torch.ones(R, 1, dtype=torch.int64))
    near = lambda ours, theirs: torch.allclose(ours[..., :64], family.head(theirs), atol=1e-9, rtol=0)  # noqa: E731
    for row, (ids, hidden) in enumerate(sequences(family, tokens)):
        P = len(ids) - 12
        wanted = plain(state, ids[1 : P + 9], hidden[: P + 8])
        with torch.inference_mode():
            assert near(got[row], wanted[P - 1 :])
            for node in range(2):
                more = torch.cat([ids[1 : P + 9], family.ids[first[row, node : node + 1]]])
                features = torch.cat([hidden[: P + 8], wanted[-1:]])
                then = plain(state, more, features)
                assert near(nodes[row, node], then[-1])
            longer = plain(state, torch.cat([more, family.ids[third[row]]]), torch.cat([features, then[-1:]]))
            assert near(below[row, 0], longer[-1])
            alone = plain(state, ids[P : P + 9], hidden[P - 1 : P + 8])  # without the prompt's words: another law
            assert torch.allclose(got[row, :, :64], family.head(alone), atol=1e-3) == (P == 1)


def said_of(folder: Path, released: Path) -> dict:
    files = anole(folder)
    return add.entry(str(folder / files["model"]), None, {"drafter": released})


def test_a_folder_and_a_drafter_become_an_experiment_that_drafts(tmp_path, released):
    """From files to pictures by the user's path; greedily, drafts change what a pass gives and never a token."""
    said = said_of(tmp_path, released)
    methods = {"ar": [{}], "eagle": [TREE], "lantern": [{"k": 5}], "vvs": [{"k": 5}]}
    checks.load(json.loads(json.dumps({"models": {"m": said}, "image": {"methods": methods}})))
    manifest = fetch.manifest("discrete", "m", said, tmp_path / "out")
    assert manifest["files"]["drafter"].endswith("drafter.safetensors")  # the pickle is read once
    inputs = {k: v.numpy() for k, v in models.encoder(manifest)(CAPTIONS[:2]).items()}
    loaded = models.load(manifest, needs="drafter")
    start, done = torch.zeros(2, dtype=torch.int64), {}
    law = {"guidance": 2.0, "temperature": 1.0, "top_k": 1, "top_p": 1.0}
    for decode, options in ((ar, {}), (eagle, TREE), (lantern, {**TREE, "k": 5}), (vvs, {**TREE, "k": 5})):
        model = loaded.model(inputs, law)
        assert isinstance(model.model.drafter, EagleDrafter)
        done[decode] = record(model, start, decode(model, start, noise=batch_noise(0, CAPTIONS[:2]), **options))
        assert done[decode].tokens.shape == (2, 37) and (done[decode].nfe <= 36).all()
    assert torch.equal(done[eagle].tokens, done[ar].tokens) and torch.equal(done[lantern].tokens, done[ar].tokens)
    assert done[vvs].nfe.sum() < done[ar].nfe.sum() and not torch.equal(done[vvs].tokens, done[ar].tokens)


def test_a_drafter_of_another_target_is_one_line(tmp_path, released):
    other = tmp_path / anole_drafter(tmp_path, heads=2)["drafter"]
    wrong = "was trained for another target: its num_attention_heads is 2; allowed: 4"
    with pytest.raises(ConfigError, match=wrong):
        said_of(tmp_path, other)
    state = torch.load(released / "pytorch_model.bin", weights_only=True)
    torch.save({k: v for k, v in state.items() if "q_norm" not in k}, other / "pytorch_model.bin")
    with pytest.raises(ParityError, match=r"missing layers\.0\.self_attn\.q_norm\.weight") as told:
        chameleon.published("drafter", other, None)
    assert "\n" not in str(told.value)
