"""transformers: universal assisted decoding records its draft's law under other tokens. Exit code 1: it does."""

import sys
from types import SimpleNamespace

import torch
from transformers.generation.candidate_generator import AssistantToTargetTranslator


class Tokenizer:
    """A tokenizer of single letters, in the order of a text; `get_vocab` may list them in any order, as here."""

    def __init__(self, letters):
        self.letters = letters

    def __call__(self, text, **_):
        return {"input_ids": []}  # none has a token for a space

    def get_vocab(self):
        return dict(sorted(((letter, i) for i, letter in enumerate(self.letters)), key=lambda item: -item[1]))


target, assistant = Tokenizer("abcd"), Tokenizer("abcdyz")  # the assistant knows two letters more
head, embedding = torch.nn.Linear(6, 6, bias=False), torch.nn.Embedding(6, 6)
head.weight.data = torch.eye(6)  # the assistant's logits are its hidden state
model = SimpleNamespace(device="cpu", heads=[head])
model.get_output_embeddings, model.set_output_embeddings = lambda: model.heads[-1], model.heads.append
model.get_input_embeddings, model.set_input_embeddings = lambda: embedding, lambda _: None
translator = AssistantToTargetTranslator(target, assistant, 4, model, assistant_prune_lm_head=True)
hidden = torch.tensor([[9.0, 0.0, 0.0, 0.0, 0.0, 0.0]])  # the assistant is sure of token a
pruned = model.heads[-1](hidden)
drafted = translator.get_target_ids(torch.zeros(1, 0), torch.zeros(1, 0).long(), pruned.argmax(-1)[None]).item()
recorded = translator.get_target_logits(pruned).argmax(-1).item()
print(f"the draft is token {drafted}, the law recorded for it is that of token {recorded}")
sys.exit(drafted != recorded)
