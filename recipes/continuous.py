"""Recipes of the continuous models: kl, classifier, and pairs of target and draft of mar, xar, harmon and gmm."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from parity.base.weights import sha256
from parity.embedded.classes import CLASSES
from parity.embedded.tokenizer import PREFIX, VOCAB, encode_ids
from parity.metrics.networks.classifier import Classifier
from parity.models.continuous import diffusion
from parity.models.continuous.gmm import GMMConfig, GMMNet
from parity.models.continuous.harmon import HarmonConfig, HarmonNet
from parity.models.continuous.kl import KL, LATENTS, KLConfig, fold, load
from parity.models.continuous.mar import MARConfig, MARNet
from parity.models.continuous.xar import XARConfig, XARNet
from parity.models.discrete.vq import to_images
from parity.train.loop import Job, Recipe, reduce_precision
from recipes.data import (
    UNCONDITIONAL,
    compute_reconstruction_error,
    draw_autoencoder_batch,
    draw_class_images,
    draw_images,
    encode_class_images,
)

KL_CONFIG = KLConfig(
    dim=16, ch=16, ch_mult=(1, 2, 4, 4), res_blocks=1, norm_groups=8, decoder_attention=True, scale=1.0
)
KL_WEIGHT = 3e-4  # weight of the KL divergence, a mean over latent entries; at 3e-3 colours shift and textures blur


def kl(job: Job) -> Recipe:
    """Make the recipe of the KL autoencoder: stride 8, tokens of 16 numbers. Its log ends with the mean absolute error
    on held-out images; the weights' header has the scale that gives latents a deviation of one."""
    _, pixels = draw_images(job)
    torch.manual_seed(job.seed)
    net = KL(KL_CONFIG).to(memory_format=torch.channels_last)

    @torch.compile
    def reconstruct(x, noise):
        mean, log_variance = net.moments(x)
        z = mean + (0.5 * log_variance).exp() * noise
        return mean, log_variance, net.decoder(net.post_quant_conv(z)).float()

    def loss(step, rng):
        """Compute the reconstruction error of a random batch plus the weighted KL divergence of its latents."""
        x = draw_autoencoder_batch(job, pixels, step, rng)
        side = x.shape[-1] // KL_CONFIG.stride
        noise = torch.from_numpy(rng.standard_normal((len(x), KL_CONFIG.dim, side, side), np.float32))
        with reduce_precision():
            mean, log_variance, y = reconstruct(x, noise)
        nats = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).mean()  # KL(N(mean, variance) || N(0, 1))
        l1, value = compute_reconstruction_error(x, y)
        figures = {"l1": l1.item(), "kl": nats.item(), "deviation": mean.std().item()}
        return value + KL_WEIGHT * nats, figures

    def finish():
        """Measure error and deviation of latents on 256 held-out images; return them and the configuration."""
        net.eval()
        batches = to_images(draw_images(job, test=True)[1][:256]).split(64)
        z = [net.encode(batch) for batch in batches]
        l1 = torch.cat([(net.decode(t) - batch).abs() for t, batch in zip(z, batches, strict=True)]).mean()
        deviation = torch.cat(z).std()
        figures = {"held_out_l1": l1.item(), "latent_deviation": deviation.item()}
        return figures, asdict(replace(KL_CONFIG, scale=float(1 / deviation)))

    return Recipe(net, loss, finish, stream=(6,), peak=3e-3, log_every=100)


def classifier(job: Job) -> Recipe:
    """Make the recipe of the classifier of class-conditional Scenes. Half of every batch has been through `kl` and
    back, so that it learns what a model drew and not how sharp a decoder is.

    Its log ends with the accuracy on held-out captions, as drawn and through `kl`.
    """
    labels, _, pixels = draw_class_images(job)
    tokens, _ = encode_class_images(job)
    tokenizer = load(job.find_weights("kl"))
    torch.manual_seed(job.seed)
    net = Classifier().to(memory_format=torch.channels_last)

    def loss(step, rng):
        """Compute the cross-entropy of a random batch, half of it decoded from latents, and the share that is right."""
        chosen = rng.integers(0, len(labels), job.batch)
        half = job.batch // 2
        with reduce_precision():
            with torch.no_grad():
                decoded = tokenizer.decode(tokens[chosen[half:]]).float().clamp(-1, 1)
            x = torch.cat([to_images(pixels[chosen[:half]]), decoded])
            if rng.random() < 0.5:
                x = x.flip(3)  # mirroring keeps the class, as every shape is its own mirror image
            # Random shifts, because the things that models draw are not always where training images have them.
            x = torch.roll(x, tuple(rng.integers(-6, 7, 2)), (2, 3)).to(memory_format=torch.channels_last)
            logits = net(x).float()
        targets = torch.from_numpy(labels[chosen])
        right = (logits.argmax(1) == targets).float().mean().item()
        return F.cross_entropy(logits, targets, label_smoothing=0.05), {"right": right}

    def finish():
        """Measure the accuracy on held-out images, as drawn and through `kl`; return it and the names of classes."""
        net.eval()
        targets, _, pixels = draw_class_images(job, test=True)
        x = to_images(pixels)
        scores = {
            "held_out_accuracy": net(x),
            "held_out_accuracy_through_kl": net(tokenizer.decode(tokenizer.encode(x))),
        }
        figures = {k: float((v.argmax(1).numpy() == targets).mean()) for k, v in scores.items()}
        return figures, {"classes": list(CLASSES)}

    return Recipe(net, loss, finish, stream=(9,), peak=3e-3, average=0.99, log_every=100)


