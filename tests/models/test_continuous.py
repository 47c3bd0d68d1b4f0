"""Continuous models as decoders see them: xAR, Harmon, Gaussian mixtures. Conditions, laws, cells; models from
files."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from parity_decoders.continuous.mar import mar
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.continuous import Start, draw_order, make_path_noise

from parity.base.errors import ParityError
from parity.decode.continuous import record
from parity.models import fetch
from parity.models.continuous import harmon, load
from parity.models.continuous.diffusion import HeadSampling, respace_steps
from parity.models.continuous.gmm import GMM, GMMConfig, GMMNet
from parity.models.continuous.harmon import HarmonConfig, HarmonNet
from parity.models.continuous.kl import KL, KLConfig, fold, rename_published, unfold
from parity.models.continuous.mar import MARConfig, MARNet
from parity.models.continuous.xar import XAR, XARConfig, XARNet

SMALL = {"grid": 4, "dim": 3, "width": 16, "heads": 2}
XAR_SMALL = XARConfig(**SMALL, classes=5, cell=1, encoder=1, decoder=1)
GMM_SMALL = GMMConfig(**SMALL, classes=5, blocks=2, components=3)
HARMON_SMALL = HarmonConfig(
    **SMALL,
    **{"classes": 1, "encoder": 1, "decoder": 1, "buffer": 2, "head_width": 16, "head_depth": 1},
    **{"vocab": 9, "hidden": 16, "intermediate": 32, "layers": 2, "attention_heads": 2, "key_value_heads": 1},
    without=(8,),
)


@pytest.fixture(autouse=True)
def seeded():
    """The same numbers whatever ran before."""
    torch.manual_seed(0)


def random(net):
    """Weights that let everything act on everything: many start at zero."""
    generator = torch.Generator().manual_seed(0)
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.3, generator=generator)
    return net.eval()


def model(name):
    """A model of four rows, guided where it can be."""
    sampling = HeadSampling(steps=4, guidance=2.0, clip=4.0)  # unclipped, untrained heads magnify rounding
    if name == "gmm":
        return GMM(random(GMMNet(GMM_SMALL)), torch.tensor([0, 1, 2, 4]), sampling)
    if name == "harmon":
        prompts = torch.tensor([[1, 2, 3], [4, -1, -1], [5, 6, -1], [1, 2, 4]])
        return harmon.Model(random(HarmonNet(HARMON_SMALL)), prompts, sampling)
    cell = int(name.removeprefix("xar"))
    return XAR(random(XARNet(replace(XAR_SMALL, cell=cell))), torch.tensor([0, 1, 2, 4]), sampling)


MODELS = ("gmm", "xar1", "xar2", "harmon")


def question(m, rows=4, n=2):
    """Tokens, an order and n places of each row, all predecessors known."""
    rng = np.random.default_rng(1)
    tokens = torch.from_numpy(rng.standard_normal((rows, m.length, m.dim), np.float32))
    order = np.arange(m.length)[None].repeat(rows, 0)
    order = torch.from_numpy(order if m.raster else rng.permuted(order, axis=1))
    return tokens, order, torch.from_numpy(rng.integers(0, m.length, (rows, n)))


@torch.no_grad()
def token(m, tokens, order, places, known=None, keys=None):
    """What the model's law draws, and its density there: all that a decoder sees of it."""
    noise = counted_noise(3, range(4), torch.float32)
    path = make_path_noise(noise if keys is None else Noise(noise.keys[keys]), "draft", places, m.steps, m.dim)
    law = m.law(m.conditions(tokens, order, places, places if known is None else known), path)
    x = law.sample(path)
    figures = torch.cat([x, law.log_density(x)[:, None], law.log_sigma[:, None]], 1)
    return figures.unflatten(0, places.shape)


def leak(m, tokens, order, places):
    """The largest change of a drawn token when the tokens at its place and after it change."""
    before, change = token(m, tokens, order, places), 0.0
    for j in range(places.shape[1]):
        later = torch.arange(m.length) >= places[:, j : j + 1]  # by place
        on_grid = torch.zeros_like(later).scatter(1, order, later)
        other = torch.where(on_grid[..., None], tokens + 1, tokens)
        change = max(change, float((token(m, other, order, places)[:, j] - before[:, j]).abs().max()))
    return change


