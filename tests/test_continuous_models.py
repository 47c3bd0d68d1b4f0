"""The continuous models as decoders see them: xAR, Harmon, Gaussian mixtures. Conditions, laws, cells and recipes."""

import hashlib
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from parity.base.noise import Noise, counted_noise
from parity.equality.mixtures import random_mixture
from parity.models.checkpoints import load_weights
from parity.models.continuous import gmm, xar
from parity.models.continuous.diffusion import Sampling
from parity.models.continuous.gmm import GMM, GMMConfig, GMMNet, MixtureLaw, TabularMixture
from parity.models.continuous.harmon import Harmon, HarmonConfig, HarmonNet
from parity.models.continuous.kl import KL, LATENTS, KLConfig
from parity.models.continuous.mar import MARConfig, MARNet
from parity.models.continuous.protocol import path_noise
from parity.models.continuous.xar import XAR, XARConfig, XARNet, fold, unfold
from parity.models.discrete.llamagen import read_config
from parity.training import gmm as train_gmm
from parity.training import harmon as train_harmon
from parity.training import loop as training
from parity.training import mar as train_mar
from parity.training import xar as train_xar
from parity.training.loop import publish

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
    sampling = Sampling(steps=4, guidance=2.0)
    if name == "gmm":
        return GMM(random(GMMNet(GMM_SMALL)), torch.tensor([0, 1, 2, 4]))
    if name == "harmon":
        ids = torch.tensor([[1, 2, 3], [4, 0, 0], [5, 6, 0], [1, 2, 4]])
        valid = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]])
        return Harmon(random(HarmonNet(HARMON_SMALL)), ids, valid, sampling)
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
    path = path_noise(noise if keys is None else Noise(noise.keys[keys]), "draft", places, m.steps, m.dim)
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
    for i in range(len(tokens)):
        at = torch.tensor([i])
        assert torch.allclose(
            token(m.take(at), tokens[at], order[at], places[at], keys=at)[0], whole[i], atol=1e-5, rtol=1e-5
        )
    assert not torch.allclose(
        token(m.take(torch.tensor([1, 1, 2, 3])), tokens, order, places)[0], whole[0], atol=1e-3
    )  # what it is conditioned on


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


@dataclass(frozen=True)
class Ahead:
    """Must fail: a model that reads one token too many."""

    inner: GMM

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def conditions(self, tokens, order, places, known):
        at = (places + 1).clamp(max=self.inner.length - 1)
        return self.inner.conditions(tokens, order, at, at)


@pytest.mark.parametrize("name", MODELS)
def test_a_condition_reads_known_tokens_alone(name):
    m = model(name)
    question_ = question(m)
    assert leak(m, *question_) == 0
    tokens, order, places = question_
    assert not torch.equal(token(m, tokens + 1, order, places), token(m, tokens, order, places))


def test_a_model_that_reads_ahead_is_seen():
    m = Ahead(model("gmm"))
    assert leak(m, *question(m)) > 1e-3


@pytest.mark.parametrize("name", ["gmm", "xar1", "xar2"])
def test_a_causal_model_has_no_condition_past_an_unknown_token(name):
    m = model(name)
    tokens, order, places = question(m)
    with pytest.raises(ValueError, match=r"known \d+ at place \d+: a causal model has no condition"):
        m.conditions(tokens, order, places.clamp(min=1), places.clamp(min=1) - 1)


def test_harmon_answers_several_places_of_one_context():
    """Bidirectional: places after unknown ones have conditions, the same together as one by one."""
    m = model("harmon")
    tokens, order, _ = question(m)
    places, known = torch.tensor([[5, 9, 15]]).expand(4, -1), torch.full((4, 3), 5)
    together = m.conditions(tokens, order, places, known).z.unflatten(0, (4, 3))
    for j in range(3):
        alone = m.conditions(tokens, order, places[:, j : j + 1], known[:, j : j + 1]).z
        assert torch.allclose(alone, together[:, j], atol=1e-5)


