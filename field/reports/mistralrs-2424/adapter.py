"""mistral.rs 0.6.0: a runner with a draft model, on a tiny Llama; one without, for plain sampling."""

import functools
import json
import tempfile
from pathlib import Path

import mistralrs
import numpy as np
from case import load_logits
from parity_certify.design import make_conditions

END = "e"  # mistral.rs needs an end token: one that the model does not have
ORDER = ["temperature", "top_p", "top_k"]  # top-p is of all tokens


def rewrite(folder):
    """Copy a checkpoint with what mistral.rs reads: `rope_theta` in its old place, and an end token."""
    out = Path(tempfile.mkdtemp())
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    config = json.loads((out / "config.json").read_text())
    config |= {"rope_theta": config.pop("rope_parameters")["rope_theta"], "eos_token_id": 4, "torch_dtype": "float32"}
    (out / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((out / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"][END] = 4
    tokenizer["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"eos_token": END, "bos_token": "a", "unk_token": "a", "chat_template": "{{ messages[0]['content'] }}"}
    (out / "tokenizer_config.json").write_text(json.dumps(settings))
    (out / "generation_config.json").unlink(missing_ok=True)
    return mistralrs.Which.Plain(str(out), arch=mistralrs.Architecture.Llama, dtype=mistralrs.ModelDType.F32)


def design(models, drafted=True):
    """Make the conditions of the default design. The server draws its seeds itself."""
    target, assistant = (rewrite(models / name) for name in ("square", "square-assistant"))

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

    return make_conditions(sample, load_logits(models, name="square"), vocab=4, engine=ORDER)
