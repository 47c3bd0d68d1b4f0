"""Recipe of the embedded EAGLE drafter: one layer that learns to continue the trained target's features."""

import hashlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from parity.models.checkpoints import load_weights
from parity.models.discrete.eagle import FeatureDrafter
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer, left_pad, read_config
from parity.models.discrete.text import PREFIX, t5_encoder, token_ids
from parity.training.llamagen import UNCONDITIONAL, scene_tokens
from parity.training.loop import publish, scene_arrays, train

UNROLLED = (
    2  # how often the drafter reads its own features in training, for a tree it reads them at every level but the first
)


def main(
    work: Path,
    vq_file: Path,
    target_file: Path,
    t5_file: Path,
    out: Path,
    steps: int,
    batch: int,
    examples: int,
    seed: int,
    processes: int,
) -> list[dict[str, float]]:
    """Train, write `out`, return the log: cross-entropy to the target's law, and how often its likeliest token is the target's, by how many of
    its own features the drafter has read."""
    captions, pixels = scene_arrays(work, 1_000_000, examples, test=False, processes=processes)
    config = LlamaGenConfig(**read_config(target_file))
    tokens = scene_tokens(work, vq_file, pixels, f"train-{examples}", config.grid)
    ids, valid = token_ids(captions, PREFIX)
    target, t5 = Transformer(config).eval().requires_grad_(False), t5_encoder().eval().requires_grad_(False)
    load_weights(target, target_file)
    load_weights(t5, t5_file)
    torch.manual_seed(seed)
    drafter = FeatureDrafter(config)
    L = config.grid**2 - 1
    table, mask = (
        target.table[None, config.prefix : config.prefix + L],
        torch.ones(L, L, dtype=torch.bool).tril()[None, None],
    )

    def loss(step):
        rng = np.random.default_rng([seed, step, 5])
        rows = torch.from_numpy(rng.integers(0, len(tokens), batch))
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                e, v = left_pad(t5(input_ids=ids[rows], attention_mask=valid[rows]).last_hidden_state, valid[rows])
                truth = target.features(
                    e.float(), v, torch.from_numpy(rng.random(batch) < UNCONDITIONAL), tokens[rows, :-1]
                )
                law = target.output(truth[:, 1:]).float().softmax(-1)
            embeddings, features, value, figures = target.tok_embeddings(tokens[rows, :-1]), truth[:, :-1], 0.0, {}
            for n in range(UNROLLED):
                found = drafter(embeddings, features, table, mask)
                logits = target.output(found).float()
                value = (
                    value
                    + F.cross_entropy(logits.flatten(0, 1), law.flatten(0, 1))
                    + F.smooth_l1_loss(found.float(), truth[:, 1:].float())
                )
                figures[f"agree_{n}"] = (logits.argmax(-1) == law.argmax(-1)).float().mean().item()
                features = torch.cat([truth[:, :1], found[:, :-1].detach()], 1)
        return value, figures

    log = []
    rows = train(
        {"drafter": drafter},
        loss,
        steps=steps,
        peak=2e-3,
        checkpoint=work / "drafter.pt",
        hidden=lambda n: n.startswith("drafter.layer."),
    )
    for row in rows:
        print(row, flush=True)
        log.append(row)
    publish(drafter, out, {**asdict(config), "target": hashlib.sha256(target_file.read_bytes()).hexdigest()})
    return log
