"""transformers 4.44.0: `generate` with an assistant; the tiny Llamas' weights are put into its own class."""

import json

import numpy as np
import torch
import transformers
from case import load_logits
from parity_certify.design import make_conditions
from safetensors.torch import load_file

SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "rms_norm_eps", "bos_token_id", "tie_word_embeddings",
)  # fmt: skip


def load_llama(folder):
    """Load a tiny Llama."""
    settings = json.loads((folder / "config.json").read_text())
    config = transformers.LlamaConfig(**{k: settings[k] for k in SIZES}, pad_token_id=0, eos_token_id=None)
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def design(models, drafted=True):
    """Make the conditions of the default design; drafted: whether an assistant drafts."""
    transformers.logging.set_verbosity_error()
    target, assistant = (load_llama(models / name) for name in ("square", "square-assistant"))

    def sample(
        prompts,
        seed,
        *,
        length,
        drafts,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=None,
        repetition_penalty=1.0,
        end=None,
    ):
        """Draw by `generate`, one prompt a call."""
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        assistant.generation_config.num_assistant_tokens = drafts
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        target.generation_config.eos_token_id = end
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        options |= {"repetition_penalty": repetition_penalty, "max_new_tokens": length, "pad_token_id": end or 0}
        rows = []
        for prompt in torch.from_numpy(np.asarray(prompts)):
            inputs = {"inputs": prompt[None], "attention_mask": torch.ones_like(prompt[None])}
            ids = target.generate(**inputs, assistant_model=assistant if drafted else None, do_sample=True, **options)
            rows.append(ids[0, len(prompt) :].numpy())
        return rows

    return make_conditions(sample, load_logits(models, name="square"), vocab=4)
