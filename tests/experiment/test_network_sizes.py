"""The sizes of networks before they are loaded, and what a job asks of a cluster."""

from dataclasses import replace

import pytest
import torch
import yaml
from torch import nn
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    Emu3Config,
    Emu3ForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5EncoderModel,
    XLNetConfig,
    XLNetLMHeadModel,
)

from parity.base.weights import count_parameters
from parity.experiment import cells, checks, job_resources, weights
from parity.experiment.job_resources import Job
from parity.experiment.network_sizes import RELEASED, describe, list_networks
from parity.experiment.schema import ModelSpec
from parity.models.anysubset import mdlm
from parity.models.continuous import harmon, kl, mar, xar
from parity.models.discrete import chameleon, llamagen, vq
from parity.models.discrete.load import load_networks
from parity.models.fetch import make_manifest
from tests.workflow.conftest import ALL_KINDS, TINY

H = {"width": 1280, "encoder": 20, "decoder": 20, "heads": 16}
HEAD_H = {"head_width": 1536, "head_depth": 12}
QWEN = {"hidden": 1536, "intermediate": 8960, "layers": 28, "attention_heads": 12, "key_value_heads": 2}
T5 = {"d_model": 2048, "d_kv": 64, "d_ff": 5120, "num_layers": 24, "num_heads": 32, "vocab_size": 32128}
XL = llamagen.LlamaGenConfig()


def make_chameleon() -> nn.Module:
    """Make transformers' Chameleon of 7 billion parameters, which is its default."""
    return ChameleonForConditionalGeneration(ChameleonConfig(vocabulary_map={"<image>": 1, "IMGIMGAZ": 2}))


