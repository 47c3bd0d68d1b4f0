"""The rejection sampler of vLLM against the target's probabilities, for its unit tests: chain and block verification.

Copy this file into the tests of the engine, and put in place of the two samplers below

    from vllm.v1.sample.rejection_sampler import rejection_sample

They take what vLLM's function takes, so that the test runs here as well: drafts of all requests end to end, of which a
request may have fewer than others, draft probabilities or None (n-gram drafts, which are certain), and bonus tokens
that the caller has drawn. Where the kernels need a GPU, set DEVICE.
"""

from types import SimpleNamespace

import pytest
import torch

from parity_certify import certify_verifier

DEVICE = "cpu"
METADATA = SimpleNamespace(all_greedy=False, all_random=True, generators={}, temperature=None)  # as SamplingMetadata


def rejection_sample(
    draft_token_ids,  # [num_tokens]
    num_draft_tokens,  # [batch_size], a list
    max_spec_len,
    cu_num_draft_tokens,  # [batch_size], the running sum
    draft_probs,  # [num_tokens, vocab_size] or None
    target_probs,  # [num_tokens, vocab_size]
    bonus_token_ids,  # [batch_size, 1]
    sampling_metadata,
):
    """Accept drafts one by one; return tokens [batch_size, max_spec_len + 1], -1 after the last of a request."""
    out = torch.full((len(num_draft_tokens), max_spec_len + 1), -1, dtype=torch.int32, device=target_probs.device)
    uniform = torch.rand(len(draft_token_ids), device=target_probs.device)
    for i, count in enumerate(num_draft_tokens):
        start = int(cu_num_draft_tokens[i]) - count
        for k in range(count):
            token, p = int(draft_token_ids[start + k]), target_probs[start + k]
            q = torch.eye(len(p), device=p.device)[token] if draft_probs is None else draft_probs[start + k]
            if uniform[start + k] * q[token] < p[token]:
                out[i, k] = token
                continue
            out[i, k] = torch.multinomial((p - q).clamp(min=0), 1)
            break
        else:
            out[i, count] = bonus_token_ids[i, 0]
    return out


def rejection_sample_by_blocks(
    draft_token_ids,
    num_draft_tokens,
    max_spec_len,
    cu_num_draft_tokens,
    draft_probs,
    target_probs,
    bonus_token_ids,
    sampling_metadata,
):
    """Keep the longest part of the drafts that may be kept as a whole: block verification (Sun et al. 2024)."""
    out = torch.full((len(num_draft_tokens), max_spec_len + 1), -1, dtype=torch.int32, device=target_probs.device)
    for i, count in enumerate(num_draft_tokens):
        start = int(cu_num_draft_tokens[i]) - count
        tokens = draft_token_ids[start : start + count]
        p = target_probs[start : start + count].double()
        q = torch.eye(p.shape[1])[tokens] if draft_probs is None else draft_probs[start : start + count]
        q = q.double()
        weights, kept = [1.0], 0  # weights[k]: how likely the first k drafts may be kept
        for k, token in enumerate(tokens.tolist()):
            weights.append(min(1.0, weights[-1] * float(p[k, token] / q[k, token])))
            accept = weights[-1]
            if k + 1 < count:
                rest = float((weights[-1] * p[k + 1] - q[k + 1]).clamp(min=0).sum())
                accept = rest / max(rest + 1 - weights[-1], 1e-300)
            kept = k + 1 if torch.rand(()) < accept else kept
        out[i, :kept] = tokens[:kept]
        rest = bonus_token_ids[i] if kept == count else (weights[kept] * p[kept] - q[kept]).clamp(min=0)
        out[i, kept] = rest[0] if kept == count else torch.multinomial(rest, 1)
    return out


def adapt(sample, certain=False):
    """Make the verifier of a batch that `certify_verifier` calls from a function like `rejection_sample`. Requests have
    0 to K drafts, so that their rows begin anywhere; certain: n-gram drafts, whose probabilities are not passed."""

    def verify(draft_tokens, draft_probs, target_probs, rng):
        n, K = draft_tokens.shape
        counts = rng.integers(0, K + 1, size=n)
        given = [(i, k) for i, count in enumerate(counts) for k in range(count)]
        rows, places = (torch.tensor(part, dtype=torch.long) for part in zip(*given, strict=True))
        p, q, tokens = (torch.from_numpy(x).float() for x in (target_probs, draft_probs, draft_tokens))
        bonus = torch.multinomial(p[torch.arange(n), torch.from_numpy(counts)], 1)
        found = sample(
            tokens[rows, places].int().to(DEVICE),
            counts.tolist(),
            K,
            torch.from_numpy(counts.cumsum()).int().to(DEVICE),
            None if certain else q[rows, places].contiguous().to(DEVICE),
            p[rows, places].contiguous().to(DEVICE),
            bonus.int().to(DEVICE),
            METADATA,
        )
        return found.cpu().numpy()

    return verify


@pytest.mark.parametrize("sample", [rejection_sample, rejection_sample_by_blocks])
@pytest.mark.parametrize(("certain", "problems"), [(False, ("soft", "sparse")), (True, ("point",))])
def test_the_rejection_sampler_is_lossless(sample, certain, problems):
    found = certify_verifier(
        adapt(sample, certain), shape="batch", vocab=3, drafts=2, problems=problems, margin=0.1, alpha=1e-4
    )
    assert found.verdict.kind == "certified", str(found)
