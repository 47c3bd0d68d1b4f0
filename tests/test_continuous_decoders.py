"""The decoders of continuous tokens: the target alone and continuous speculative decoding."""

import json
import math

import numpy as np
import pytest
import torch
from parity.experiment.config import ContinuousSpec, continuous_methods, load, options
from parity.models.continuous.guided import MAR

from parity.base.errors import ConfigError
from parity.base.noise import batch_noise, counted_noise
from parity.decode.continuous import Clocked, run
from parity.decoders.continuous.cspd import cspd, residual
from parity.decoders.continuous.mar import known_after, mar
from parity.decoders.steps import Draw
from parity.equality import mixtures as continuous
from parity.equality.one_token import draw, rows
from parity.experiment import continuous as cells
from parity.models.continuous.diffusion import Sampling, Steps, Trajectory, single_path_log_ratio, walk
from parity.models.continuous.gmm import TabularMixture
from parity.models.continuous.mar import MARConfig, MARNet
from parity.models.continuous.protocol import Pair, Start, draw_order, path_noise

CONFIG = MARConfig(
    classes=6, grid=4, dim=4, width=32, encoder=1, decoder=1, heads=2, buffer=2, head_width=32, head_depth=1
)
SAMPLING = Sampling(steps=5, guidance=2.0)
RELEASED = {
    "verify": "blind", "sigma": "inverted", "inner_temperature": 42.0, "resample": "untempered", "truncate": False, "give_up": "zero",
}  # fmt: skip


def network(seed: int, spread: float = 0.1) -> MARNet:
    torch.manual_seed(seed)
    net = MARNet(CONFIG).double().eval()
    for p in net.parameters():
        torch.nn.init.normal_(p, std=spread)
    return net


TARGET, DRAFT = network(0), network(1)


def pair(target: MARNet, draft: MARNet, n: int, sampling: Sampling = SAMPLING) -> Pair:
    labels = torch.arange(n) % CONFIG.classes
    return Pair(Clocked(MAR(target, labels, sampling)), Clocked(MAR(draft, labels, sampling)))


def start(ids: list[str], seed: int = 0):
    noise = batch_noise(seed, ids, dtype=torch.float64)
    return noise, draw_order(noise, len(ids), CONFIG.tokens, False)


def decode(models: Pair, ids: list[str], method=mar, **given):
    noise, order = start(ids)
    return run(order, CONFIG.dim, method(models, Start(order), noise=noise, **given))


@pytest.mark.parametrize("given", [{}, {"gamma": 1, "prefill": 0.0}, {"gamma": 16, "prefill": 0.3}])
def test_a_draft_that_is_the_target_leaves_plain_sampling(given):
    ids = [str(i) for i in range(3)]
    plain, fast = decode(pair(TARGET, TARGET, 3), ids), decode(pair(TARGET, TARGET, 3), ids, cspd, **given)
    assert (plain.tokens - fast.tokens).abs().max() < 1e-9
    assert (fast.accepted != 0).all() and (fast.steps <= plain.steps).all()
    other = decode(pair(TARGET, DRAFT, 3), ids, cspd, **given)
    assert (plain.tokens - other.tokens).abs().max() > 1e-3  # the comparison can fail


@pytest.mark.parametrize("given", [{"gamma": 3}, {"gamma": 5, "align": False}, {"gamma": 4, **RELEASED}])
def test_a_row_alone_is_the_row_in_a_batch(given):
    ids = [str(i) for i in range(4)]
    models = pair(TARGET, network(0, 0.1002), 4)  # close enough that some drafts are kept, so that rows fall apart
    batch = decode(models, ids, cspd, **given)
    for i in range(4):
        only = Pair(*(m.take(torch.tensor([i])) for m in models))
        alone = decode(only, [ids[i]], cspd, **given)
        assert (alone.tokens[0] - batch.tokens[i]).abs().max() < 1e-9
        assert (alone.accepted[0] == batch.accepted[i]).all() and alone.steps[0] == batch.steps[i]


def test_on_a_mixture_it_is_exact_and_a_sampler_that_gives_up_is_not():
    target, draft = (continuous.random_mixture(np.random.default_rng(s), 3, 3, 1) for s in (0, 1))
    n, found = 20_000, {}
    for name, given in (("exact", {}), ("gives up", {"tries": 1}), ("zero", {"tries": 1, "give_up": "zero"})):
        noise, order = counted_noise(5, range(n)), torch.arange(3).expand(n, -1)
        models = Pair(TabularMixture(target, n), TabularMixture(draft, n))
        done = run(order, 1, cspd(models, Start(order), noise=noise, gamma=2, prefill=0.0, **given))
        tests = continuous.continuous_rows(done.tokens.numpy(), target, rng=np.random.default_rng(6), bins=4)
        found[name] = min(r["p_holm"] for r in tests if r["decides"])
        assert (done.gave_up > 0).float().mean() < 0.01 if name == "exact" else done.gave_up.sum() > n / 10
    assert found["exact"] > 0.01 and found["gives up"] < 1e-3 and found["zero"] < 1e-3


