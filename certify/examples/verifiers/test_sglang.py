"""The tree verifier of SGLang against the target's probabilities, for its unit tests.

Copy this file into the tests of the engine, and put in place of the sampler below

    from sgl_kernel import tree_speculative_sampling_target_only

It takes what SGLang's function takes, so that the test runs here as well. A tree is arrays of its nodes, of which the
first is the root, the last token of the text: the next node of a node is its first child, and siblings are a list. A
child is kept by the target's probabilities alone, of it and of its elder siblings, and what is drawn in the end comes
from what these leave. So any drafts are verified without loss, if no two siblings are equal. Where the kernel needs a
GPU, set DEVICE.
"""

import torch

from parity_certify import certify_verifier

DEVICE = "cpu"


def tree_speculative_sampling_target_only(
    predicts,  # [batch_size * nodes], written: the token after each node that is kept
    accept_index,  # [batch_size, depth + 1], written: the nodes that are kept, -1 after the last
    accept_token_num,  # [batch_size], written: how many nodes are kept below the root
    candidates,  # [batch_size, nodes]: their tokens
    retrive_index,  # [batch_size, nodes]: their places in `predicts`
    retrive_next_token,  # [batch_size, nodes]: the first child, -1 without one
    retrive_next_sibling,  # [batch_size, nodes]: the next sibling, -1 without one
    uniform_samples,  # [batch_size, nodes]
    uniform_samples_for_final_sampling,  # [batch_size]
    target_probs,  # [batch_size, nodes, vocab_size]: after each node
    draft_probs,  # [batch_size, nodes, vocab_size]: zeros, in which tokens that are rejected are marked
    threshold_single=1.0,
    threshold_acc=1.0,
    deterministic=True,
):
    """Walk down each tree while a child is kept, and draw one token more."""
    for b in range(len(candidates)):
        node, kept = 0, 0
        accept_index[b, 0] = retrive_index[b, 0]
        while True:
            p, passed, child = target_probs[b, node], 0.0, int(retrive_next_token[b, node])
            while child >= 0:
                token = int(candidates[b, child])
                passed += float(p[token])
                if uniform_samples[b, node] <= passed / threshold_acc or p[token] >= threshold_single:
                    break
                draft_probs[b, node, token] = p[token]
                child = int(retrive_next_sibling[b, child])
            if child < 0:
                break
            predicts[retrive_index[b, node]] = token
            node, kept = child, kept + 1
            accept_index[b, kept] = retrive_index[b, node]
        accept_token_num[b] = kept
        rest = (target_probs[b, node] - draft_probs[b, node]).clamp(min=0).cumsum(0)
        place = torch.searchsorted(rest, uniform_samples_for_final_sampling[b] * rest[-1], right=True)
        predicts[retrive_index[b, node]] = place.clamp(max=len(rest) - 1)


def adapt(sample):
    """Make the verifier of a tree that `certify_verifier` calls from SGLang's function."""

    def verify(tokens, parents, draft_probs, target_probs):
        nodes = len(tokens) + 1
        following = torch.full((2, nodes), -1, dtype=torch.long)  # of each node, the first child and the next sibling
        last: dict[int, int] = {}  # of each node, its last child so far
        for child, parent in enumerate((parents + 1).tolist(), 1):
            if parent in last:
                following[1, last[parent]] = child
            else:
                following[0, parent] = child
            last[parent] = child
        predicts = torch.full((nodes,), -1, dtype=torch.int32, device=DEVICE)
        accept_index = torch.full((1, nodes), -1, dtype=torch.int32, device=DEVICE)
        accept_token_num = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        p = torch.from_numpy(target_probs).float()[None].to(DEVICE)
        candidates = torch.tensor([[0, *tokens]], device=DEVICE)  # the root's token is not read
        index = torch.arange(nodes, device=DEVICE)[None]
        coins, last_coins = torch.rand((1, nodes), device=DEVICE), torch.rand(1, device=DEVICE)
        first, sibling = following[:, None].to(DEVICE)
        sample(
            predicts=predicts,
            accept_index=accept_index,
            accept_token_num=accept_token_num,
            candidates=candidates,
            retrive_index=index,
            retrive_next_token=first,
            retrive_next_sibling=sibling,
            uniform_samples=coins,
            uniform_samples_for_final_sampling=last_coins,
            target_probs=p,
            draft_probs=torch.zeros_like(p),
            threshold_single=1.0,
            threshold_acc=1.0,
            deterministic=True,
        )
        return predicts[accept_index[0, : int(accept_token_num[0]) + 1].long()].tolist()

    return verify


def test_the_tree_verifier_is_lossless():
    verify = adapt(tree_speculative_sampling_target_only)
    settings = {"vocab": 3, "drafts": 2, "branches": 2, "margin": 0.1, "alpha": 1e-4}
    found = certify_verifier(verify, shape="tree", problems=("soft", "point"), **settings)
    assert found.verdict.kind == "certified", str(found)
