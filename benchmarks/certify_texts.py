"""Certify texts at a vocabulary of 50,000: a correct speculative sampler, and one that ignores the drafts' temperature.

    python benchmarks/certify_texts.py [--texts 400 --length 32 --vocab 50000]

A Llama with random weights is written with texts of both samplers, and `parity certify --target --texts` is run on them
as a user runs it. Prints verdict, CPU seconds and peak memory.
"""

import argparse
import copy
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from parity_certify.adapters.transformers import load_model
from torch import Tensor


def write_llama(folder: Path, vocab: int, spread: float = 6.0) -> Any:
    """Write a small random Llama to `folder` and load it; its logits have the standard deviation `spread`."""
    import transformers as t

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = t.LlamaConfig(vocab_size=vocab, max_position_embeddings=128, bos_token_id=0, eos_token_id=None, **sizes)
    model = t.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for w in model.parameters():
            if w.ndim >= 2:
                w.normal_(0, 0.5)
        logits = model(torch.arange(64)[None]).logits
        model.lm_head.weight *= spread / logits.std()
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return load_model(folder)


@torch.no_grad()
def draw_texts(model: Any, n: int, length: int, temperature: float, seed: int) -> Tensor:
    """Draw n texts [n, length] by speculative sampling: a draft and a token of the target in turn. Drafts are drawn at
    `temperature` but judged as if at 1, a fault unless it is 1. The draft model is the target with noise."""
    generator = torch.Generator().manual_seed(seed)
    draft = copy.deepcopy(model)
    head = draft.lm_head.weight
    head += 0.3 * head.std() * torch.randn(head.shape, generator=torch.Generator().manual_seed(1))
    ids = torch.zeros(n, 1, dtype=torch.long)

    def ask_last(network: Any) -> Tensor:
        """Compute a network's logits [n, V] after the last of `ids`, 20 rows at a time."""
        return torch.cat([network(chunk).logits[:, -1] for chunk in ids.split(20)])

    while ids.shape[1] <= length:
        p = ask_last(model).softmax(-1)
        logits = ask_last(draft)
        q = logits.softmax(-1)
        draft_law = (logits / temperature).softmax(-1)
        token = torch.multinomial(draft_law, 1, generator=generator)
        accepted = torch.rand(n, 1, generator=generator) < p.gather(1, token) / q.gather(1, token)
        resampled = torch.multinomial((p - q).clamp(min=1e-30), 1, generator=generator)
        ids = torch.cat([ids, torch.where(accepted, token, resampled)], 1)
        if ids.shape[1] <= length:
            ids = torch.cat([ids, torch.multinomial(ask_last(model).softmax(-1), 1, generator=generator)], 1)
    return ids[:, 1 : length + 1]


def main() -> None:
    """Draw texts with drafts at the right and a wrong temperature, run `parity certify` on each, print its output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=50_000)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_llama(folder / "model", a.vocab)
        for label, temperature in (("correct", 1.0), ("draft's temperature not applied (0.7)", 0.7)):
            file = folder / "texts.jsonl"
            start = time.process_time()
            rows = draw_texts(model, a.texts, a.length, temperature, seed=2)
            file.write_text("\n".join(json.dumps({"prompt": [0], "tokens": row}) for row in rows.tolist()))
            drawing_seconds = time.process_time() - start
            usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "parity_certify", "--target", str(folder / "model"), "--texts", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = usage.ru_utime + usage.ru_stime - usage_before.ru_utime - usage_before.ru_stime
            print(f"{label}: exit code {done.returncode}, {seconds:.0f} CPU s (texts: {drawing_seconds:.0f}), "
                  f"at most {usage.ru_maxrss / 2**20:.2f} GiB")  # fmt: skip
            print(done.stdout + done.stderr, flush=True)


if __name__ == "__main__":
    main()
