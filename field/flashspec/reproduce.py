"""flashspec: top-p is taken and has no effect, unless the variant is "typical". Exit code 1: the fault shows."""

import logging
import sys

import torch
from flashspec import FlashSpecConfig, SamplingConfig, SpeculativeEngine
from flashspec.engine.hf_drafter import HuggingFaceDrafter
from flashspec.engine.verifier import TargetModel
from transformers import LlamaConfig, LlamaForCausalLM

logging.disable(logging.WARNING)
torch.manual_seed(0)
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=4, initializer_range=0.5, **SIZES)).eval()
prompt = torch.tensor([[0, 1]])
with torch.no_grad():
    law = model(prompt).logits[0, -1].softmax(0)
ranked = law.sort(descending=True)
kept = ranked.indices[ranked.values.cumsum(0) - ranked.values < 0.5].tolist()

target, drafter = TargetModel("t", torch.device("cpu"), model=model), HuggingFaceDrafter("d", "cpu", model=model)
drawn = []
for seed in range(300):
    sampling = SamplingConfig(gamma=2, top_p=0.5, seed=seed)
    config = FlashSpecConfig(
        device="cpu", dtype="float32", drafter_strategy="bandit", bandit={"n_arms": 1}, sampling=sampling
    )
    engine = SpeculativeEngine(config, [drafter], target)
    drawn.append(int(engine.generate(prompt, max_new_tokens=1).output_ids[0, 0]))
outside = sum(token not in kept for token in drawn)
print(f"the law is {law.numpy().round(2)}, top-p .5 keeps {kept}; {outside} of 300 tokens are others")
sys.exit(int(outside > 0))
