"""The training scheme of the any-subset model: the joint conditional, masking rates, orders."""

import numpy as np
import pytest
import torch
from parity_decoders.protocols.anysubset import make_lattice

from parity.base.errors import ParityError
from parity.models.anysubset.xlnet import XLNet, xlnet
from recipes.anysubset import Scheme, compute_joint_nats, draw_order, make_scheme

B, N, V = 5, 12, 17


def test_the_loss_is_the_joint_conditional():
    """The loss of each masked word, given the prompt and the words before it in the order, is that of the model's
    laws."""
    torch.manual_seed(0)
    net = xlnet(V, 32, 2, 4).eval()
    for p in net.parameters():
        p.data.mul_(10)  # an untrained network is nearly uniform, so its laws would agree
    tokens = torch.randint(1, V, (B, N), generator=torch.Generator().manual_seed(1))
    is_prompt = torch.rand(B, N, generator=torch.Generator().manual_seed(2)) < 0.4
    is_prompt[:, 0] = True
    is_prompt[:, -1] = False
    order = make_lattice(is_prompt)[0]
    m = is_prompt.sum(1)
    ranks = torch.arange(N).expand(B, N)
    with torch.inference_mode():
        nats = compute_joint_nats(net, tokens, order, m).gather(1, order)
        p = XLNet(net, 0).laws(tokens, order, m, ranks, ranks.maximum(m[:, None]))
    by_rank = -p.gather(-1, tokens.gather(1, order)[..., None])[..., 0].log()
    expected = torch.where(ranks < m[:, None], 0, by_rank)
    torch.testing.assert_close(nats, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(nats, torch.where(ranks < m[:, None], 0, by_rank.roll(1, 1)), atol=1e-2)


@pytest.mark.parametrize("permutations", [0.0, 1.0])
def test_orders_are_the_lattices_unless_permuted(permutations):
    order, m = draw_order(Scheme(warmup=0, permutations=permutations), 0, (64, 32), np.random.default_rng(1))
    assert (order.sort(1).values == torch.arange(32)).all()
    long = [o[k:] for o, k in zip(order, m.tolist(), strict=True) if k < 28]  # few missing tokens may ascend by chance
    ascending = {bool((o.diff() > 0).all()) for o in long}
    assert ascending == {not permutations}


def test_an_unknown_key_of_a_scheme_is_named():
    assert make_scheme({"permutations": 1}).permutations == 1
    with pytest.raises(ParityError, match="--scheme order: unknown key; allowed: start, low, high"):
        make_scheme({"order": 1})
