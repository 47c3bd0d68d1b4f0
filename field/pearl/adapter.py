"""PEARL: parallel speculative decoding, draft and target each in a process of its own, on tables."""

import multiprocessing
from types import MethodType, SimpleNamespace

import borrowed
import numpy as np
import torch
from parity_certify import Sampled

GAMMA, PROMPT = 2, [0, 0, 0, 0]
NAMES = "top_k_top_p_filter", "norm_logits", "sample", "max_fn"


MEND = {"prefix_len - self.args.gamma + i)": "prefix_len - self.args.gamma + i + 1)"}  # a seed for each place


def make_decoder(function, mend, distribution, main, pipe):
    """Make their `Decoding`, as far as the loop needs it: the models, and an accelerator of two processes."""
    scope = {"torch": torch, "F": torch.nn.functional}
    scope |= dict(zip(NAMES, borrowed.functions("src/util.py", *NAMES, **scope), strict=True))
    (scope["KVCacheModel"],) = borrowed.functions("src/kvcache.py", "KVCacheModel", **scope)
    replace = {'"cuda:1"': '"cpu"'} | (MEND if mend else {})
    (loop,) = borrowed.functions("src/engine.py", function, replace=replace, **scope)

    def gather(local):
        pipe.send(local.numpy())
        pair = [local, torch.tensor(pipe.recv())]
        return torch.cat(pair if main else pair[::-1])

    self = SimpleNamespace(vocab_size=4, num_acc_tokens=[], draft_forward_times=0, target_forward_times=0)
    self.accelerator = SimpleNamespace(is_main_process=main, wait_for_everyone=lambda: None, gather=gather)
    # The tokens returned last are drafts that are not verified, so two windows more are drawn than are judged
    self.args = SimpleNamespace(temp=1.0, top_k=0, top_p=0.0, gamma=GAMMA, max_tokens=distribution.length + 2 * GAMMA)
    self.draft_model = borrowed.TableModel(distribution.extra["draft"], len(PROMPT))
    self.target_model = borrowed.TableModel(distribution.tables[0], len(PROMPT))
    self.run = MethodType(loop, self)
    return self


def decode(self, seeds):
    """Decode a sequence [L + ...] for each seed, with which both processes begin."""
    rows = []
    for seed in seeds:
        self.seed = seed
        torch.manual_seed(seed)
        rows.append(self.run(torch.tensor([PROMPT]))[0].numpy())
    return rows


def sampler(distribution, models, function="parallel_speculative_decoding", mend=False):
    """Make a sampler by their `function`, with `mend` corrected by MEND; the parallel one runs its target in a
    process."""

    def sample(prompts, seed):
        seeds = np.random.default_rng(seed).integers(2**40, size=len(prompts)).tolist()
        ours, theirs = multiprocessing.Pipe()
        draft = make_decoder(function, mend, distribution, True, ours)
        if function == "parallel_speculative_decoding":
            target = make_decoder(function, mend, distribution, False, theirs)
            process = multiprocessing.get_context("fork").Process(target=decode, args=(target, seeds), daemon=True)
            process.start()
        rows = [row[len(PROMPT) : len(PROMPT) + distribution.length] for row in decode(draft, seeds)]
        return Sampled(np.stack(rows), draft.draft_forward_times, sum(draft.num_acc_tokens))

    return sample
