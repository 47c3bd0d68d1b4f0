"""divine-mtp: generate does not continue as the model does greedily. Exit code 1: the fault shows."""

import builtins
import sys
from importlib import import_module

import torch
from transformers import LlamaConfig, LlamaForCausalLM

builtins.Tuple = tuple  # which their trainer.py uses and does not import
inference, theirs = import_module("divine_mtp.inference"), import_module("divine_mtp.model")

torch.manual_seed(0)
size = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
model = LlamaForCausalLM(LlamaConfig(num_attention_heads=2, initializer_range=1.0, **size)).eval()
wrapper = theirs.attach_divine_mtp(model, num_heads=2, rank=8)
for weight in wrapper.mtp.heads.parameters():  # at first a head repeats the token drawn last
    torch.nn.init.normal_(weight)
engine = inference.DivineMtpInferenceEngine(wrapper)
prompt = torch.tensor([[5, 1, 3, 2]])

greedy = prompt
with torch.no_grad():
    for _ in range(8):
        greedy = torch.cat([greedy, model(greedy).logits[:, -1:].argmax(-1)], 1)
greedy, drafted = greedy[0, 4:].tolist(), engine.generate(prompt, max_new_tokens=8).token_ids[4:12]
print(f"greedily the model goes on {greedy}; generate returns {drafted}")
sys.exit(greedy != drafted)