# --- Recipes of a target and its draft model, over the latents of `kl`

REPEATS = 2  # noise levels at which a token is trained in one step (diffusion_batch_mul, 4 in the published recipe)
# Deviation of the noise that is added to latents when a mixture model is trained. Without noise it fits the training
# tokens so closely that a drawn token that is a little off leads it astray.
MIXTURE_NOISE = 0.15


@contextmanager
def use_bf16() -> Iterator[None]:
    """Context manager: compute in bf16 (CPU autocast), with attention as matrix products, because the fused kernel's
    backward pass takes 8 times as long on a CPU for sequences of tens of tokens."""
    with reduce_precision(), sdpa_kernel(SDPBackend.MATH):
        yield


def draw_mask_counts(rng: np.random.Generator, n: int, length: int) -> np.ndarray:
    """Draw how many of `length` tokens n rows mask, int [n]: a share normal(1, 0.25) in [0.7, 1] (MAR, 4.2)."""
    share = np.empty(n)
    for i in range(n):
        while not 0.7 <= (s := rng.normal(1.0, 0.25)) <= 1.0:
            pass
        share[i] = s
    return np.ceil(share * length).astype(int).clip(max=length)


def compute_diffusion_loss(net: nn.Module, x: Tensor, z: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """Compute the training loss [N] of tokens x [N, D] given z [N, W] at times t [N] in 0 .. 999 and noise [N, D]:
    squared error of the noise, and the variational bound for the variance alone (Nichol & Dhariwal 2021, eq. 16)."""
    s = diffusion.make_schedule(diffusion.TRAINED)
    constants = (s.alpha_bar, s.alpha_bar_before, s.beta, s.log_posterior)
    ab, ab_before, beta, log_posterior = (v[t, None].to(x.dtype) for v in constants)
    x_t = ab.sqrt() * x + (1 - ab).sqrt() * noise
    eps, v = net(x_t, t, z).float().chunk(2, -1)
    log_variance = 0.5 * (v + 1) * beta.log() + 0.5 * (1 - v) * log_posterior

    def compute_mean(start: Tensor) -> Tensor:
        """Compute the mean of the posterior of the step before, given x_t and the clean token."""
        return beta * ab_before.sqrt() / (1 - ab) * start + (1 - ab_before) * (1 - beta).sqrt() / (1 - ab) * x_t

    error = (compute_mean(x) - compute_mean((x_t - (1 - ab).sqrt() * eps.detach()) / ab.sqrt())) ** 2
    spread = (log_posterior - log_variance).exp() + error * (-log_variance).exp()
    bound = 0.5 * (log_variance - log_posterior + spread - 1)
    return F.mse_loss(eps, noise, reduction="none").mean(-1) + bound.mean(-1) / math.log(2)


def compute_masked_loss(net: Any, tokens: Tensor, condition: Tensor, rng: np.random.Generator) -> Tensor:
    """Compute the mean diffusion loss of random masked tokens among `tokens` [n, L, D] given the others and
    `condition`, labels [n] or token ids of captions [n, PREFIX]: a scalar."""
    n, L = tokens.shape[:2]
    masked = torch.from_numpy(rng.random((n, L)).argsort(1).argsort(1) < draw_mask_counts(rng, n, L)[:, None])
    with use_bf16():
        z = net(tokens, ~masked, condition)[masked].repeat(REPEATS, 1)
        x = tokens[masked].repeat(REPEATS, 1)
        t = torch.from_numpy(rng.integers(0, diffusion.TRAINED, len(x)))
        noise = torch.from_numpy(rng.standard_normal(x.shape, np.float32))
        return compute_diffusion_loss(net.diffloss.net, x, z, t, noise).mean()


def compute_velocity_loss(net: XARNet, tokens: Tensor, labels: Tensor, rng: np.random.Generator) -> Tensor:
    """Compute the mean squared error of the velocity (flow matching) that `net` predicts for the noised cells of tokens
    [n, L, D] given labels [n], at an independent logit-normal time for each cell: a scalar."""
    cells = fold(tokens, net.config.cell)
    t = torch.from_numpy(1 / (1 + np.exp(-rng.standard_normal(cells.shape[:2], np.float32))))
    noise = torch.from_numpy(rng.standard_normal(cells.shape, np.float32))
    with use_bf16():
        velocity, _ = net.read((1 - t)[..., None] * cells + t[..., None] * noise, t, labels)
        return (velocity - (noise - cells)).square().mean()


def compute_mixture_loss(net: GMMNet, tokens: Tensor, labels: Tensor, rng: np.random.Generator) -> Tensor:
    """Compute -log density, in nats per number, of noised tokens [n, L, D] given labels [n] and those before."""
    noise = torch.from_numpy(rng.standard_normal(tokens.shape, np.float32))
    with use_bf16():
        noisy = tokens + MIXTURE_NOISE * noise
        z = net(noisy[:, :-1], labels)
        return -net.distribution(z.flatten(0, 1)).log_density(noisy.flatten(0, 1)).mean() / noisy.shape[-1]


def encode_captioned_images(job: Job, test: bool) -> tuple[Tensor, Tensor]:
    """Encode class-conditional Scenes: images [n, L, D] float32, and captions' token ids [n, PREFIX], -1 padding."""
    ids, valid = encode_ids(draw_class_images(job, test)[1], PREFIX)
    return encode_class_images(job, test)[0], ids.masked_fill(valid == 0, -1)


@dataclass(frozen=True)
class Family:
    """How the target and the draft of a family are trained."""

    network: Callable[[Any], nn.Module]
    target: Any  # configuration of the target's network
    draft: dict[str, int]  # the sizes in which the draft model's configuration differs from the target's
    loss: Callable[[Any, Tensor, Tensor, np.random.Generator], Tensor]  # of (net, tokens, labels or captions, rng)
    stream: int
    tested: tuple[tuple[int, ...], ...]  # seeds of the random draws over which the held-out loss is averaged
    hidden: str = r"_blocks\."
    data: Callable[[Job, bool], tuple[Tensor, Tensor]] = encode_class_images
    unconditional: float = UNCONDITIONAL


SMALL = {"grid": 8, "width": 128, "encoder": 2, "decoder": 2, "heads": 4}
QWEN = {"vocab": VOCAB, "hidden": 128, "intermediate": 384, "layers": 2, "attention_heads": 4, "key_value_heads": 2}
NO_CAPTION = tuple(encode_ids([""], 1)[0][0].tolist())
FAMILIES = {
    "mar": Family(
        MARNet,
        MARConfig(len(CLASSES), 8, width=160, encoder=3, decoder=3, heads=5, buffer=8, head_width=192, head_depth=3),
        {"width": 80, "head_width": 96, "head_depth": 2},
        compute_masked_loss,
        stream=7,
        tested=((0, 8), (1, 8)),
    ),
    "xar": Family(
        XARNet,
        XARConfig(len(CLASSES), cell=1, **SMALL),
        {"width": 64},
        compute_velocity_loss,
        stream=10,
        tested=((0, 11), (1, 11)),
    ),
    "harmon": Family(
        HarmonNet,
        HarmonConfig(classes=1, buffer=8, head_width=160, head_depth=3, without=NO_CAPTION, **SMALL, **QWEN),
        {"width": 64, "head_width": 80, "head_depth": 2, "hidden": 64, "intermediate": 192},
        compute_masked_loss,
        stream=12,
        tested=((0, 13), (1, 13)),
        hidden=r"_blocks\.|\.layers\.",
        data=encode_captioned_images,
    ),
    "gmm": Family(
        GMMNet,
        GMMConfig(len(CLASSES), grid=8, dim=16, width=128, blocks=4, heads=4, components=16),
        {"width": 64, "blocks": 3},
        compute_mixture_loss,
        stream=9,
        tested=((14,),),
        hidden=r"^blocks\.",
        unconditional=0.0,  # no condition is dropped, because a mixture has no guidance
    ),
}


def make_pair_recipe(job: Job) -> Recipe:
    """Make the recipe of a family's target, or of its draft model if the job's name ends in "-draft". Its log: the loss
    on training and held-out images. The weights' header has the digest of `kl`, whose latents both must draw."""
    family = FAMILIES[job.name.removesuffix("-draft")]
    tokens, conditions = family.data(job, False)
    test = family.data(job, True)
    config = replace(family.target, **family.draft) if job.name.endswith("-draft") else family.target
    torch.manual_seed(job.seed)
    net = family.network(config)

    def loss(step, rng):
        """Compute the family's loss on a random batch, a share of whose conditions is dropped (-1) for guidance."""
        rows = torch.from_numpy(rng.integers(0, len(tokens), job.batch))
        condition = conditions[rows]
        if family.unconditional:
            dropped = torch.from_numpy(rng.random(job.batch) < family.unconditional)
            condition = condition.masked_fill(dropped.view(-1, *[1] * (condition.ndim - 1)), -1)
        return family.loss(net, tokens[rows], condition, rng), {}

    def measure_held_out():
        """Measure the family's loss on the held-out images, averaged over the draws of `family.tested`."""
        draws = (np.random.default_rng([job.seed, *stream]) for stream in family.tested)
        return {"held_out": float(np.mean([family.loss(net, *test, rng).item() for rng in draws]))}

    header = asdict(config) | {LATENTS: sha256(job.find_weights("kl"))[:16]}
    stream = (family.stream,)
    return Recipe(net, loss, lambda: ({}, header), stream, peak=2e-3, hidden=family.hidden, held_out=measure_held_out)


RECIPES = {"kl": kl, "classifier": classifier}
RECIPES |= {f"{family}{suffix}": make_pair_recipe for family in FAMILIES for suffix in ("", "-draft")}
