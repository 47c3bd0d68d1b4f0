"""mini-infer: a prompt that begins with cached blocks is continued otherwise than without. Exit code 1: so it is."""

import sys

import torch
from mini_infer.engine import InferenceEngine
from mini_infer.models.config import Qwen2Config
from mini_infer.models.qwen2 import Qwen2ForCausalLM

torch.manual_seed(0)
config = Qwen2Config(32, 16, 32, 2, 2, 1, 8, tie_word_embeddings=False)
model = Qwen2ForCausalLM(config).eval()
with torch.no_grad():
    for weight in model.parameters():
        weight.mul_(2)
prompt = [7, 3, 19, 4, 28, 11, 0, 23, 5, 14, 30, 9, 2, 17, 26, 8, 21, 1, 12, 6]  # 16 of these 20 fill a block


def decode_twice(cache):
    """Decode eight tokens greedily, twice, by one engine with the prefix cache or without it."""
    engine, texts = InferenceEngine(model, config, enable_prefix_caching=cache, device=torch.device("cpu")), []
    for _ in range(2):
        request = engine.add_request(prompt, max_tokens=8)
        while engine.scheduler.has_unfinished_sequences():
            engine.step()
        texts.append(request.output_token_ids)
    return texts


without, cached = decode_twice(False), decode_twice(True)
print(f"greedily {without[0]}; with the prefix cache {cached[0]}, the second time {cached[1]}")
sys.exit(without[0] != cached[1])