def test_harmon_prompts_padding_and_none():
    """Padding before, after or beyond a prompt changes nothing; a row without a prompt is one that has the prompt that says nothing."""
    net = random(HarmonNet(HARMON_SMALL))
    x, known = torch.randn(3, 16, 3), torch.rand(3, 16) < torch.tensor([0.1, 0.5, 0.9])[:, None]
    with torch.no_grad():
        z = net(x, known, torch.tensor([[1, 2, 3], [4, 5, -1], [-1, -1, -1]]))
        left = net(x, known, torch.tensor([[-1, -1, 1, 2, 3], [-1, -1, -1, 4, 5], [-1, -1, -1, -1, 8]]))
        other = net(x, known, torch.tensor([[1, 2, 4], [5, 4, -1], [7, -1, -1]]))
    assert torch.allclose(z, left, atol=1e-5)
    assert all((a - b).abs().max() > 1e-4 for a, b in zip(z, other, strict=True))


def test_harmon_has_the_published_names():
    names = set(HarmonNet(HARMON_SMALL).state_dict())
    assert {
        "llm.model.embed_tokens.weight",
        "llm.model.layers.0.self_attn.q_proj.bias",
        "llm.model.norm.weight",
    } <= names
    assert {"mar.fake_latent", "mar.diffloss.net.cond_embed.weight", "proj_in.2.weight", "proj_out.0.bias"} <= names


def test_folding_into_cells_and_back():
    x = torch.arange(2 * 16 * 3).view(2, 16, 3)
    assert torch.equal(fold(x, 1), x)
    cells = fold(x, 2)
    assert torch.equal(unfold(cells, 2), x) and cells.shape == (2, 4, 12)
    assert torch.equal(cells[:, 1], x[:, [2, 3, 6, 7]].flatten(1))  # top right
    assert not torch.equal(cells.reshape(2, 16, 3), x)
    m = model("xar2")
    assert (m.length, m.dim) == (4, 12) and torch.equal(xar.unfold(cells, 2), x)


def test_xar_has_the_published_names_and_shapes():
    """xAR-B as released: 1,001 classes, no parameters in the norms of a block."""
    with torch.device("meta"):
        state = {k: tuple(v.shape) for k, v in XARNet(XARConfig()).state_dict().items()}
    block = {
        "attn.qkv.weight": (2304, 768),
        "attn.qkv.bias": (2304,),
        "attn.proj.weight": (768, 768),
        "attn.proj.bias": (768,),
    }
    block |= {"mlp.fc1_g.weight": (2048, 768), "mlp.fc1_x.weight": (2048, 768), "mlp.fc2.weight": (768, 2048)}
    block |= {"mlp.fc1_g.bias": (2048,), "mlp.fc1_x.bias": (2048,), "mlp.fc2.bias": (768,)}
    block |= {"ada_lin.1.weight": (4608, 768), "ada_lin.1.bias": (4608,)}
    assert {
        k.removeprefix("encoder_blocks.7."): v for k, v in state.items() if k.startswith("encoder_blocks.7.")
    } == block
    rest = {k: v for k, v in state.items() if "_blocks." not in k}
    linear = {
        "z_proj": (768, 16),
        "decoder_embed": (768, 768),
        "pred": (16, 768),
        "time_embed.mlp.0": (768, 256),
        "time_embed.mlp.2": (768, 768),
    }
    expected = {f"{k}.weight": v for k, v in linear.items()} | {f"{k}.bias": v[:1] for k, v in linear.items()}
    expected |= {f"{k}.weight": (768,) for k in ("z_proj_ln", "encoder_norm", "decoder_norm")} | {
        "class_emb.weight": (1001, 768)
    }
    assert rest == expected | {f"{k}_pos_embed_learned": (1, 256, 768) for k in ("encoder", "decoder")}


def test_rotary_angles_turn_with_the_relative_place():
    """Products of rotated vectors depend on the difference of grid places alone, within cells too."""
    c = replace(XAR_SMALL, cell=2)
    grid = unfold(xar.rotations(c).view(1, c.cells, -1), 2)[0].view(4, 4, -1)
    q, k = torch.randn(2, 1, 1, 1, 8)

    def product(a, b):
        return float((xar.rotate(q, grid[a]) * xar.rotate(k, grid[b])).sum())

    assert product((0, 1), (1, 3)) == pytest.approx(product((2, 0), (3, 2)), abs=1e-5)
    assert product((0, 1), (1, 3)) != pytest.approx(product((0, 1), (3, 1)), abs=1e-3)


