"""Plain decoding with guidance against transformers' `generate(guidance_scale=...)`, and against itself compiled.

    python benchmarks/generate.py [--batch 1 8 32] [--rounds 3] [--threads 1] [--compiled yes] [--keep NAME]

A Llama of the embedded transformer's size and a transformer of this project of that size, both of random weights, take
turns; the figures are tokens per CPU-second (what the process computed, whatever else the machine did) and the median
of their ratios over rounds. Both draw 256 tokens after a prefix of 24 at guidance 1.8: generate() by
two forwards a token and torch.multinomial, this project by both guidance rows in one pass and keyed draws. --keep puts
the table in docs/figures, from which `benchmarks/docs_figures.py` writes it into the docs.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import parse_flags
from docs_figures import keep_benchmark
from parity_decoders.compiling import CompiledPass
from parity_decoders.discrete.ar import ar
from parity_decoders.distribution import TokenSampling
from parity_decoders.engine import Sampled

from parity.base.row_noise import batch_noise
from parity.decode.discrete import record
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer, embed_conditions, make_canvas
from parity.models.discrete.prompts import make_network

SIZE = LlamaGenConfig(vocab=1024, dim=192, layers=6, heads=3, grid=16, prefix=24, caption_dim=128, multiple_of=64)
GUIDANCE = 1.8


def make_transformers_run() -> Callable[[int], Any]:
    """Make a function that decodes a batch by transformers' `generate`, with guidance, on a random Llama of SIZE."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": SIZE.dim, "intermediate_size": SIZE.hidden, "num_hidden_layers": SIZE.layers}
    sizes |= {"num_attention_heads": SIZE.heads, "num_key_value_heads": SIZE.heads, "vocab_size": SIZE.vocab}
    config = LlamaConfig(**sizes, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    net = LlamaForCausalLM(config).eval()
    length = SIZE.grid**2

    def run(batch: int) -> Any:
        """Generate for `batch` random prompts; return the tokens with their prompts."""
        prompt = torch.randint(1, SIZE.vocab, (batch, SIZE.prefix), generator=torch.Generator().manual_seed(0))
        flags = {"attention_mask": torch.ones_like(prompt), "do_sample": True, "top_k": 0, "guidance_scale": GUIDANCE}
        tokens = net.generate(prompt, max_new_tokens=length, min_new_tokens=length, **flags)
        assert tokens.shape[1] == SIZE.prefix + length
        return tokens

    return run


def make_parity_run(fast: bool) -> Callable[[int], Any]:
    """Make a function that decodes a batch plainly by this project's random transformer of SIZE, compiled if `fast`."""
    torch.manual_seed(0)
    net = Transformer(SIZE).eval()
    run_pass = CompiledPass(net.forward, "cpu") if fast else None

    @torch.inference_mode()
    def run(batch: int) -> Any:
        """Decode `batch` images plainly under random conditions; return the result."""
        condition = torch.randn(batch, SIZE.prefix, SIZE.caption_dim, generator=torch.Generator().manual_seed(0))
        prompts = embed_conditions(net, condition, torch.ones(batch, SIZE.prefix, dtype=torch.bool), True)
        codes = net.tok_embeddings.weight
        model = make_network(net, prompts, make_canvas(net, (codes, codes)), run_pass)
        noise = batch_noise(0, [str(i) for i in range(batch)])
        probs = Sampled(model, TokenSampling(guidance=GUIDANCE))
        return record(probs, torch.zeros_like(noise.keys), ar(probs, torch.zeros_like(noise.keys), noise=noise))

    return run


def main() -> None:
    """Time the decoders at each batch, print tokens per CPU-second and ratios, and keep the table with --keep."""
    a = parse_flags(__doc__, batch=[1, 8, 32], rounds=3, compiled=("yes", "no"), keep="")
    table: list[dict[str, Any]] = []
    runs = {"generate()": make_transformers_run(), "plain": make_parity_run(False)}
    if a.compiled == "yes":
        runs["compiled"] = make_parity_run(True)
    for batch in a.batch:
        rates: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(a.rounds + 1):  # the first round warms up, compiles, and is not counted
            for name, run in runs.items():
                start = time.process_time()
                run(batch)
                if turn:
                    rates[name].append(batch * SIZE.grid**2 / (time.process_time() - start))
        for name, measured in rates.items():
            ratio = statistics.median(x / y for x, y in zip(measured, rates["generate()"], strict=True))
            rate = statistics.median(measured)
            speed = f"{rate:8.0f} tokens per CPU-second, {ratio:.2f} times generate()"
            print(f"batch {batch:3d}  {name:11s} {speed}", flush=True)
            table.append({"name": name, "batch": batch, "rate": rate, "ratio": ratio, "rounds": a.rounds})
    if a.keep:
        keep_benchmark(a.keep, table)


if __name__ == "__main__":
    main()
