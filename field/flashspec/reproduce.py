"""flashspec: SamplingConfig.top_p does nothing with the lossless variant. Exit code 1: the fault shows."""

import logging
import sys
from types import SimpleNamespace

import torch
from flashspec import FlashSpecConfig, SamplingConfig, SpeculativeEngine
from flashspec.engine import HuggingFaceDrafter, TargetModel

LAW, TOP_P, N = torch.tensor([0.6, 0.3, 0.1]), 0.8, 1000


class Model(torch.nn.Module):
    """A model whose next token has one law, whatever came before."""

    def forward(self, input_ids):
        return SimpleNamespace(logits=LAW.log().expand(*input_ids.shape, 3))


logging.disable(logging.WARNING)
cpu = torch.device("cpu")
config = FlashSpecConfig(device="cpu", sampling=SamplingConfig(top_p=TOP_P))
engine = SpeculativeEngine(
    config,
    [HuggingFaceDrafter("draft", cpu, model=Model())],
    TargetModel("target", cpu, torch.float32, model=Model()),
)
torch.manual_seed(0)
drawn = torch.cat([engine.generate(torch.tensor([[0]]), 4).output_ids[0] for _ in range(N // 4)])
share = (drawn == 2).float().mean().item()
print(f"top_p {TOP_P} keeps tokens 0 and 1 of {[round(x, 1) for x in LAW.tolist()]}; token 2 was drawn in {share:.3f}")
sys.exit(share > 0)