def test_xar_walk_is_euler_maruyama():
    """On a known velocity: tokens that are N(m, s^2) have v = E[noise - x | x_t]; the walk's draws have that mean and deviation."""
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
    for last, spread in (("noise", s), ("mean", s)):
        model = XAR(net, torch.zeros(4000, dtype=torch.int64), Sampling(steps=100, last=last))
        places = torch.tensor([[3, 8]]).expand(4000, -1)
        path = path_noise(counted_noise(0, range(4000)), "sample", places, model.steps, model.dim)
        law = model.law(model.conditions(torch.zeros(4000, 16, 1).double(), places, places, places), path)
        x = law.sample(path)
        assert abs(float(x.mean()) - m) < 0.03 and abs(float(x.std()) - spread) < 0.03
        assert float(law.std.max()) == pytest.approx(0.04 * 2**0.5) and (law.sample(path) == law.mean).all() == (
            last == "mean"
        )
        times = [*np.linspace(1, 0.04, 100)]
        assert float(law.log_sigma[0]) == pytest.approx(
            sum(0.5 * np.log(2 * a * (a - b)) for a, b in pairwise(times)), rel=1e-5
        )


def test_xar_guidance_grows_with_the_place():
    """At the first place there is none; at the last all of it."""
    m = model("xar1")
    tokens, order, _ = question(m)
    plain, constant = (
        replace(m, sampling=Sampling(steps=4, guidance=g, guidance_schedule=s))
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
    with pytest.raises(ValueError, match="sampler 'ddim'"):
        XAR(XARNet(XAR_SMALL), torch.zeros(1), Sampling(sampler="ddim"))


def mixture_law(rows):
    one = MixtureLaw(
        torch.tensor([[0.2, 0.5, 0.3]]).log(),
        torch.tensor([[[-2.0], [0.5], [1.0]]]),
        torch.tensor([[[0.3], [1.0], [0.1]]]),
    )
    return one.rows(torch.zeros(rows, dtype=torch.int64))


def test_a_mixture_law_has_the_density_of_its_samples():
    x = torch.linspace(-8, 8, 40001)[:, None]
    p = mixture_law(len(x)).log_density(x).double().exp()
    assert float(torch.trapezoid(p, x[:, 0].double())) == pytest.approx(1, abs=1e-4)
    n = 20_000
    path = path_noise(counted_noise(0, range(n)), "sample", torch.zeros(n, 1, dtype=torch.int64), 1, 1)
    sample = mixture_law(n).sample(path)[:, 0].numpy()
    cumulative = np.concatenate([[0], np.cumsum(np.diff(x[:, 0].numpy()) * (p[1:] + p[:-1]).numpy() / 2)])
    uniform = np.interp(sample, x[:, 0].numpy(), cumulative)
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    narrow = mixture_law(n)._replace(scales=0.9 * mixture_law(n).scales)
    assert (
        stats.kstest(np.interp(narrow.sample(path)[:, 0].numpy(), x[:, 0].numpy(), cumulative), "uniform").pvalue < 1e-3
    )
    assert (mixture_law(3).log_sigma == 0).all()


def test_a_mixture_at_a_temperature_is_a_mixture_of_narrower_components():
    m = model("gmm")
    tokens, order, places = question(m)
    at, half = (net.law(net.conditions(tokens, order, places, places), None) for net in (m, GMM(m.net, m.labels, 0.5)))
    assert torch.equal(half.means, at.means) and torch.equal(half.log_weights, at.log_weights)
    x = half.means[:, 0]
    one = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=at.log_weights),
        torch.distributions.Independent(torch.distributions.Normal(at.means, 0.5 * at.scales), 1),
    )
    torch.testing.assert_close(half.log_density(x), one.log_prob(x))
    assert not torch.allclose(at.log_density(x), one.log_prob(x))