def laws(n: int, seed: int, std: float) -> Trajectory:
    rng = torch.Generator().manual_seed(seed)
    return Trajectory(
        torch.randn(n, 3, generator=rng).double(),
        std * torch.rand(n, 3, generator=rng).double() + 0.2,
        torch.zeros(n).double(),
    )


@pytest.mark.parametrize("aligned", [True, False])
def test_theorem_1_shared_noise_lowers_the_squared_distance_by_twice_the_trace(aligned):
    n = 200_000
    p, q = (
        Trajectory(*(x[:1].expand(n, -1) if x.ndim == 2 else x for x in laws(n, s, 1.0)[:2]), torch.zeros(n))
        for s in (1, 2)
    )
    noise = torch.randn(2, n, 3, generator=torch.Generator().manual_seed(3)).double()
    far = [((q.sample(lambda _: noise[0]) - p.sample(lambda _, k=k: noise[k])) ** 2).sum(-1) for k in (0, 1)]
    lowered, error = far[1].mean() - far[0].mean(), (far[1] - far[0]).std() / math.sqrt(n)
    trace = 2 * (q.std[0] * p.std[0]).sum() if aligned else torch.zeros(())
    assert (abs(lowered - trace) < 4 * error) == aligned


class Gentle(torch.nn.Module):
    """A head that knows the noise well, as a trained one does: an untrained one sends x_0 far away at the noisiest step."""

    def __init__(self, tilt: float):
        super().__init__()
        self.cond_embed, self.tilt = torch.nn.Identity(), tilt

    def run(self, x, t, condition):
        clean = 0.3 + self.tilt * condition[:, :4]
        from parity.models.continuous.diffusion import TRAINED, schedule

        ab = schedule(TRAINED).alpha_bar[t][:, None]
        return torch.cat([(x - ab.sqrt() * clean) / (1 - ab).sqrt(), torch.tanh(self.tilt * 20 + condition[:, :4])], -1)


def gentle(tilt: float, n: int) -> Steps:
    return Steps(Gentle(tilt), SAMPLING, torch.linspace(-1, 1, 4).double().expand(n, -1))


