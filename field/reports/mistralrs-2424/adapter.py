"""mistral.rs 0.6.0: a runner with a draft model, on a tiny Llama; one without, for plain sampling."""

import functools

import mistralrs
import numpy as np
from case import load_logits
from parity_certify.design import make_conditions

ORDER = ["temperature", "top_p", "top_k"]  # top-p is of all tokens


def load(folder):
    """Name a checkpoint, of float32."""
    return mistralrs.Which.Plain(str(folder), arch=mistralrs.Architecture.Llama, dtype=mistralrs.ModelDType.F32)


def make_sample(models, drafted):
    """Make a function that draws from runners with a draft model, or without. They draw their seeds themselves."""
    target, assistant = (load(models / name) for name in ("square", "square-assistant"))

    @functools.cache
    def start(drafts):
        """Start a runner with so many drafts a round."""
        speculation = {"which_draft": assistant, "speculative_gamma": drafts} if drafted else {}
        return mistralrs.Runner(which=target, prefix_cache_n=0, no_paged_attn=True, token_source="none", **speculation)

    def sample(prompts, seed, *, length, drafts, temperature=1.0, top_k=None, top_p=None):
        """Complete one prompt a request, without min-p, which plain sampling ignores where there is no top-p."""
        rows = []
        for prompt in np.asarray(prompts).tolist():
            options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
            text = "".join("abcd"[t] for t in prompt)
            request = mistralrs.CompletionRequest(prompt=text, model="tiny", max_tokens=length, **options)
            answer = start(drafts).send_completion_request(request).choices[0].text
            rows.append(["abcd".index(letter) for letter in answer][:length])  # speculation goes past `max_tokens`
        return rows

    return sample


def design(models, drafted=True):
    """Make the conditions of the default design."""
    return make_conditions(make_sample(models, drafted), load_logits(models, name="square"), vocab=4, engine=ORDER)


def sampler(distribution, models, drafted=True):
    """Make a sampler with two drafts a round, which are not counted, or without drafts."""
    return functools.partial(make_sample(models, drafted), length=distribution.length, drafts=2)