@pytest.mark.parametrize("dimensions", [1, 2])
def test_a_tabular_mixture_is_the_mixture_of_the_equality_tests(dimensions):
    mixture, rng = random_mixture(np.random.default_rng(0), 3, 4, dimensions), np.random.default_rng(1)
    m, tokens = TabularMixture(mixture, 6), rng.standard_normal((6, 4, dimensions))
    places = torch.arange(4).expand(6, -1)
    law = m.law(m.conditions(torch.from_numpy(tokens), places, places, places), None)
    x = rng.standard_normal((6, 4, dimensions))
    found = law.log_density(torch.from_numpy(x).flatten(0, 1)).exp().view(6, 4).numpy()
    for i in range(4):
        assert np.allclose(found[:, i], mixture.density(tokens[:, :i], x[:, i]), rtol=1e-12)
        assert i == 0 or not np.allclose(found[:, i], mixture.density(tokens[::-1, :i], x[:, i]))


def test_a_tabular_mixture_knows_any_order():
    """The density of a whole sequence is the product of its conditionals, whatever their order."""
    mixture = random_mixture(np.random.default_rng(0), 3, 4, 2)
    tokens = torch.from_numpy(np.random.default_rng(1).standard_normal((5, 4, 2)))
    m, places = TabularMixture(mixture, 5, raster=False), torch.arange(4).expand(5, -1)

    def joint(order):
        ordered = tokens.gather(1, order[..., None].expand(-1, -1, 2))
        law = m.law(m.conditions(tokens, order, places, places), None)
        return law.log_density(ordered.flatten(0, 1)).view(5, 4).sum(1)

    assert torch.allclose(joint(places), joint(places.flip(1)))
    order = places.flip(1)
    independent = m.law(m.conditions(tokens, order, places, 0 * places), None)
    ordered = tokens.gather(1, order[..., None].expand(-1, -1, 2)).flatten(0, 1)
    assert not torch.allclose(independent.log_density(ordered).view(5, 4).sum(1), joint(places))


@pytest.fixture
def class_scenes(tmp_path):
    """An autoencoder with random weights, and the data that the recipes make of a few pictures with it."""
    config = KLConfig(dim=16, ch=8, ch_mult=(1, 1, 1, 1), res_blocks=1, norm_groups=4, scale=1.0)
    torch.manual_seed(0)
    publish(KL(config), tmp_path / "kl.safetensors", asdict(config))
    return tmp_path


RECIPES = {
    "mar": (
        train_mar,
        replace(train_mar.CONFIG, width=16, heads=2, encoder=1, decoder=1, head_width=32, head_depth=1),
        lambda c: MARNet(MARConfig(**c)),
    ),
    "gmm": (train_gmm, replace(GMM_SMALL, classes=60, grid=8, dim=16), lambda c: GMMNet(GMMConfig(**c))),
    "xar": (train_xar, replace(XAR_SMALL, classes=60, grid=8, dim=16, cell=2), lambda c: XARNet(XARConfig(**c))),
    "harmon": (
        train_harmon,
        replace(
            train_harmon.CONFIG,
            width=16,
            heads=2,
            encoder=1,
            decoder=1,
            head_width=32,
            head_depth=1,
            hidden=16,
            intermediate=16,
        ),
        lambda c: HarmonNet(HarmonConfig(**c)),
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_learns_and_its_file_is_a_model(name, class_scenes, monkeypatch):
    module, config, build = RECIPES[name]
    monkeypatch.setattr(training, "train", partial(training.train, every=1, warmup=2))
    monkeypatch.setattr(module, "TESTED", 20)
    out = class_scenes / f"{name}.safetensors"
    log = module.main(class_scenes, class_scenes / "kl.safetensors", out, config, 24, 8, 60, 0, 1, 1e-2)
    losses = [row["loss"] for row in log]
    assert len(losses) == 24 and np.mean(losses[-4:]) < np.mean(losses[:4])
    load_weights(build({k: v for k, v in read_config(out).items() if k != LATENTS}), out)
    assert read_config(out)[LATENTS] == hashlib.sha256((class_scenes / "kl.safetensors").read_bytes()).hexdigest()[:16]


def test_the_pairs_share_what_they_must():
    for module in (train_gmm, train_xar, train_harmon):
        target, draft = module.CONFIGS.values()
        assert all(getattr(target, x) == getattr(draft, x) for x in ("classes", "grid", "dim"))
    assert train_harmon.CONFIG.without == (train_harmon.VOCAB - 1,)
    assert (train_harmon.prompts(["", "a small red ring on a blue background"]) >= 0).sum(1).tolist() == [1, 9]
    assert gmm.GMMNet(train_gmm.CONFIG).head.out_features == 16 * 33
