"""transformers 5.15.0: `generate(use_mtp=True)` of a tiny Llama, with a random head of multi-token prediction."""

import torch
from parity_certify import models as tiny
from parity_certify.adapters import transformers as generating
from transformers.modeling_layers import MtpModel


def design(models, drafted=True):
    """Make the conditions of `certify transformers`; the head has random weights, so that it is not loaded but made."""
    model = generating.load_model(models / "square")
    model.config.num_mtp_layers = 1
    torch.manual_seed(1)
    head = MtpModel(model, 1)
    tiny.randomise_weights(head.layers)
    MtpModel.from_pretrained = classmethod(lambda cls, main_model, **settings: head.eval())
    return generating.make_conditions(model, {"use_mtp": True} if drafted else {})
