"""What the speculators of a network of image tokens learn: its distribution, by their Kullback-Leibler divergences from
it.

The target's `features` [R, L, dim] are its hidden states, s of which predicts token s; `p` [B, L, V] are its
log-probabilities. A `Distribution` computes log-probabilities by an output layer from features, and B rows from R if it
guides.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from parity_decoders.distribution import Guidance, TokenSampling, make_distribution
from torch import Tensor, nn

from parity.models.discrete.prompts import Prompts, compute_features

# output layer, features [R, n, dim] -> log-probabilities [B, n, V]
Distribution = Callable[[nn.Module, Tensor], Tensor]
FLOOR = -1e4  # log-probability of a token that is excluded: finite, so that its divergence is 0
UNROLLED = 2  # calls of a drafter in a step: all but the first read its own features, as in a draft tree


def guide(output: nn.Module, features: Tensor, scale: Tensor | float) -> Tensor:
    """Compute logits of features [2B, n, dim], conditional first, guided by a scale, a number or [B, 1, 1]: [B, n, V]
    float32. A linear output is computed of guided features, which is half of the work and takes half of the memory."""
    guidance = Guidance(scale)
    if isinstance(output, nn.Linear):
        guided: Tensor = output(guidance(features.float()).to(output.weight.dtype))
        return guided.float()
    return guidance(output(features).float())


def make_distributions(sampling: TokenSampling) -> tuple[Distribution, Distribution]:
    """Make the distributions of a target and of a network that learns from it, at these settings. top-k and top-p
    exclude tokens from the first alone, so that the other learns of all."""

    def compute(sampling: TokenSampling, output: nn.Module, features: Tensor) -> Tensor:
        guided = output(features).float() if sampling.guidance == 1 else guide(output, features, sampling.guidance)
        return make_distribution(replace(sampling, guidance=1.0)).apply(guided).log_softmax(-1)

    unfiltered = partial(compute, replace(sampling, top_k=0, top_p=1.0))
    return lambda output, features: compute(sampling, output, features).clamp(min=FLOOR), unfiltered


def measure_divergence(q: Tensor, p: Tensor, free: Tensor | None = None) -> Tensor:
    """Compute KL(p || q) in nats per token from log-probabilities q [B, n, V] and the last n of p [B, L, V]. free [L]
    bool: tokens that count, None for all."""
    p = p[:, p.shape[1] - q.shape[1] :]
    if free is not None:
        counted = free[len(free) - q.shape[1] :]
        q, p = q[:, counted], p[:, counted]
    return F.kl_div(q.flatten(0, 1), p.flatten(0, 1), reduction="batchmean", log_target=True)


def measure_speculator(
    kind: str,
    net: Any,
    target: Any,
    embed: Callable[[Any], Prompts],
    tokens: Tensor,
    features: Tensor,
    distributions: tuple[Distribution, Distribution],
    width: int,
    free: Tensor | None = None,
    run: Callable[[Any, Prompts, Tensor], Tensor] = compute_features,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the divergences of a speculator, "heads", "draft" or "drafter", on tokens [R, L], by name; and before
    them what else it is trained on. Gradients reach the speculator alone.

    embed       embeds the prompts of the rows for a network, the target or a draft model
    features    of the target, [R, L, dim]
    distributions        of the target, and of the speculator
    width       tokens of a row of an image
    run         `compute_features`, or the same compiled
    """
    target_distribution, distribution = distributions
    x = tokens[:, :-1]
    dtype = next(target.parameters()).dtype
    nothing = torch.zeros((), device=x.device)
    with torch.no_grad():
        prompts = embed(target)
        p = target_distribution(target.output, features.to(dtype))
        embeddings = F.embedding(x, prompts.embeddings).float()
        features = features.float()
    if kind == "draft":
        return nothing, {"nats": measure_divergence(distribution(net.output, run(net, embed(net), x)), p, free)}

    def guess_distribution(guess: Tensor) -> Tensor:
        return distribution(target.output, guess.to(dtype))

    if kind == "heads":
        return nothing, measure_heads(net, guess_distribution, features, embeddings, p, width, free)
    places = torch.arange(x.shape[1], device=x.device) + prompts.prefix.shape[1] - prompts.padding[:, None]
    return measure_drafter(net, guess_distribution, features, embeddings, p, places.clamp(min=0), free)