@pytest.mark.parametrize("name", MODELS)
def test_a_row_alone_is_the_row_in_a_batch(name):
    m = model(name)
    tokens, order, places = question(m)
    whole = token(m, tokens, order, places)
    for at in torch.arange(len(tokens))[:, None]:
        alone = token(m.take(at), tokens[at], order[at], places[at], keys=at)
        assert torch.allclose(alone[0], whole[at[0]], atol=1e-5, rtol=1e-5)
    other_condition = token(m.take(torch.tensor([1, 1, 2, 3])), tokens, order, places)
    assert not torch.allclose(other_condition[0], whole[0], atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_one_place_or_many_one_law(name):
    """Noise is keyed by place, and one pass over all places says what a pass for each says."""
    m = model(name)
    tokens, order, _ = question(m)
    places = torch.arange(m.length).expand(4, -1)
    many = token(m, tokens, order, places)
    for i in range(m.length):
        one = token(m, tokens[:, : i + 1] if m.raster else tokens, order, places[:, i : i + 1])
        assert torch.allclose(one[:, 0], many[:, i], atol=2e-5, rtol=1e-4)
    assert not torch.allclose(many[:, 1:], many[:, :-1], atol=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_a_condition_reads_known_tokens_alone(name):
    m = model(name)
    tokens, order, places = question(m)
    assert leak(m, tokens, order, places) == 0
    assert not torch.equal(token(m, tokens + 1, order, places), token(m, tokens, order, places))


def test_a_model_that_reads_ahead_is_seen():
    """Must fail: a model that reads one token too many."""

    class Ahead(GMM):
        def conditions(self, tokens, order, places, known):
            at = (places + 1).clamp(max=self.length - 1)
            return super().conditions(tokens, order, at, at)

    gmm = model("gmm")
    m = Ahead(gmm.net, gmm.labels, gmm.sampling)
    assert leak(m, *question(m)) > 1e-3


def test_harmon_prompts_padding_and_none():
    """Padding before, after or beyond a prompt changes nothing; a row without a prompt is one that has the prompt that
    says nothing."""
    net = random(HarmonNet(HARMON_SMALL))
    x, known = torch.randn(3, 16, 3), torch.rand(3, 16) < torch.tensor([0.1, 0.5, 0.9])[:, None]
    with torch.no_grad():
        z = net(x, known, torch.tensor([[1, 2, 3], [4, 5, -1], [-1, -1, -1]]))
        left = net(x, known, torch.tensor([[-1, -1, 1, 2, 3], [-1, -1, -1, 4, 5], [-1, -1, -1, -1, 8]]))
        other = net(x, known, torch.tensor([[1, 2, 4], [5, 4, -1], [7, -1, -1]]))
    assert torch.allclose(z, left, atol=1e-5)
    assert all((a - b).abs().max() > 1e-4 for a, b in zip(z, other, strict=True))


def test_folding_into_cells_and_back():
    x = torch.arange(2 * 16 * 3).view(2, 16, 3)
    assert torch.equal(fold(x, 1), x)
    cells = fold(x, 2)
    assert torch.equal(unfold(cells, 2), x)
    assert cells.shape == (2, 4, 12)
    assert torch.equal(cells[:, 1], x[:, [2, 3, 6, 7]].flatten(1))  # top right
    assert not torch.equal(cells.reshape(2, 16, 3), x)


PUBLISHED = {  # some entries of the files; xAR-B's 1,001 classes, MAR-B's 208 million parameters
    "xar": (XARNet, XARConfig(), 173, {
        "encoder_blocks.7.attn.qkv.weight": (2304, 768), "encoder_blocks.7.mlp.fc1_g.weight": (2048, 768),
        "decoder_blocks.7.ada_lin.1.bias": (4608,), "class_emb.weight": (1001, 768), "pred.weight": (16, 768),
        "time_embed.mlp.0.weight": (768, 256), "decoder_pos_embed_learned": (1, 256, 768), "z_proj_ln.weight": (768,),
    }),
    "mar": (MARNet, MARConfig(), 208, {
        "encoder_pos_embed_learned": (1, 320, 768), "diffusion_pos_embed_learned": (1, 256, 768),
        "class_emb.weight": (1000, 768), "fake_latent": (1, 768), "decoder_blocks.11.mlp.fc2.weight": (768, 3072),
        "diffloss.net.res_blocks.5.adaLN_modulation.1.weight": (3072, 1024),
        "diffloss.net.final_layer.linear.weight": (32, 1024),
    }),
    "harmon": (HarmonNet, HARMON_SMALL, 0, {
        "llm.model.embed_tokens.weight": (9, 16), "llm.model.layers.0.self_attn.q_proj.bias": (16,),
        "llm.model.norm.weight": (16,), "mar.fake_latent": (1, 16), "proj_in.2.weight": (16, 16),
        "mar.diffloss.net.cond_embed.weight": (16, 16), "proj_out.0.bias": (16,),
    }),
}  # fmt: skip


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_network_has_the_published_names_and_sizes(family):
    make, config, million, shapes = PUBLISHED[family]
    with torch.device("meta"):
        state = make(config).state_dict()
    assert {k: tuple(state[k].shape) for k in shapes} == shapes
    assert round(sum(v.numel() for v in state.values()) / 1e6) == million


def test_kl16_has_the_published_names():
    """Latent diffusion's, which count the decoder's levels the other way."""
    with torch.device("meta"):
        net = KL(KLConfig()).state_dict()
    theirs = ["quant_conv.bias", "encoder.mid.attn_1.proj_out.weight", "encoder.down.4.attn.1.q.weight"]
    theirs += ["encoder.down.3.downsample.conv.bias", "encoder.down.2.block.0.nin_shortcut.weight"]
    theirs += ["decoder.up.0.block.2.norm2.weight", "decoder.up.4.upsample.conv.weight", "decoder.norm_out.bias"]
    renamed = rename_published(dict.fromkeys([*theirs, "loss.logvar"], torch.empty(0)))
    assert len(renamed) == len(theirs)
    assert set(renamed) <= set(net)
    assert round(4 * sum(v.numel() for v in net.values()) / 2**20) == 254  # MiB of the published file


def test_xar_walk_is_euler_maruyama():
    """On a known velocity: tokens that are N(m, s^2) have v = E[noise - x | x_t]; the walk's draws have that mean and
    deviation."""
    m, s = 0.7, 0.5

    class Known(torch.nn.Module):
        config = replace(XAR_SMALL, dim=1)

        def forward(self, cells, t, labels, places, mask, before=None):
            a, t = 1 - t[..., None], t[..., None]
            gap = (cells - a * m) / (a**2 * s**2 + t**2)
            return t * gap - (m + a * s**2 * gap), []

        def read(self, cells, t, labels):
            return None, [(torch.zeros(len(cells), 1, cells.shape[1], 1),) * 2]

    net = Known()
    for last in ("noise", "mean"):
        model = XAR(net, torch.zeros(4000, dtype=torch.int64), HeadSampling(steps=100, last=last))
        places = torch.tensor([[3, 8]]).expand(4000, -1)
        path = make_path_noise(counted_noise(0, range(4000)), "sample", places, model.steps, model.dim)
        law = model.law(model.conditions(torch.zeros(4000, 16, 1).double(), places, places, places), path)
        x = law.sample(path)
        assert abs(float(x.mean()) - m) < 0.03
        assert abs(float(x.std()) - s) < 0.03
        assert float(law.std.max()) == pytest.approx(0.04 * 2**0.5)
        assert (law.sample(path) == law.mean).all() == (last == "mean")
        times = [*np.linspace(1, 0.04, 100)]
        assert float(law.log_sigma[0]) == pytest.approx(
            sum(0.5 * np.log(2 * a * (a - b)) for a, b in pairwise(times)), rel=1e-5
        )


def test_xar_guidance_grows_with_the_place():
    """At the first place there is none; at the last all of it."""
    m = model("xar1")
    tokens, order, _ = question(m)
    plain, constant = (
        replace(m, sampling=HeadSampling(steps=4, guidance=g, guidance_schedule=s))
        for g, s in ((1.0, "linear"), (2.0, "constant"))
    )
    ends = torch.tensor([[0, 15]]).expand(4, -1)
    linear = token(m, tokens, order, ends)
    assert torch.allclose(linear[:, 0], token(plain, tokens, order, ends)[:, 0], atol=1e-5)
    assert torch.allclose(linear[:, 1], token(constant, tokens, order, ends)[:, 1], atol=1e-5)
    assert not torch.allclose(linear[:, 1], token(plain, tokens, order, ends)[:, 1], atol=1e-3)


def test_bad_settings_of_xar_have_one_line():
    with pytest.raises(ValueError, match="cell 3: allowed: a divisor of grid 4"):
        XARNet(replace(XAR_SMALL, cell=3))
    with pytest.raises(ValueError, match="width 12: allowed: a multiple of 4 x heads 2"):
        XARNet(replace(XAR_SMALL, width=12))


def test_a_mixture_at_a_temperature_is_a_mixture_of_narrower_components():
    m = model("gmm")
    tokens, order, places = question(m)
    at, half = (
        net.law(net.conditions(tokens, order, places, places))
        for net in (m, replace(m, sampling=HeadSampling(temperature=0.5)))
    )
    assert torch.equal(half.means, at.means)
    assert torch.equal(half.log_weights, at.log_weights)
    torch.testing.assert_close(half.scales, 0.5 * at.scales)


FAMILIES = ("mar", "xar", "harmon", "gmm")
SETTINGS = {"steps": 4, "guidance": 2.0, "guidance_schedule": "linear", "clip": 4.0}


@pytest.fixture(scope="module", params=FAMILIES)
def embedded(request, tmp_path_factory):
    """A model that ships with the package, by its manifest."""
    spec = {"family": request.param}
    return load.load(
        fetch.make_manifest("continuous", request.param, spec, tmp_path_factory.mktemp("m")), needs="draft"
    )


def settings(loaded):
    """Of the settings, those that its law depends on: what a cell's specification holds."""
    return {k: v for k, v in SETTINGS.items() if k in loaded.family.FAMILY["reads"]}


def test_an_embedded_pair_goes_from_its_manifest_to_its_pictures(embedded):
    pair = embedded.pair(range(2, 4), settings(embedded), True)
    assert (pair.target.length, pair.target.dim) == (pair.draft.length, pair.draft.dim)
    assert token(pair.draft, *question(pair.draft, 2), keys=torch.arange(2)).isfinite().all()
    assert pair.target.raster == embedded.family.FAMILY["causal"]
    noise = counted_noise(0, range(2), torch.float32)
    start = Start(draw_order(noise, 2, pair.target.length, pair.target.raster))
    done = record(pair, start, mar(pair, start, noise=noise, iterations=0 if pair.target.raster else 4))
    pixels = embedded.pictures(done.tokens)
    assert pixels.shape == (2, 64, 64, 3)
    assert pixels.dtype == np.uint8
    assert pixels.std() > 0
    assert embedded.pair(range(2), settings(embedded), False).draft is None


def test_a_setting_that_a_family_does_not_read_changes_no_law(embedded):
    """And one that it says it reads changes one: what is in a cell's key is what its images depend on."""
    pair, reads = embedded.pair(range(4), {}, False), embedded.family.FAMILY["reads"]
    tokens, order, places = question(pair.target)
    tokens, order, places = tokens[:4], order[:4], places[:4]

    def law(**given):
        m = embedded.pair(range(4), {"steps": 3, "clip": 4.0, **given}, False).target
        return token(m, tokens, order, places)

    plain = law()
    changed = {"temperature": 0.5, "clip": 0.5, "sampler": "ddim", "guidance": 3.0}
    if embedded.family.FAMILY["causal"]:
        del changed["sampler"]  # of these two the first has no other, the second none
    for name, value in changed.items():
        assert torch.equal(law(**{name: value}), plain) == (name not in reads), name


def test_what_a_model_lacks_or_was_changed_is_one_line(embedded, tmp_path):
    file = tmp_path / "target.safetensors"
    file.write_bytes(embedded.file("target").read_bytes()[:-1] + b"x")
    files = embedded.manifest["files"]
    with pytest.raises(ParityError, match=r": target = .*SHA-256"):
        load.load(embedded.manifest | {"files": files | {"target": str(file)}})
    alone = embedded.manifest | {"files": {k: v for k, v in files.items() if k != "draft"}}
    with pytest.raises(ParityError, match=r": has no draft; allowed: target, kl"):
        load.load(alone, needs="draft")


def test_a_respaced_schedule_is_the_released_running_sum():
    for steps in range(1, 1001):
        at, released = 0.0, []
        for _ in range(steps):
            released.append(round(at))
            at += 999 / (steps - 1) if steps > 1 else 1
        assert respace_steps(steps) == released
    assert respace_steps(1) == [0]
    assert 499 in respace_steps(21)
