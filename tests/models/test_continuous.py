"""Continuous models as decoders see them: conditions and distributions of xAR, Harmon and Gaussian mixtures; files."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from parity_decoders.continuous.mar import mar
from parity_decoders.noise import Noise, counted_noise
from parity_decoders.protocols.continuous import Start, draw_order, make_path_noise

from parity.decode.continuous import record
from parity.models import fetch
from parity.models.continuous import harmon, kl, load, xar
from parity.models.continuous.diffusion import HeadSampling, respace_steps
from parity.models.continuous.gmm import GMM, GMMConfig, GMMNet
from parity.models.continuous.harmon import HarmonConfig, HarmonNet
from parity.models.continuous.kl import KL, KLConfig, fold, rename_published, unfold
from parity.models.continuous.mar import MARConfig, MARNet
from parity.models.continuous.xar import XAR, XARConfig, XARNet, compute_rotations

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
    """Seed torch before each test, so that the numbers do not depend on which tests ran before."""
    torch.manual_seed(0)


def randomize(net):
    """Draw all weights of a network, since many start at zero and hide what acts on what; return it."""
    generator = torch.Generator().manual_seed(0)
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.3, generator=generator)
    return net.eval()


def make_model(name):
    """Make a model of four rows of a family, "gmm", "harmon" or "xar" with the cell's side, with guidance."""
    sampling = HeadSampling(steps=4, guidance=2.0, clip=4.0)  # without clip, untrained heads magnify rounding errors
    if name == "gmm":
        return GMM(randomize(GMMNet(GMM_SMALL)), torch.tensor([0, 1, 2, 4]), sampling)
    if name == "harmon":
        prompts = torch.tensor([[1, 2, 3], [4, -1, -1], [5, 6, -1], [1, 2, 4]])
        return harmon.Model(randomize(HarmonNet(HARMON_SMALL)), prompts, sampling)
    cell = int(name.removeprefix("xar"))
    return XAR(randomize(XARNet(replace(XAR_SMALL, cell=cell))), torch.tensor([0, 1, 2, 4]), sampling)


MODELS = ("gmm", "xar1", "xar2", "harmon")


def draw_inputs(m, rows=4, n=2):
    """Draw tokens, an order and n ranks for each row of a model."""
    rng = np.random.default_rng(1)
    tokens = torch.from_numpy(rng.standard_normal((rows, m.length, m.dim), np.float32))
    order = np.arange(m.length)[None].repeat(rows, 0)
    order = torch.from_numpy(order if m.raster else rng.permuted(order, axis=1))
    return tokens, order, torch.from_numpy(rng.integers(0, m.length, (rows, n)))


@torch.no_grad()
def draw_token(m, tokens, order, ranks, known_ranks=None, keys=None):
    """Draw tokens at these ranks; return them with log density and deviation, all that a decoder learns of the
    distribution. Tokens of ranks below `known_ranks` are read, by default all before the rank; `keys` choose rows of
    the noise."""
    noise = counted_noise(3, range(4), torch.float32)
    path = make_path_noise(noise if keys is None else Noise(noise.keys[keys]), "draft", ranks, m.steps, m.dim)
    distribution = m.distribution(
        m.conditions(tokens, order, ranks, ranks if known_ranks is None else known_ranks), path
    )
    x = distribution.sample(path)
    figures = torch.cat([x, distribution.log_density(x)[:, None], distribution.log_sigma[:, None]], 1)
    return figures.unflatten(0, ranks.shape)


def measure_leak(m, tokens, order, ranks):
    """Measure the largest change of a drawn token when the tokens at its rank and after it change."""
    original = draw_token(m, tokens, order, ranks)
    change = 0.0
    for j in range(ranks.shape[1]):
        later = torch.arange(m.length) >= ranks[:, j : j + 1]  # the ranks that may not be read
        on_grid = torch.zeros_like(later).scatter(1, order, later)
        changed_tokens = torch.where(on_grid[..., None], tokens + 1, tokens)
        change = max(change, float((draw_token(m, changed_tokens, order, ranks)[:, j] - original[:, j]).abs().max()))
    return change


