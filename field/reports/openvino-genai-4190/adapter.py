"""openvino-genai: a pipeline with a draft model or look-up, on the tiny Llamas, which optimum-intel converts."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import openvino
import openvino_genai as genai
from case import load_logits
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM
from parity_certify.design import make_conditions
from transformers import AutoTokenizer

PRECISE = {"INFERENCE_PRECISION_HINT": "f32"}
ORDER = ["repetition_penalty", "temperature", "top_p", "top_k"]


def convert(folder):
    """Convert a checkpoint of transformers and its tokenizer to a folder that a pipeline loads."""
    out = Path(tempfile.mkdtemp())
    OVModelForCausalLM.from_pretrained(folder, export=True, stateful=True, load_in_8bit=False).save_pretrained(out)
    names = "openvino_tokenizer", "openvino_detokenizer"
    made = convert_tokenizer(AutoTokenizer.from_pretrained(folder), with_detokenizer=True)
    for name, model in zip(names, made, strict=True):
        openvino.save_model(model, out / f"{name}.xml")
    return out


def make_sample(models, drafting):
    """Make a function that draws from a pipeline; drafting: by a "model", by look-up in the "prompt", or "none"."""
    settings = dict(PRECISE)
    if drafting == "model":
        settings["draft_model"] = genai.draft_model(convert(models / "square-assistant"), "CPU", **PRECISE)
    if drafting == "prompt":
        settings["prompt_lookup"] = True
    target = convert(models / "square")
    pipe = genai.ContinuousBatchingPipeline(target, genai.Tokenizer(target), genai.SchedulerConfig(), "CPU", **settings)

    def sample(
        prompts, seed, *, length, drafts, temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0, end=4, rows=None
    ):
        """Draw all rows in one call."""
        common = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty}
        requests = []
        for i, own in enumerate(rows or [{}] * len(prompts)):
            request = genai.GenerationConfig(do_sample=True, max_new_tokens=length)
            request.set_eos_token_id(end)  # it needs one: without `end` a token that the model does not have
            request.rng_seed = int(np.random.default_rng([seed, i]).integers(2**31))
            if drafting != "none":
                request.num_assistant_tokens = drafts
            if drafting == "prompt":
                request.max_ngram_size = 2
            for name, value in {**common, **own}.items():
                if value and name != "seed":
                    setattr(request, name, value)
            requests.append(request)
        tokens = [openvino.Tensor(np.asarray(prompt, dtype=np.int64)[None]) for prompt in prompts]
        answers = pipe.generate(tokens, requests)
        return [answer.m_generation_ids[0] for answer in answers]

    return sample


def design(models, drafting="model"):
    """Make the conditions of the default design."""
    return make_conditions(make_sample(models, drafting), load_logits(models, name="square"), vocab=4, engine=ORDER)


def sampler(distribution, models, drafting="model"):
    """Make a sampler with three drafts a round, which are not counted."""
    return functools.partial(make_sample(models, drafting), length=distribution.length, drafts=3)