def test_the_ratio_of_two_aligned_paths_is_that_of_their_deviations_and_last_steps():
    """Eq. 9 against the product of all steps' densities (eq. 4), each trajectory's under its own model."""
    n, T = 5, SAMPLING.steps
    p, q = gentle(0.02, n), gentle(0.03, n)
    noise = [torch.randn(n, 4, generator=torch.Generator().manual_seed(i)).double() for i in range(T + 1)]
    x = {"p": noise[T], "q": noise[T]}
    total = torch.zeros(n).double()
    for i in range(T, 0, -1):
        for name, steps, sign in (("q", q, -1), ("p", p, 1)):
            mean, std = steps.law(x[name], i)
            after = mean + std * noise[i - 1] if i > 1 or name == "q" else x["q"]  # both end in the draft's x_0
            total += sign * torch.distributions.Normal(mean, std).log_prob(after).sum(-1)
            x[name] = after
    two = [walk(s, lambda i: noise[i]) for s in (p, q)]
    x0, log_sigma = two[1].sample(lambda i: noise[i]), two[1].log_sigma - two[0].log_sigma
    last = two[0].log_density(x0) - two[1].log_density(x0)
    assert torch.allclose(total, last + log_sigma, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(total, last - log_sigma, rtol=1e-3)  # the inverse Sigma, as released


def test_a_single_path_ratio_has_mean_one():
    """E_q p(Y)/q(Y) = 1 (appendix A.1.2), for models so near that its mean can be seen."""
    n = 20_000
    noise = [torch.randn(n, 4, generator=torch.Generator().manual_seed(i)).double() for i in range(SAMPLING.steps + 1)]
    ratio = single_path_log_ratio(gentle(0.0203, n), gentle(0.02, n), lambda i: noise[i]).exp()
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(n) and ratio.std() > 1e-3
    assert ratio.median() < 1  # and yet most paths are less likely under the other model


def test_the_residual_is_the_positive_part_and_says_when_it_gives_up():
    n, noise = 40_000, counted_noise(1, range(40_000))
    p = Trajectory(torch.zeros(n, 1).double(), torch.ones(n, 1).double(), torch.zeros(n).double())
    q = Trajectory(torch.full((n, 1), 0.8).double(), torch.ones(n, 1).double(), torch.zeros(n).double())
    x, made, none = residual(p, q, torch.zeros(n), noise, torch.zeros(n, dtype=torch.int64), 1, 200, 1.0)
    grid = torch.linspace(-5, 3, 4001).double()
    density = (
        torch.distributions.Normal(0, 1).log_prob(grid).exp() - torch.distributions.Normal(0.8, 1).log_prob(grid).exp()
    ).clamp(min=0)
    mean = (grid * density).sum() / density.sum()
    assert not none.any() and made.min() >= 1
    assert abs(x.mean() - mean) < 4 * x.std() / math.sqrt(n)
    assert abs(float(mean)) > 0.3  # and not the target's own mean
    _, made, none = residual(
        p, p, torch.zeros(n), noise, torch.zeros(n, dtype=torch.int64), 1, 3, 1.0
    )  # p = q: nothing is left
    assert none.all() and (made == 3).all()


@pytest.mark.parametrize("give_up", ["target", "zero", "error"])
def test_giving_up_is_an_error_or_counted(give_up):
    target, draft = (continuous.random_mixture(np.random.default_rng(s), 3, 3, 1) for s in (0, 1))
    n = 50
    noise, order = counted_noise(5, range(n)), torch.arange(3).expand(n, -1)
    models = Pair(TabularMixture(target, n), TabularMixture(draft, n))
    steps = cspd(models, Start(order), noise=noise, gamma=2, prefill=0.0, tries=1, give_up=give_up)
    if give_up == "error":
        with pytest.raises(ValueError, match="none of 1 draws was accepted"):
            run(order, 1, steps)
    else:
        done = run(order, 1, steps)
        assert done.gave_up.sum() > 0 and ((done.tokens == 0).any() == (give_up == "zero"))


@pytest.mark.parametrize(
    "iterations, schedule",
    [(0, "cosine"), (16, "constant"), (4, "constant"), (5, "cosine"), (16, "cosine"), (1, "cosine")],
)
def test_parallel_sampling_fills_the_image_once(iterations, schedule):
    known = known_after(iterations, schedule, 16)
    assert known[-1] == 16 and known == sorted(known)
    assert len(set(known)) == (iterations or 16) or schedule == "cosine"
    if schedule == "cosine" and iterations == 5:
        assert known[0] < 16 - known[-2]  # few at first, many at the end
    done = decode(pair(TARGET, DRAFT, 2), ["a", "b"], iterations=iterations, schedule=schedule)
    assert done.tokens.isfinite().all() and done.step.max() <= (iterations or 16)


def test_the_law_of_one_token_tells_a_draft_from_its_target():
    models = Pair(*(m.model for m in pair(TARGET, DRAFT, 1)))
    _, order = start(["x"])
    image = (decode(pair(TARGET, DRAFT, 1), ["x"]).tokens[0], order[0], 3)

    def as_drafted(models, begin, *, noise):
        return mar(Pair(models.draft), begin, noise=noise)

    for method, hit in ((mar, False), (as_drafted, True)):
        found = rows(
            [(models, image), (models, (*image[:2], 5))],
            method,
            {},
            128,
            (11, 13),
            model="mar",
            method="m",
            key="k",
            seed=0,
        )
        tests = [r for r in found if r["decides"]]
        assert any(r["verdict"] == "rejected" for r in tests) == hit
        assert len(tests) == 4 * (1 + hit) and all(
            r["p_holm"] >= r["p_value"] for r in tests
        )  # one family; repeated if it rejects
        assert (
            max(r["p_holm"] / r["p_value"] for r in tests) > 2
        )  # its correction is over places too: two tests of one place give 2 at most
    done = draw(models, cspd, {"gamma": 1, "prefill": 0.0}, image, counted_noise(1, range(8)))
    assert done.accepted.shape == (8, 1) and (done.accepted >= 0).all()


def test_a_decoder_that_stops_or_draws_nothing_is_told():
    order = torch.arange(4).expand(2, -1)
    short = [Draw(torch.zeros(2, 2, 1), torch.tensor([2, 2]))]
    with pytest.raises(ValueError, match="stopped at place 2 of 4"):
        run(order, 1, iter(short))
    bad = [Draw(torch.full((2, 4, 1), float("nan")), torch.tensor([4, 4]))]
    with pytest.raises(ValueError, match="not finite"):
        run(order, 1, iter(bad))
    fine, looked = torch.zeros(2, 4), torch.ones(2, 4, dtype=torch.bool)
    draw_ = Draw(torch.zeros(2, 4, 1), torch.tensor([4, 4]), looked, looked, fine, fine)
    assert run(order, 1, iter([draw_])).accepted.eq(1).all()
    with pytest.raises(ValueError, match="place 0, row 0: the densities"):
        run(order, 1, iter([draw_._replace(log_ratio=fine + float("nan"))]))


def test_what_is_counted_is_what_was_asked():
    models = pair(TARGET, DRAFT, 2)
    decode(models, ["a", "b"])
    assert models.target.counts["conditions"] == 32 and models.target.counts["passes"] == 16
    models = pair(TARGET, TARGET, 2)
    decode(models, ["a", "b"], cspd, gamma=4, prefill=0.0)
    assert models.target.counts["passes"] == 4  # 5 + 5 + 5 + 1 tokens
    assert models.draft.counts["conditions"] == 2 * (4 + 4 + 4 + 1)


def test_options_are_read_from_the_signatures():
    assert continuous_methods() == ("cspd", "mar")
    assert options("cspd", {})["gamma"] == 8 and options("mar", {})["iterations"] == 0


def experiment(**section):
    return {"methods": {"ar": [{}]}, "continuous": {"methods": {"mar": [{}]}, **section}}


@pytest.mark.parametrize(
    "section, words",
    [
        ({"methods": {"mar": [{}], "cspd": [{"gamma": 0}]}}, "gamma"),
        ({"methods": {"mar": [{}], "cspd": [{"gamma": 65}]}}, "at most the 64 tokens"),
        ({"methods": {"mar": [{"iterations": 16}]}}, "the reference"),
        ({"methods": {"cspd": [{}]}}, "needs mar"),
        ({"methods": {"mar": [{}], "sjd": [{}]}}, "unknown method"),
        ({"methods": {"mar": [{}], "cspd": [{"window": 3}]}}, "window"),
        ({"models": ["harmon"], "sampling": {"guidance": 2.0}}, "harmon does not have it; allowed: constant"),
        ({"models": ["gmm"], "sampling": {"guidance": 2.0}}, "gmm does not have it"),
        ({"models": ["xar"], "sampling": {"sampler": "ddim"}}, "xar has no diffusion head"),
        ({"sampling": {"sampler": "ddim", "eta": 0.0}}, "eta"),
        ({"models": ["mar", "mar"]}, "given twice"),
        ({"batch": [0]}, "allowed: 1 to 4096"),
        ({"models": ["xar"], "methods": {"mar": [{}], "cspd": [{"verify": "blind"}]}}, "allowed: 'each'"),
    ],
)
def test_a_wrong_section_is_one_line(section, words):
    with pytest.raises(ConfigError, match=words) as error:
        load(experiment(**section))
    assert "\n" not in str(error.value) and "continuous" in str(error.value)


@pytest.mark.parametrize(
    "key, words",
    [("grid", "tokens a side"), ("dim", "numbers a token"), ("classes", "classes"), ("latents", "latents")],
)
def test_a_draft_of_another_kind_is_refused(tmp_path, key, words):
    from safetensors.torch import save_file

    config = {"grid": 8, "dim": 16, "classes": 60, "latents": "a"}
    for name, own in (("mar", config), ("mar-draft", config | {key: "other"})):
        save_file({"x": torch.zeros(1)}, tmp_path / f"{name}.safetensors", metadata={"config": json.dumps(own)})
    cells.check_pair("mar", False, tmp_path)
    with pytest.raises(ConfigError, match=f"differ in {words}"):
        cells.check_pair("mar", True, tmp_path)
    with pytest.raises(ConfigError, match="is missing"):
        cells.check_pair("xar", False, tmp_path)


def test_keys_of_cells_follow_what_they_depend_on():
    one = load(experiment(methods={"mar": [{}], "cspd": [{"gamma": 4}]}, batch=[8, 16]))
    found = cells.continuous_cells(one)
    assert [(c["role"], c["spec"]["batch"]) for c in found] == [
        ("reference", 8), ("control", 8), ("method", 8), ("reference", 16), ("method", 16)
    ]  # fmt: skip
    assert len({c["key"] for c in found}) == len(found)
    for c in found:
        base = cells.reference_of(c, found)
        assert base["role"] == "reference" and base["spec"]["batch"] == c["spec"]["batch"]
    assert ContinuousSpec(methods={"mar": [{}]}).models == ["mar"]


def test_a_setting_that_a_model_does_not_read_makes_no_other_cell():
    two = [{"steps": 5, "temperature": 0.7}, {"steps": 9, "temperature": 0.7}]
    for model, count in (("gmm", 2), ("xar", 4), ("mar", 4)):
        found = cells.continuous_cells(load(experiment(models=[model], sampling=two, methods={"mar": [{}]})))
        assert len(found) == count, model


def test_noise_of_a_place_is_its_own():
    noise = counted_noise(0, range(2))
    many = path_noise(noise, "sample", torch.tensor([[3, 7], [3, 7]]), 5, 4)
    one = path_noise(noise, "sample", torch.tensor([[7], [7]]), 5, 4)
    assert torch.equal(many(2).unflatten(0, (2, 2))[:, 1], one(2))
    assert not torch.equal(one(1), one(2))
    x = noise.normal("sample", torch.arange(50_000)[None].expand(2, -1), 1)
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02 and x.isfinite().all()