def measure_heads(
    net: Any,
    distribution: Callable[[Tensor], Tensor],
    features: Tensor,
    embeddings: Tensor,
    p: Tensor,
    width: int,
    free: Any = None,
) -> dict[str, Tensor]:
    """Compute the divergences of `Heads`: `right` of the head to the right after the target's feature, `right_twice`
    after its own, `below` of the head downwards, `right_below` of the head to the right after that. embeddings [R, L
    - 1, dim]: of the tokens but the last; width: tokens of a row of an image."""
    right = net.right(features[:, :-1], embeddings)
    below = net.below(features[:, 1 : features.shape[1] - width + 1])
    guesses = {
        "right": right,
        "right_twice": net.right(right[:, :-1], embeddings[:, 1:]),
        "below": below,
        "right_below": net.right(below[:, :-1], embeddings[:, width:]),
    }  # each ends at the last token
    return {name: measure_divergence(distribution(guess), p, free) for name, guess in guesses.items()}


def measure_heads_at(
    net: Any,
    output: nn.Module,
    table: Tensor,
    features: Callable[[Tensor], Tensor],
    tokens: Tensor,
    places: Tensor,
    distributions: tuple[Distribution, Distribution],
    width: int,
    free: Tensor | None = None,
) -> dict[str, Tensor]:
    """Compute the divergences of `measure_heads` from one place of each row alone, which may be of many rows.

    output      the target's
    table       embeddings of the image's tokens [V, dim]
    features    gives the target's features at a place of each row, [copies, N, dim]; tokens [N, L]; places [N]
    distributions, width, free  as of `measure_speculator`
    """
    target_distribution, distribution = distributions
    last = tokens.shape[1] - 1
    dtype = next(output.parameters()).dtype

    def embed(places: Tensor) -> Tensor:
        chosen = tokens.gather(1, places.clamp(max=last)[:, None])[:, 0]
        return F.embedding(chosen, table).float().expand(len(read), -1, -1)

    read = features(places).float()
    right, below = net.right(read, embed(places)), net.below(read)
    after = (places > 0, places + width - 1)  # of the head downwards, which reads the feature after a token
    guesses = {
        "right": (right, (places >= 0, places + 1)),
        "right_twice": (net.right(right, embed(places + 1)), (places >= 0, places + 2)),
        "below": (below, after),
        "right_below": (net.right(below, embed(after[1])), (after[0], after[1] + 1)),
    }
    nats = {}
    for name, (guess, (counted, ends)) in guesses.items():
        ends, counted = ends.clamp(max=last), counted & (ends <= last)
        with torch.no_grad():
            p = target_distribution(output, features(ends).to(dtype))
        counted = counted if free is None else counted & free[ends]
        divergence = (p.exp() * (p - distribution(output, guess.to(dtype)))).sum(-1)[0]
        nats[name] = (divergence * counted).sum() / counted.sum().clamp(min=1)
    return nats


def measure_drafter(
    net: Any,
    distribution: Callable[[Tensor], Tensor],
    features: Tensor,
    embeddings: Tensor,
    p: Tensor,
    position_ids: Tensor,
    free: Any = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute a drafter's error of features, summed over UNROLLED calls, and its divergences by how many of its own
    features it has read. position_ids [1 or R, L - 1]: of its tokens."""
    n = embeddings.shape[1]
    mask = torch.ones(n, n, dtype=torch.bool, device=embeddings.device).tril()[None, None]
    read, error, nats = features[:, :-1], torch.zeros((), device=features.device), {}
    for call in range(UNROLLED):
        guessed = net(embeddings, read, position_ids, mask)
        nats[f"nats_{call}"] = measure_divergence(distribution(guessed), p, free)
        error = error + F.smooth_l1_loss(guessed.float(), features[:, 1:].float())
        read = torch.cat([features[:, :1], guessed[:, :-1].detach().to(features.dtype)], 1)
    return error, nats
