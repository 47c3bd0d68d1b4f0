"""Layer 5b, any-subset models: an enumerable one, sequential decoding, a correct parallel decoder (ASSD), and its mutants.

    anyorder_rows(tokens, model, rng=..., method=...) -> rows     tokens [n, L] of any decoder, against the exact joint
    anyorder(n=20_000, seeds=[0, 1]) -> rows                      the reference decoders and the mutants

A model gives p(x_i | any subset of the others). A decoder here is decoder(model, rows, *, noise, order, **options) -> tokens [rows, L]
with order [L] the positions in the order in which they are decoded; noise is `parity.noise.Noise` of the rows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from parity.equality import discrete
from parity.equality import rows as R
from parity.equality.rows import Row
from parity.noise import Noise, counted_noise
from parity.verification import race, residual

MASK = -1
AnyDecoder = Callable[..., Tensor]


class AnySubsetModel:
    """Every conditional of an explicit joint [V^L] (float64, first token most significant)."""

    def __init__(self, joint: Tensor, vocab: int, length: int):
        self.vocab, self.length, self.joint = vocab, length, joint
        mass = joint.view([vocab] * length)
        for i in range(length):  # one more value, V, stands for "unknown": the sum over the token
            mass = torch.cat([mass, mass.sum(i, keepdim=True)], i)
        self.mass = mass.flatten()  # [(V + 1)^L] probability of every partial sequence
        self.place = (vocab + 1) ** torch.arange(length - 1, -1, -1)

    def conditional(self, tokens: Tensor, position: Tensor) -> Tensor:
        """p(x at position [n] | known tokens [n, L], MASK where unknown) -> [n, V]. A token at `position` itself is not read."""
        known = torch.where(tokens == MASK, self.vocab, tokens).scatter(1, position[:, None], 0)
        code = (known * self.place).sum(1)[:, None] + torch.arange(self.vocab) * self.place[position][:, None]
        mass = self.mass[code]
        return mass / mass.sum(-1, keepdim=True)


def random_joint(vocab: int, length: int, seed: int, scale: float = 0.8) -> Tensor:
    """A joint [V^L] with interactions of all orders: softmax of normal logits of pairs and of whole sequences."""
    g = torch.Generator().manual_seed(seed)
    cells = torch.from_numpy(discrete.digits(vocab, length))
    logits = 0.5 * torch.randn(len(cells), generator=g, dtype=torch.float64)
    for i in range(length):
        for j in range(i):
            logits += scale * torch.randn(vocab, vocab, generator=g, dtype=torch.float64)[cells[:, i], cells[:, j]]
    return logits.softmax(0)


def sequential(model: AnySubsetModel, rows: int, *, noise: Noise, order: Tensor) -> Tensor:
    """One token at a time, in the given order: the definition of the target."""
    tokens = torch.full((rows, model.length), MASK)
    for i in order.tolist():
        at = torch.full((rows,), i)
        tokens[:, i] = race(model.conditional(tokens, at), noise.exponential("sample", at, model.vocab))
    return tokens


Fault = Literal["none", "parallel", "residual p", "accept +0.05", "no resampling", "shared uniform", "draft kept as condition"]


def assd(model: AnySubsetModel, rows: int, *, noise: Noise, order: Tensor, block: int = 3, fault: Fault = "none") -> Tensor:
    """Any-Subset Speculative Decoding (its Algorithm 1): draft `block` positions independently given what is known, then accept each
    against its conditional given the drafts before it, and resample the first that fails from the residual.

    Faults: all drafts accepted (parallel decoding); the residual replaced by p; 0.05 added to the acceptance; a rejected draft kept
    (no resampling, as sigma-GPT's pseudo-code may be read); one uniform for the block; the conditional also reads the drafts after it.
    """
    L, V = model.length, model.vocab
    tokens, n, row = torch.full((rows, L), MASK), torch.zeros(rows, dtype=torch.int64), torch.arange(rows)
    for step in range(L * block):
        if int(n.min()) >= L:
            break
        begin = n.clone()  # drafts are conditioned on what was known when the step began
        known, q, drafts = tokens.clone(), [], tokens.clone()
        for k in range(block):  # (parallelised) drafts
            at = order[(begin + k).clamp(max=L - 1)]
            law = model.conditional(known, at)
            y = race(law, noise.exponential("draft", torch.full((1,), step * block + k), V))
            live = begin + k < L
            drafts[row[live], at[live]] = y[live]
            q.append(law)
        going = torch.ones(rows, dtype=torch.bool)
        for k in range(block):
            at = order[(begin + k).clamp(max=L - 1)]
            going = going & (begin + k < L)
            y = drafts[row, at]
            p = model.conditional(drafts if fault == "draft kept as condition" else tokens, at)
            index = torch.full((1,), step * block + k)
            u = noise.uniform("accept", index - k if fault == "shared uniform" else index)
            ratio = p.gather(1, y[:, None])[:, 0] / q[k].gather(1, y[:, None])[:, 0]
            accepted = (u < ratio + (0.05 if fault == "accept +0.05" else 0.0)) | (fault == "parallel")
            other = race(p if fault == "residual p" else residual(p, q[k]), noise.exponential("sample", index, V))
            token = torch.where(accepted | (fault == "no resampling"), y, other)
            tokens[row[going], at[going]] = token[going]
            n += going
            going = going & accepted
    return tokens


def anyorder_rows(
    tokens: Tensor | np.ndarray,
    model: AnySubsetModel,
    *,
    rng: np.random.Generator,
    model_name: str = "any-subset",
    method: str = "",
    key: str = "",
    seed: int | None = None,
    repeat: int = 0,
    draws: int = 1999,
) -> list[Row]:
    """Layer 1's rows of complete sequences [n, L]; ValueError that names model, position and row for an open or impossible token."""
    t, V, L = np.asarray(tokens), model.vocab, model.length
    if ((t < 0) | (t >= V)).any():
        row, position = np.argwhere((t < 0) | (t >= V))[0]
        raise ValueError(f"model {model_name}, position {position}, row {row}: token {t[row, position]} is not in the vocabulary")
    law, code = model.joint.numpy(), t @ V ** np.arange(L - 1, -1, -1)
    if (law[code] == 0).any():
        row = int(np.argmax(law[code] == 0))
        cube = law.reshape([V] * L)
        position = next(i for i in range(L) if cube[tuple(t[row, : i + 1])].sum() == 0)  # in raster order
        raise ValueError(f"model {model_name}, position {position}, row {row}: token {t[row, position]} of probability zero was sampled")
    place = {"model": model_name, "method": method, "key": key, "seed": seed, "repeat": repeat}
    return discrete.joint_rows("any-order", np.bincount(code, minlength=len(law)), law, V, L, rng=rng, draws=draws, **place)


def variants() -> dict[str, tuple[AnyDecoder, str]]:
    """The layer's decoders by name, with their fault ("none" for the two controls)."""
    found: dict[str, tuple[AnyDecoder, str]] = {"sequential": (sequential, "none")}
    return found | {f"assd: {f}": (partial(assd, fault=f), f) for f in get_args(Fault)}


def anyorder(n: int = 20_000, seeds: Sequence[int] = (0, 1), draws: int = 1999) -> list[Row]:
    """Rows of every variant on (V, L) = (3, 4) and (3, 5), each decoded in a shuffled order. as_required as in the mutants' layer."""
    found = []
    for V, L in ((3, 4), (3, 5)):
        model, name = AnySubsetModel(random_joint(V, L, seed=L), V, L), f"any-subset {V}x{L}"
        order = torch.randperm(L, generator=torch.Generator().manual_seed(L))
        for method, (decoder, fault) in variants().items():
            rows = []
            for repeat, seed in enumerate(seeds):
                tokens = decoder(model, n, noise=counted_noise(seed, range(n)), order=order)
                place: dict[str, Any] = {"model_name": name, "method": method, "key": fault, "seed": seed, "repeat": repeat}
                rows += anyorder_rows(tokens, model, rng=np.random.default_rng([seed, L]), draws=draws, **place)
            detected = [r["p_value"] is not None and r["p_value"] <= R.ALPHA for r in rows if r["test"] == "all four"]
            required = not all(detected) if fault == "none" else all(detected)
            found += [r | {"as_required": required} if r["test"] == "all four" else r for r in rows]
    return found
