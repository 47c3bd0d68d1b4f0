"""A row's logits depend on the tokens that `seq_start_pos` says to leave out. Exit code 1: so it is."""

import importlib
import sys

import torch

theirs = importlib.import_module("speculative_decoding.speculative_decoding")
torch.manual_seed(0)
model = theirs.Decoder(num_tokens=4, dim=16, depth=2, heads=2, dim_head=8).eval()
rows = torch.tensor([[0, 1, 2], [3, 1, 2]])  # the first token of each is padding, the rest is the same
with torch.no_grad():
    logits = model(rows, seq_start_pos=torch.tensor([1, 1]))[:, -1]
difference = (logits[0] - logits[1]).abs().max().item()
print(f"two rows that differ in their padding alone: logits differ by {difference:.4f}")
sys.exit(difference > 1e-5)
