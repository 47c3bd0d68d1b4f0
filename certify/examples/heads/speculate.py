"""Decode by speculation, plainly, as an engine does: what is certified of a head, and faults that are found.

    parity-certify models --heads eagle eagle3 mtp medusa --out m
    parity-certify sampler speculate.py:eagle --target m/llama
    parity-certify sampler speculate.py:mtp --target m/mimo

The first token is the target's. Then, round by round, the head drafts from the target's states, one forward of the
target verifies, and a rejected draft is replaced by a draw of what is left of the target's probabilities; after the
last draft one token more is drawn. There is no cache: a row's tokens are run anew, which changes no probability. The
environment variable MODELS is the folder of the models (m), FAULT one of FAULTS.
"""

import os
from functools import cached_property
from pathlib import Path

import torch
from torch.nn.functional import one_hot

from parity_certify.adapters.transformers import load_model
from parity_certify.heads import Medusa, read_head, run_target

FAULTS = {
    "bonus": "the token after all drafts is drawn where the last draft was verified",
    "stale": "after a rejection the target goes on from the state of the draft, not of the token in its place",
    "position": "in the verification the drafts stand one position too far on",
}


class Speculation:
    """A sampler with drafts of a head, or of kind "ngram", which looks them up in the row, or "suffix", also in rows
    before. greedy: the head drafts its likeliest tokens, as vLLM does by default. `seen` and `kept` count drafts that
    were verified and that were accepted."""

    def __init__(self, kind, folder=None, fault=None, greedy=False):
        self.kind, self.greedy, self.seen, self.kept, self.past = kind, greedy, 0, 0, []
        self.folder = Path(folder or os.environ.get("MODELS", "m"))
        self.fault = os.environ.get("FAULT", "") if fault is None else fault

    @cached_property
    def target(self):
        """The target of the head."""
        return load_model(self.folder / ("mimo" if self.kind == "mtp" else "llama"))

    @cached_property
    def head(self):
        """The head."""
        return read_head(self.kind, self.target, self.folder / ("mimo" if self.kind == "mtp" else f"llama-{self.kind}"))

    def __call__(self, prompts, seed, length=3, drafts=2, temperature=1.0):
        """Draw tokens [n, length] after prompts [n, P]."""
        torch.manual_seed(seed)
        n, start = prompts.shape
        text = torch.zeros((n, start + length + drafts), dtype=torch.long)
        text[:, :start] = torch.as_tensor(prompts)
        cached = text.clone()  # the tokens whose states the target has
        ends = torch.full((n,), start)
        while (ends < start + length).any():
            end = int(ends.min())
            for rows in torch.where(ends == end)[0].split(500):
                new = self.run_round(text[rows, :end], cached[rows, :end], drafts if end > start else 0, temperature)
                for row, (tokens, rejected) in zip(rows.tolist(), new, strict=True):
                    ends[row] = end + len(tokens)
                    text[row, end : ends[row]] = cached[row, end : ends[row]] = torch.tensor(tokens)
                    if self.fault == "stale" and rejected is not None:
                        cached[row, ends[row] - 1] = rejected
        self.past = [*self.past, *text[:, : start + length].tolist()][-20:]
        return text[:, start : start + length].numpy()

    @torch.no_grad()
    def run_round(self, text, cached, drafts, temperature):
        """Run a round for rows [n, t]. Returns the new tokens of each, and the draft that the last one replaces."""
        t = text.shape[1]
        tokens, q = text[:, t:], text.new_zeros((len(text), 0, 1)).float()
        if drafts and self.kind in ("ngram", "suffix"):
            tokens = torch.tensor([self.look_up(row, drafts) for row in text.tolist()])
            q = one_hot(tokens, self.target.config.vocab_size).float()
        elif drafts:
            tokens, q = self.draft(text, cached, drafts, temperature)
        positions = torch.arange(t + drafts)[None]
        if self.fault == "position":
            positions[:, t:] += 1
        p = run_target(self.target, torch.cat([cached, tokens], 1), positions).logits[:, t - 1 :] / temperature
        return [self.verify(*row) for row in zip(tokens.tolist(), q, p.softmax(-1), strict=True)]

    def draft(self, text, cached, drafts, temperature):
        """Draft tokens [n, k] after rows [n, t]; return them and their probabilities [n, k, V]."""
        states = getattr(run_target(self.target, cached[:, :-1]), self.head.reads)
        medusa = isinstance(self.head, Medusa)
        fixed = [logits[:, -1] for logits in self.head(states)] if medusa else []
        states = states if medusa else self.head.fuse(states)
        distributions = []
        for k in range(drafts):
            if medusa:
                logits = fixed[min(k, len(fixed) - 1)]
            else:
                along, after = self.head(text[:, 1:], states)
                logits, states = along[:, -1], torch.cat([states, after[:, -1:]], 1)
            q = (logits / temperature).softmax(-1)
            distributions.append(one_hot(q.argmax(-1), q.shape[-1]).float() if self.greedy else q)
            text = torch.cat([text, torch.multinomial(distributions[-1], 1)], 1)
        return text[:, -drafts:], torch.stack(distributions, 1)

    def look_up(self, row, drafts):
        """Look up what followed the longest end of a row before, in it or in rows before."""
        texts = [*(self.past if self.kind == "suffix" else []), row[:-1]]
        for size in range(min(4, len(row) - 1), 0, -1):
            for text in reversed(texts):
                for i in range(len(text) - size, 0, -1):
                    if text[i - 1 : i - 1 + size] == row[-size:] and text[i - 1 + size :]:
                        return (text[i - 1 + size :] + [row[-1]] * drafts)[:drafts]
        return [row[-1]] * drafts

    def verify(self, tokens, q, p):
        """Verify drafts [k] of a row, drawn from q [k, V], by the target's p [k + 1, V]; return as `run_round`."""
        kept = []
        for token, own, true in zip(tokens, q, p[:-1], strict=True):
            self.seen += 1
            if float(torch.rand(())) * own[token] >= true[token]:
                return [*kept, int(torch.multinomial((true - own).clamp(min=0), 1))], token
            self.kept += 1
            kept.append(token)
        last = p[-2] if kept and self.fault == "bonus" else p[-1]
        return [*kept, int(torch.multinomial(last, 1))], None


eagle, eagle3, mtp, medusa, ngram, suffix = map(Speculation, ("eagle", "eagle3", "mtp", "medusa", "ngram", "suffix"))
