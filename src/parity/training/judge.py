"""Recipe of the embedded judge: a small GPT-2 over the same words, read from left to right. It scores what the others write."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from parity.embedded import stories
from parity.training.anysubset import text_tokens
from parity.training.loop import publish, train


def gpt2(
    vocab: int, length: int = stories.LENGTH + 1, width: int = 128, layers: int = 3, heads: int = 4
) -> GPT2LMHeadModel:
    """A small GPT-2 with no dropout; its first input is the separator, hence one position more than a text has."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab, n_positions=length, n_embd=width, n_layer=layers, n_head=heads, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=1, eos_token_id=1,
        )
    )  # fmt: skip


def main(
    work: Path, out: Path, steps: int, batch: int, examples: int, seed: int, processes: int, peak: float = 2e-3
) -> list[dict[str, float]]:
    """Train, write `out`, return the log: nats per word, also on held-out texts."""
    tokens = text_tokens(work, "train", 0, examples, test=False)
    test = text_tokens(work, "test", 10_000_000, 128, test=True)
    torch.manual_seed(seed)
    words = stories.vocabulary()
    net = gpt2(len(words))

    def nats(rows: Tensor) -> Tensor:
        inputs = torch.cat([torch.ones_like(rows[:, :1]), rows[:, :-1]], 1)  # word 1 is the separator
        return F.cross_entropy(net(inputs).logits.flatten(0, 1).float(), rows.flatten())

    def loss(step):
        rows = tokens[torch.from_numpy(np.random.default_rng([seed, step, 8]).integers(0, examples, batch))]
        with torch.autocast("cpu", torch.bfloat16):
            return nats(rows), {}

    log = []
    for row in train({"net": net}, loss, steps=steps, peak=peak, checkpoint=work / "judge.pt", average=0.99):
        print(row, flush=True)
        log.append(row)
    with torch.inference_mode():
        log.append({"held_out_nats": float(np.mean([nats(t).item() for t in test.split(32)]))})
    publish(net, out, {"network": net.config.to_diff_dict(), "words": words, "mask": 0})
    return log