@pytest.mark.parametrize("name", MODELS)
def test_a_row_does_not_depend_on_its_batch(name):
    m = make_model(name)
    tokens, order, ranks = draw_inputs(m)
    batched = draw_token(m, tokens, order, ranks)
    for row in torch.arange(len(tokens))[:, None]:
        single = draw_token(m.take(row), tokens[row], order[row], ranks[row], keys=row)
        assert torch.allclose(single[0], batched[row[0]], atol=1e-5, rtol=1e-5)
    other_condition = draw_token(m.take(torch.tensor([1, 1, 2, 3])), tokens, order, ranks)
    assert not torch.allclose(other_condition[0], batched[0], atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_distribution_does_not_depend_on_the_other_ranks_of_a_call(name):
    """Noise is keyed by rank, and one pass over all ranks gives what a pass for each gives."""
    m = make_model(name)
    tokens, order, _ = draw_inputs(m)
    ranks = torch.arange(m.length).expand(4, -1)
    batched = draw_token(m, tokens, order, ranks)
    for i in range(m.length):
        single = draw_token(m, tokens[:, : i + 1] if m.raster else tokens, order, ranks[:, i : i + 1])
        assert torch.allclose(single[:, 0], batched[:, i], atol=2e-5, rtol=1e-4)
    assert not torch.allclose(batched[:, 1:], batched[:, :-1], atol=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_a_condition_reads_known_tokens_alone(name):
    m = make_model(name)
    tokens, order, ranks = draw_inputs(m)
    assert measure_leak(m, tokens, order, ranks) == 0
    assert not torch.equal(draw_token(m, tokens + 1, order, ranks), draw_token(m, tokens, order, ranks))


def test_a_model_that_reads_ahead_is_noticed():
    """Must fail: a model that reads one token too many."""

    class Ahead(GMM):
        """A model that gives the distribution of the next rank, which may read the token at this one."""

        def conditions(self, tokens, order, ranks, known_ranks):
            next_ranks = (ranks + 1).clamp(max=self.length - 1)
            return super().conditions(tokens, order, next_ranks, next_ranks)

    gmm = make_model("gmm")
    m = Ahead(gmm.net, gmm.labels, gmm.sampling)
    assert measure_leak(m, *draw_inputs(m)) > 1e-3


PUBLISHED = {  # networks of published sizes, their millions of parameters, and shapes of tensors in their files
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
    """Those of latent diffusion, which numbers the decoder's levels the other way."""
    with torch.device("meta"):
        net = KL(KLConfig()).state_dict()
    theirs = ["quant_conv.bias", "encoder.mid.attn_1.proj_out.weight", "encoder.down.4.attn.1.q.weight"]
    theirs += ["encoder.down.3.downsample.conv.bias", "encoder.down.2.block.0.nin_shortcut.weight"]
    theirs += ["decoder.up.0.block.2.norm2.weight", "decoder.up.4.upsample.conv.weight", "decoder.norm_out.bias"]
    renamed = rename_published(dict.fromkeys([*theirs, "loss.logvar"], torch.empty(0)))
    assert len(renamed) == len(theirs)
    assert set(renamed) <= set(net)
    assert round(4 * sum(v.numel() for v in net.values()) / 2**20) == 254  # the published file has 254 MiB


def test_xar_walk_is_euler_maruyama():
    """Tokens from N(m, s^2) have the velocity v = E[noise - x | x_t], whose walk ends in that distribution."""
    m, s = 0.7, 0.5

    class KnownVelocity(torch.nn.Module):
        config = replace(XAR_SMALL, dim=1)

        def forward(self, cells, t, labels, ranks, mask, cache=None):
            """Return the exact velocity of a Gaussian token at time t."""
            a, t = 1 - t[..., None], t[..., None]
            gap = (cells - a * m) / (a**2 * s**2 + t**2)
            return t * gap - (m + a * s**2 * gap), []

        def read(self, cells, t, labels):
            return None, [(torch.zeros(len(cells), 1, cells.shape[1], 1),) * 2]

    net = KnownVelocity()
    for last_step in ("noise", "mean"):
        model = XAR(net, torch.zeros(4000, dtype=torch.int64), HeadSampling(steps=100, last=last_step))
        ranks = torch.tensor([[3, 8]]).expand(4000, -1)
        path = make_path_noise(counted_noise(0, range(4000)), "sample", ranks, model.steps, model.dim)
        distribution = model.distribution(
            model.conditions(torch.zeros(4000, 16, 1).double(), ranks, ranks, ranks), path
        )
        x = distribution.sample(path)
        assert abs(float(x.mean()) - m) < 0.03
        assert abs(float(x.std()) - s) < 0.03
        assert float(distribution.std.max()) == pytest.approx(0.04 * 2**0.5)
        assert (distribution.sample(path) == distribution.mean).all() == (last_step == "mean")
        times = [*np.linspace(1, 0.04, 100)]
        log_sigma = sum(0.5 * np.log(2 * a * (a - b)) for a, b in pairwise(times))
        assert float(distribution.log_sigma[0]) == pytest.approx(log_sigma, rel=1e-5)


def test_the_rotations_of_xar_are_the_authors_to_the_last_bit():
    c = XARConfig()
    dim = c.width // c.heads // 2
    freqs = 1.0 / (10000 ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim))
    angles = torch.arange(c.grid)[:, None] * freqs
    grid = torch.cat([angles[:, None].expand(-1, c.grid, -1), angles[None].expand(c.grid, -1, -1)], -1)
    assert torch.equal(unfold(compute_rotations(c).view(1, c.cells, -1), c.cell)[0], grid.flatten(0, 1))


@pytest.mark.parametrize("name", ["harmon", "xar1"])
@torch.no_grad()
def test_guidance_has_the_dtype_of_the_tokens(name):
    """MAR's and xAR's formulas: u + (1 + (g - 1) share) (c - u), with share k / L of MAR at its k-th token, and
    (k - 1) / (L - 1) of xAR."""
    m = make_model(name)
    m.net.double()
    tokens, order, _ = draw_inputs(m)
    ranks = torch.full((4, 1), 6)
    x = torch.randn(4, m.dim, dtype=torch.float64)

    def predict(guidance, labels=m.labels):
        model = replace(m, labels=labels, sampling=HeadSampling(steps=4, guidance=guidance))
        return model.chain(model.conditions(tokens.double(), order, ranks, ranks)).predict(x, 3)[:, : m.dim]

    guided, with_label, without = predict(2.7), predict(1.0), predict(1.0, torch.full_like(m.labels, -1))
    share = 7 / 16 if name == "harmon" else 6 / 15
    expected = without + (1 + 1.7 * share) * (with_label - without)
    assert (guided - expected).abs().max() < 1e-12 * expected.abs().max()


def test_harmons_tables_are_resized_in_float64():
    """Bilinear, corners not aligned: at twice the size a line (a, b) becomes a, (3 a + b) / 4, (a + 3 b) / 4, b."""
    c = replace(HARMON_SMALL, grid=2)
    names = [f"mar.{name}_pos_embed_learned" for name in ("encoder", "decoder", "diffusion")]
    state = {name: torch.randn(1, 4 + c.buffer * ("diffusion" not in name), c.width) for name in names}
    lines = torch.tensor([[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]]).double()
    for name, table in harmon.resize(state, c, 4).items():
        before, grid = state[name].double()[0].split([state[name].shape[1] - 4, 4])
        expected = torch.einsum("ai,bj,ijd->abd", lines, lines, grid.view(2, 2, -1)).flatten(0, 1)
        assert (table[0] - torch.cat([before, expected])).abs().max() < 1e-15


def test_xar_read_token_by_token_keeps_each_positions_embedding():
    """Weights of cells of 2 x 2, read with cell 1: a token alone, without others to read, has the velocity that it has
    in a cell whose other tokens it may not read. In the order of the cells it would have another's."""
    trained = randomize(XARNet(replace(XAR_SMALL, cell=2)))
    config = replace(XAR_SMALL, cell=1)
    state = xar.regroup(trained.state_dict(), trained.config, 1)
    token_by_token, not_regrouped = XARNet(config).eval(), XARNet(config).eval()
    token_by_token.load_state_dict(state)
    not_regrouped.load_state_dict(trained.state_dict())
    grid, t, label = torch.randn(1, 16, 3), torch.full((1, 1), 0.5), torch.tensor([2])
    itself = torch.eye(16, dtype=torch.bool)
    every = torch.arange(16)[None]
    with torch.no_grad():
        cells, _ = trained(fold(grid, 2), t, label, every[:, :4], itself)
        tokens, _ = token_by_token(grid, t, label, every, itself)
        wrong, _ = not_regrouped(grid, t, label, every, itself)
    torch.testing.assert_close(tokens, unfold(cells, 2), rtol=1e-4, atol=1e-4)
    assert (wrong - tokens).abs().max() > 0.1
    there_and_back = xar.regroup(state, config, 2)
    assert all(torch.equal(there_and_back[name], value) for name, value in trained.state_dict().items())


def test_bad_sizes_of_xar_are_one_line():
    with pytest.raises(ValueError, match="cell 3: allowed: a divisor of grid 4"):
        XARNet(replace(XAR_SMALL, cell=3))
    with pytest.raises(ValueError, match="width 12: allowed: a multiple of 4 x heads 2"):
        XARNet(replace(XAR_SMALL, width=12))


def test_temperature_narrows_the_components_of_a_mixture():
    m = make_model("gmm")
    tokens, order, ranks = draw_inputs(m)
    models = m, replace(m, sampling=HeadSampling(temperature=0.5))
    distribution, narrow = (model.distribution(model.conditions(tokens, order, ranks, ranks)) for model in models)
    assert torch.equal(narrow.means, distribution.means)
    assert torch.equal(narrow.log_weights, distribution.log_weights)
    torch.testing.assert_close(narrow.scales, 0.5 * distribution.scales)


FAMILIES = ("mar", "xar", "harmon", "gmm")
SETTINGS = {"steps": 4, "guidance": 2.0, "guidance_schedule": "linear", "clip": 4.0}


@pytest.fixture(scope="module", params=FAMILIES)
def embedded(request, tmp_path_factory):
    """A continuous model that ships with the package, with its draft model."""
    folder = tmp_path_factory.mktemp("m")
    return load.load(fetch.make_manifest("continuous", "m", {"family": request.param}, folder), needs="draft")


def select_settings(loaded):
    """Select the settings that a loaded model's family reads, as a cell's specification does."""
    return {k: v for k, v in SETTINGS.items() if k in loaded.family.FAMILY["reads"]}


def test_an_embedded_pair_draws_images_from_its_manifest(embedded):
    pair = embedded.pair(range(2, 4), select_settings(embedded), True)
    assert (pair.target.length, pair.target.dim) == (pair.draft.length, pair.draft.dim)
    assert draw_token(pair.draft, *draw_inputs(pair.draft, 2), keys=torch.arange(2)).isfinite().all()
    assert pair.target.raster == embedded.family.FAMILY["causal"]
    noise = counted_noise(0, range(2), torch.float32)
    start = Start(draw_order(noise, 2, pair.target.length, pair.target.raster))
    decoded = record(pair, start, mar(pair, start, noise=noise, iterations=0 if pair.target.raster else 4))
    pixels = embedded.images(decoded.tokens)
    assert pixels.shape == (2, 64, 64, 3)
    assert pixels.dtype == np.uint8
    assert pixels.std() > 0
    assert embedded.pair(range(2), select_settings(embedded), False).draft is None


@torch.inference_mode()
def test_images_of_a_float64_model_are_float64(embedded):
    wide = load.Loaded(embedded.manifest, torch.device("cpu"), torch.float64)
    cell = embedded.manifest["network"].get("cell", 1)
    tokens = torch.randn(1, 64 // cell**2, 16 * cell**2, dtype=torch.float64)
    net = kl.load(embedded.file("kl")).double()
    assert (wide.decode(tokens) - net.decode(unfold(tokens, cell))).abs().max() < 1e-12
    assert net.moments(torch.zeros(1, 3, 64, 64).double())[0].dtype == torch.float64


def test_only_settings_that_a_family_reads_change_its_distribution(embedded):
    """So a cell's key holds what its images depend on."""
    pair = embedded.pair(range(4), {}, False)
    reads = embedded.family.FAMILY["reads"]
    tokens, order, ranks = draw_inputs(pair.target)
    tokens, order, ranks = tokens[:4], order[:4], ranks[:4]

    def distribution(**changes):
        m = embedded.pair(range(4), {"steps": 3, "clip": 4.0, **changes}, False).target
        return draw_token(m, tokens, order, ranks)

    plain = distribution()
    changed = {"temperature": 0.5, "clip": 0.5, "sampler": "ddim", "guidance": 3.0}
    if embedded.family.FAMILY["causal"]:
        del changed["sampler"]  # causal families have one sampler or none
    for name, value in changed.items():
        assert torch.equal(distribution(**{name: value}), plain) == (name not in reads), name


def test_a_respaced_schedule_equals_the_released_sum():
    for steps in range(1, 1001):
        step = 0.0
        released = []
        for _ in range(steps):
            released.append(round(step))
            step += 999 / (steps - 1) if steps > 1 else 1
        assert respace_steps(steps) == released
    assert respace_steps(1) == [0]
    assert 499 in respace_steps(21)
