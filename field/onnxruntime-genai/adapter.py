"""onnxruntime-genai: plain sampling, a draft model and n-grams, on the tiny Llama as its own builder exports it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
from parity_certify import Sampled

END = 3  # it demands an end token inside the vocabulary, and leaves it out of its answer
WORK = Path.cwd() / "onnx"


def export(models, way):
    """Export the models unless they are there, and make the folder of a `way`: "plain", "draft" (with the draft model)
    or "ngram". Returns the folder."""
    for name in ("llama", "llama-assistant"):
        if not (WORK / name / "genai_config.json").is_file():
            command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(models / name), "-m", name]
            subprocess.run([*command, "-o", str(WORK / name), "-p", "fp32", "-e", "cpu", "-c", "cache"], check=True)
    folder = WORK / way
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(WORK / "llama", folder)
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"] |= {"eos_token_id": END, "pad_token_id": 7}  # a prompt may end in END, and pads are masked
    if way != "plain":
        config["speculative"] = {"max_draft_tokens": 2} | ({"ngram_size": 2} if way == "ngram" else {})
    if way == "draft":
        shutil.copytree(WORK / "llama-assistant", folder / "drafts")
        draft = json.loads((folder / "drafts/genai_config.json").read_text())["model"]["decoder"]
        config["model"] |= {"type": "speculative", "draft": draft | {"filename": f"drafts/{draft['filename']}"}}
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


def sampler(distribution, models, way="plain", temperature=1.0, top_k=4):
    """Make a sampler of a `way` (see `export`); only "plain" does not count drafts."""
    model = og.Model(str(export(models, way)))

    def sample(prompts, seed):
        rows, drafted, accepted, params = [], 0, 0, og.GeneratorParams(model)
        for i, prompt in enumerate(prompts):
            params.set_search_options(do_sample=True, temperature=temperature, top_k=top_k, top_p=1.0,
                max_length=len(prompt) + distribution.length, random_seed=seed % 10**6 * 1000 + i)  # fmt: skip
            generator = og.Generator(model, params)
            generator.append_tokens(np.asarray(prompt, dtype=np.int32))
            while not generator.is_done():
                generator.generate_next_token()
            row = [int(t) for t in generator.get_sequence(0)[len(prompt) :]]
            rows.append(row if len(row) == distribution.length else [*row, END])
            if way != "plain":
                stats = generator.get_speculative_stats()
                drafted += int(stats["draft_tokens_proposed"])
                accepted += int(stats["draft_tokens_accepted"])
        return rows if way == "plain" else Sampled(rows, drafted, accepted)

    return sample
