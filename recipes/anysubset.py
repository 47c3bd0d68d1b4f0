"""Recipes of the text models: the any-subset model `xlnet`, and `judge`, which scores what others write.

XLNet learns the joint distribution of what is masked (`parity.train.joint`), as `parity train arm` teaches it.

In the lattice's order a word's left neighbour is always known, so a network trained on this order alone never learns
what ASSD drafts from: a word whose neighbour is missing. The paper's network is pretrained in random orders and has
learned it. This one starts from random weights and learns both at once.

The published models end at rates of 90 to 99 % (text, started at 15 %) and 15 to 99 % (code, started at 5 %). This one
fills in whole texts as well as single words, so it uses the code model's.
"""

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from parity.embedded import stories
from parity.models.anysubset import causal
from parity.models.anysubset.xlnet import xlnet as xlnet_network
from parity.train.joint import JointLesson, make_scheme
from parity.train.loop import Job, Recipe, reduce_precision
from recipes.data import draw_texts


def xlnet(job: Job) -> Recipe:
    """Make the recipe of XLNet. Its log: nats per masked word, also of held-out texts at 95 % masking. Raises
    ParityError if `job.scheme` has a key that is not a field of `Scheme`."""
    scheme = make_scheme(job.scheme)
    tokens = draw_texts(job)
    test = draw_texts(job, test=True)
    torch.manual_seed(job.seed)
    words = stories.list_words()
    net = xlnet_network(len(words))

    lesson = JointLesson(net, tokens, test, scheme, job.batch, job.batch, seed=job.seed)

    def finish():
        header = {"network": net.config.to_diff_dict(), "words": words, "mask": 0, "scheme": asdict(scheme)}
        return {"held_out_nats_at_95": lesson.measure()}, header

    return Recipe(
        *(net, lesson.compute_loss, finish, (7,)),
        peak=2e-3,
        average=0.99,
        warmup=scheme.warmup,
        hidden=r"\.ff\.layer",
        held_out=lambda: {"held_out": lesson.measure()},
        held_out_every=250,
    )


def judge(job: Job) -> Recipe:
    """Make the recipe of a small GPT-2 over the same words, without dropout. Its log: nats per word, in the end also on
    held-out texts."""
    tokens = draw_texts(job)
    test = draw_texts(job, test=True)
    torch.manual_seed(job.seed)
    words = stories.list_words()
    # The network has one position more than a text has words, because its first input is the separator.
    sizes: dict[str, Any] = {"vocab_size": len(words), "n_positions": stories.LENGTH + 1}
    sizes |= {"n_embd": 128, "n_layer": 3, "n_head": 4}
    sizes |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 1}
    net = causal.build(sizes)

    def compute_nats(rows):
        inputs = torch.cat([torch.ones_like(rows[:, :1]), rows[:, :-1]], 1)  # word 1 is the separator
        return F.cross_entropy(net(inputs).logits.flatten(0, 1).float(), rows.flatten())

    def loss(step, rng):
        rows = tokens[torch.from_numpy(rng.integers(0, job.examples, job.batch))]
        with reduce_precision():
            return compute_nats(rows), {}

    def finish():
        figures = {"held_out_nats": float(np.mean([compute_nats(t).item() for t in test.split(32)]))}
        return figures, {"network": net.config.to_diff_dict(), "words": words, "mask": 0}

    return Recipe(net, loss, finish, stream=(8,), peak=2e-3, average=0.99)


RECIPES = {"xlnet": xlnet, "judge": judge}
