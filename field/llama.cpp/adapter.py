"""llama.cpp: the server of the package xllamacpp, with and without a draft model, on the tiny Llama as GGUF."""

import shutil
from pathlib import Path

import numpy as np
import xllamacpp
from parity_certify import Sampled
from parity_certify.gguf_files import write_gguf

F32 = xllamacpp.ggml_type.GGML_TYPE_F32


def convert(folder):
    """Write a tiny Llama as a GGUF file, beside a copy of its folder, and return its path."""
    return str(write_gguf(Path(shutil.copytree(folder, folder.name, dirs_exist_ok=True))))


def sampler(distribution, models, drafts=3, probabilistic=False):
    """Make a sampler with so many drafts a round; 0: without a draft model. probabilistic: drafts are drawn."""
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.n_ctx = convert(models / "llama"), 256
    settings.n_gpu_layers, settings.warmup = 0, False
    settings.cache_type_k = settings.cache_type_v = F32
    settings.cpuparams.n_threads = 1
    if drafts:
        speculation = settings.speculative
        speculation.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculation.draft.mparams.path = convert(models / "llama-assistant")
        speculation.draft.n_max, speculation.draft.n_gpu_layers = drafts, 0
        speculation.draft.probabilistic = probabilistic
        speculation.draft.cache_type_k = speculation.draft.cache_type_v = F32
    server = xllamacpp.Server(settings)
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": distribution.length}

    def sample(prompts, seed):
        rows, drafted, accepted = [], 0, 0
        for i, prompt in enumerate(np.asarray(prompts).tolist()):
            number = int(np.random.default_rng([seed, i]).integers(2**31))
            answer = server.handle_completions({"prompt": "".join("abcd"[t] for t in prompt), "seed": number, **plain})
            rows.append(["abcd".index(letter) for letter in answer["choices"][0]["text"]])
            drafted += answer["timings"].get("draft_n", 0)
            accepted += answer["timings"].get("draft_n_accepted", 0)
        return Sampled(rows, drafted, accepted) if drafts else rows

    return sample
