"""Heads have the layouts that vLLM and SGLang read; they accept often, not always; faults around them are found."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from safetensors.torch import load_file  # noqa: E402

from parity_certify import heads, models  # noqa: E402
from parity_certify.__main__ import HEADS  # noqa: E402
from parity_certify.adapters.transformers import load_model, make_logits  # noqa: E402
from parity_certify.design import certify_design  # noqa: E402
from parity_certify.errors import ParityError  # noqa: E402

ROOT = Path(__file__).parents[1]
SPECIFICATION = importlib.util.spec_from_file_location("speculate", ROOT / "examples/heads/speculate.py")
speculate = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(speculate)

REST = (*HEADS[1:], "ngram", "suffix")
ATTENTION = [f"self_attn.{name}_proj.weight" for name in "qkvo"]
BIASES = [f"self_attn.{name}_proj.bias" for name in "qkv"]
LAYER = [*ATTENTION, *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")), "post_attention_layernorm.weight"]
# Names that a checkpoint may have: all that a loader maps to a parameter, none that it refuses. Derived by reading
# `load_weights` and `__init__` in vllm/model_executor/models of vLLM 0.32.0 and sglang/srt/models of SGLang 0.5.23
# (named beside), where q, k, v and gate, up are read into one parameter each; vLLM's classes were also made without
# its compiled part, loaded these heads by its own loader, and had the same numbers in every parameter.
NAMES = {
    # module llama_eagle of both. fc.bias: SGLang would keep a random one, vLLM passes over it
    "eagle": {"embed_tokens.weight", "fc.weight", "fc.bias", *(f"layers.0.{name}" for name in LAYER)},
    # module llama_eagle3 of both: "midlayer" is layers.0, t2d is passed over; embeddings are the target's
    "eagle3": {
        "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d", "midlayer.hidden_norm.weight",
        "midlayer.input_layernorm.weight", *(f"midlayer.{name}" for name in LAYER),
    },
    # module mimo_mtp of both: model.mtp_layers.N; both take embeddings and lm_head from the target
    "mtp": {
        f"model.mtp_layers.0.{name}"
        for name in (
            *LAYER, *BIASES, "input_layernorm.weight", "token_layernorm.weight", "hidden_layernorm.weight",
            "input_proj.weight", "final_layernorm.weight",
        )
    },
    # vLLM's module medusa; SGLang has no Medusa
    "medusa": {f"{name}.weight" for k in range(3) for name in (f"blocks.{k}.layers.0", f"lm_heads.{k}")},
}  # fmt: skip
# Keys of config.json that decide what is loaded, from the same modules, vLLM's config.speculative and configurations of
# eagle and medusa, and SGLang's configs.model_config. vLLM puts Eagle before each name of an EAGLE head and takes the
# first that it has; SGLang takes the first. EAGLE-3's layers are inputs in vLLM, which reads the key at the top first,
# and outputs in SGLang, which reads eagle_config alone.
KEYS = {
    "eagle": {"architectures": ["LlamaForCausalLMEagle", "LlamaForCausalLM"], "num_hidden_layers": 1},
    "eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 3, "vocab_size": 4,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3], "tie_word_embeddings": False,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    },
    "mtp": {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1},
    "medusa": {"model_type": "medusa", "medusa_num_heads": 3, "medusa_num_layers": 1, "vocab_size": 4},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a target and its heads, and MiMo."""
    out = tmp_path_factory.mktemp("heads")
    models.write_model("llama", out / "llama", num_hidden_layers=heads.LAYERS)
    written = heads.write_heads(HEADS, out)
    assert [one.name for one in written] == ["llama-eagle", "llama-eagle3", "mimo", "llama-medusa"]
    return out


def find(folder, kind):
    """Return the folder of a head."""
    return folder / ("mimo" if kind == "mtp" else f"llama-{kind}")


@pytest.mark.parametrize("kind", HEADS)
def test_names_are_those_that_the_loaders_read(folder, kind):
    weights = load_file(find(folder, kind) / "model.safetensors")
    names = {name for name in weights if kind != "mtp" or name.startswith("model.mtp_layers.")}
    assert names == NAMES[kind]
    config = json.loads((find(folder, kind) / "config.json").read_text())
    assert {key: config.get(key) for key in KEYS[kind]} == KEYS[kind]
    if kind == "eagle":
        target = load_file(folder / "llama/model.safetensors")
        assert not weights["fc.bias"].any()  # as vLLM computes without it
        assert torch.equal(weights["embed_tokens.weight"], target["model.embed_tokens.weight"])
    if kind == "eagle3":
        drafted = torch.arange(3) + weights["d2t"]
        assert weights["t2d"].nonzero()[:, 0].tolist() == drafted.tolist()
        assert weights["midlayer.self_attn.q_proj.weight"].shape == (16, 32)
        assert weights["fc.weight"].shape == (16, 48)


@pytest.mark.parametrize("kind", HEADS)
def test_a_draft_is_accepted_often_but_not_always(folder, kind):
    sampler = speculate.Speculation(kind, folder, "")
    sampler(np.random.default_rng(0).integers(4, size=(300, 3)), 0, length=8, drafts=3)
    assert heads.ALLOWED[0] < sampler.kept / sampler.seen < heads.ALLOWED[1]


def certify(folder, kind, fault="", **settings):
    """Certify a head under the conditions that the sampler takes, at the default error rate."""
    sampler = speculate.Speculation(kind, folder, fault)
    found = certify_design(sampler, make_logits(sampler.target), vocab=4, batch=1000, budget=None, **settings)
    return found.verdict


@pytest.mark.parametrize("kind", ["eagle", *(pytest.param(kind, marks=pytest.mark.long) for kind in REST)])
def test_a_correct_verification_is_certified(folder, kind):
    verdict = certify(folder, kind)
    assert verdict.kind == "certified", str(verdict)


@pytest.mark.parametrize("fault", speculate.FAULTS)
@pytest.mark.parametrize("kind", ["eagle", *(pytest.param(kind, marks=pytest.mark.long) for kind in HEADS[1:])])
def test_faults_of_the_verification_are_found(folder, kind, fault):
    verdict = certify(folder, kind, fault)
    assert verdict.kind == "lossy" and verdict.exit_code == 1, str(verdict)


def test_heads_are_made_again_by_seed(folder, tmp_path):
    """To rounding; another seed gives other heads."""
    same, other = (tmp_path / name for name in ("same", "other"))
    for out, seed in ((same, 0), (other, 1)):
        heads.write_mimo(out, seed=seed)
    one, two, three = (load_file(out / "model.safetensors") for out in (folder / "mimo", same, other))
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)
    assert not torch.allclose(one[f"{heads.MTP}input_proj.weight"], three[f"{heads.MTP}input_proj.weight"], atol=0.1)
    assert load_model(folder / "mimo").config.num_nextn_predict_layers == 1


def test_sizes_that_no_engine_reads_are_refused(tmp_path):
    with pytest.raises(ParityError, match="head_dim 6: allowed for mtp: a divisor of hidden_size, 16"):
        heads.write_mimo(tmp_path, head_dim=6)