MDLM = {"vocab_size": 50258, "hidden_dim": 768, "cond_dim": 128, "n_blocks": 12, "n_heads": 12}
NETWORKS = {
    "Alpha-VLLM/Lumina-mGPT-7B-768:.": make_chameleon,
    "GAIR/Anole-7b-v0.1:tokenizer/vqgan.ckpt": lambda: chameleon.VQGAN(
        vq.VQConfig(8192, 256, 128, (1, 1, 2, 2, 4), 2, 256, 32, False)
    ),
    "peizesun/llamagen_t2i:t2i_XL_stage1_256.pt": lambda: llamagen.Transformer(XL),
    "peizesun/llamagen_t2i:vq_ds16_t2i.pt": lambda: vq.VQ(vq.VQConfig()),
    "google/flan-t5-xl:.": lambda: T5EncoderModel(T5Config(**T5, feed_forward_proj="gated-gelu")),
    "jadohu/anole_drafter:.": lambda: chameleon.Drafter(ChameleonConfig(vocabulary_map={"<image>": 1, "IMGIMGAZ": 2})),
    "Emu3-community/Emu3-Gen-hf:.": lambda: Emu3ForConditionalGeneration(Emu3Config(vocabulary_map={"<image>": 1})),
    "jadohu/llamagen_drafter:.": lambda: llamagen.CaptionedDrafter(replace(XL, layers=1)),
    "jadechoghari/mar:mar-huge.safetensors": lambda: mar.MARNet(mar.MARConfig(**H, **HEAD_H)),
    "jadechoghari/mar:kl16.safetensors": lambda: kl.KL(kl.KLConfig()),
    "OliverRen/xAR:xAR-H.pth": lambda: xar.XARNet(xar.XARConfig(**H)),
    "wusize/harmon:harmon_1.5b.pth": lambda: harmon.HarmonNet(harmon.HarmonConfig(grid=32, **H, **HEAD_H, **QWEN)),
    "therealgabeguo/ASARM:.": lambda: XLNetLMHeadModel(
        XLNetConfig(vocab_size=32000, d_model=768, n_layer=12, n_head=12, d_inner=3072)
    ),
    "xlnet/xlnet-large-cased:.": lambda: XLNetLMHeadModel(XLNetConfig()),
    "openai-community/gpt2:.": lambda: GPT2LMHeadModel(GPT2Config()),
    "kuleshov-group/mdlm-owt:.": lambda: mdlm.build(MDLM),
    "openai-community/gpt2-large:.": lambda: GPT2LMHeadModel(GPT2Config(n_embd=1280, n_layer=36, n_head=20)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_table_counts_what_a_network_of_these_sizes_has(name):
    with torch.device("meta"):
        counted = count_parameters(NETWORKS[name]())
    assert RELEASED[name].parameters == counted


def test_headers_say_what_torch_counts(tmp_path):
    """Of the embedded model's networks; the sizes of the cache too, whatever a family calls its matrices."""
    networks, unknown = list_networks(ModelSpec(family="llamagen"))
    assert not unknown
    nets = load_networks(make_manifest("discrete", "scenes", {"family": "llamagen"}, tmp_path), ("net", "vq"), "cpu")
    for name, net in nets.items():
        assert networks[name].parameters == sum(p.numel() for p in net.state_dict().values())
    config = nets["net"].config
    net = networks["net"]
    assert (net.layers, net.width, net.keys) == (config.layers, config.dim, config.dim)
    assert networks["vq"].stride == nets["vq"].config.stride
    shapes = {name: tuple(p.shape) for name, p in nets["net"].state_dict().items()}
    assert describe({f"other.{name.replace('w', 'u')}": shape for name, shape in shapes.items()}, net.stored) == net


def test_keys_that_heads_share_are_fewer():
    shapes = {f"layers.{i}.{name}_proj.weight": (16, 64) for i in range(3) for name in "kv"}
    shapes |= {f"layers.{i}.{name}_proj.weight": (64, 64) for i in range(3) for name in "qo"}
    described = describe(shapes, 0)
    assert (described.layers, described.width, described.keys) == (3, 64, 16)


FAMILIES = [
    family
    for kind in ("discrete", "continuous", "anysubset")
    for family in weights.list_families(kind)
    if kind != "discrete" or weights.read_family(family)["embedded"]
]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_embedded_family_is_known(family):
    networks, unknown = list_networks(ModelSpec(family=family))
    assert networks
    assert not unknown


def test_an_unknown_repository_is_named(tmp_path):
    files = {"model": ".", "vq": "hub:GAIR/Anole-7b-v0.1@" + "a" * 40 + ":tokenizer/vqgan.ckpt"}
    spec = ModelSpec(family="chameleon", source="hub", repo="me/mine", revision="b" * 40, files=files)
    networks, unknown = list_networks(spec)
    assert unknown == ["model"]
    assert networks["net"].parameters == 7_043_090_432


@pytest.mark.parametrize("seconds", [1, 60, 600, 36_000])
def test_seconds_of_timing_are_counted_in_minutes(seconds):
    """At two batches, a minute for each 60 seconds, beside the least that decoding takes."""
    raw = yaml.safe_load(ALL_KINDS)
    config, least = (checks.make_config(raw | {"timing": {"seconds": s}}) for s in (seconds, 0.001))
    group = [cell for cell in cells.cells(config, []) if cell.kind == "discrete"]
    taken, beside = (job_resources.timing_minutes(c, group) for c in (config, least))
    assert taken - beside == -(-2 * seconds // 60) - 1
    assert beside > 30


@pytest.mark.parametrize(("n", "expected"), [(10_000, 61), (100_000, 70), (600_000, 120)])
def test_a_test_is_allowed_a_minute_for_each_ten_thousand_draws(n, expected):
    config = checks.make_config(yaml.safe_load(ALL_KINDS) | {"equality": {"n": n}})
    assert job_resources.minutes(config, Job("test", "discrete")) == expected


def test_every_job_asks_for_memory_and_minutes():
    config = checks.make_config(yaml.safe_load(ALL_KINDS))
    jobs = job_resources.list_jobs(config, cells.cells(config, []))
    assert {job.kind for job in jobs} == {"discrete", "continuous", "anysubset", ""}
    for job in jobs:
        assert 700 < job_resources.memory(config, job) < 2100
        assert 30 <= job_resources.minutes(config, job) < 90
        assert job_resources.disk(config, job) >= 0


def make_job(rule: str, **image) -> tuple:
    """Make the configuration of TINY with other keys in its image section, and a job of its last cell."""
    raw = yaml.safe_load(TINY)
    config = checks.make_config({**raw, "image": raw["image"] | image})
    cell = cells.cells(config, [])[-1]
    return config, Job(rule, cell.kind, cell.spec["model"], cell)


def estimate(rule: str, **image) -> int:
    return job_resources.memory(*make_job(rule, **image))


def test_memory_grows_with_batch_guidance_dtype_and_window():
    prompts = {"limit": 64}
    plain = estimate("decode", batch=32, prompts=prompts)
    assert estimate("decode", batch=64, prompts=prompts) > plain
    assert estimate("decode", batch=32, prompts=prompts, sampling={"guidance": 1.0}) < plain
    assert estimate("decode", batch=32, prompts=prompts, dtype="float64") > plain
    wide = estimate("decode", batch=32, prompts=prompts, methods={"ar": [{}], "sjd": [{"window": 64}]})
    assert wide > estimate("decode", batch=32, prompts=prompts, methods={"ar": [{}], "sjd": [{"window": 8}]})


def test_a_batch_has_no_more_rows_than_a_job():
    assert estimate("decode", batch=4096, prompts={"limit": 4}) == estimate("decode", batch=4, prompts={"limit": 4})


def test_a_large_batch_takes_longer_than_a_small_job():
    config, job = make_job("decode", prompts={"limit": 5000})
    small_config, small = make_job("decode", prompts={"limit": 4})
    assert job_resources.minutes(config, job) > job_resources.minutes(small_config, small)
    assert job_resources.minutes(config, job, gpu=True) < job_resources.minutes(config, job)
