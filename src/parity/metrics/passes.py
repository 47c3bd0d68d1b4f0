"""Passes and nodes (tokens evaluated) of image decoders, calls of their speculators, acceptance by slot, and the speed
of a request (SPEED-Bench).

A speculator is a smaller network beside the target: a drafter or a draft model. Its calls come before the target's next
pass, so an image waits for both, one after another.

A pass that makes k tokens final accepted the drafts in its slots 1 to k - 1 and drew the k-th itself. So the
acceptance of slot j, given that of slot j - 1, is the share of passes with more than j tokens among those with j or
more. The last pass of an image is left out, because the end of the image cut it short. A window of W in which all is
accepted counts as W - 1, since it draws no token of its own. Passes without a draft in slot j (the start of an image,
a short tree) count as not accepted there.

Step compression (Teng et al. 2024, sec. 5) is what the papers count: all tokens of an image over its passes, those that
the grammar forces included, of which plain decoding draws each in a pass of its own. Here plain decoding reads forced
tokens beside others and no decoder makes a pass for those at the end, so the passes that the papers' loops make for
them are added. VVS's TPF (Dong et al. 2025, eq. 3) leaves out the pass that reads the prompt, with the token that
follows: here the first one."""

from typing import Any

import numpy as np

from parity.base.files import dump_canonical
from parity.metrics.estimates import Estimate, bootstrap_interval, mean_and_error, ratio_and_error

KINDS = ("discrete",)
MEASURES = {
    "step_compression": ("step compression", "tokens per pass", "higher"),
    "tpf": ("TPF", "tokens per pass after the first", "higher"),
    "nfe": ("passes per image", "", "lower"),
    "draft_calls": ("calls of the speculator per image", "", "lower"),
    "calls": ("calls one after another per image", "", "lower"),
    "draft_nodes": ("tokens evaluated per call of the speculator", "", "none"),
    "draft_share": ("speculator's parameters over the target's", "", "lower"),
    "nodes_per_pass": ("tokens evaluated per pass", "", "none"),
    "nodes_per_token": ("tokens evaluated per token kept", "", "lower"),
    "tokens": ("tokens per image", "", "none"),
    "acceptance_length": ("acceptance length", "tokens per pass", "higher"),
    "request_tokens_per_second": ("tokens per second for a request", "measured", "higher"),
    "first_token_seconds": ("time to first token, s", "measured", "lower"),
}
UNKNOWN = "not reported"  # why a figure of tokens made elsewhere is missing


def free_tokens(step: np.ndarray, forced: np.ndarray | None = None) -> np.ndarray:
    """Count the tokens [n] of each image that the model chose: those with a pass in step [n, L] (0: none) except for
    those in forced [L] bool, the grammar's."""
    chosen = step > 0
    return (chosen if forced is None else chosen & ~forced).sum(1)


def count_steps(step: np.ndarray, nfe: np.ndarray, forced: np.ndarray | None = None) -> np.ndarray:
    """Count the passes [n] of each image as the papers do, from its own, nfe [n], with a pass for each token that is
    forced after the last free one, and for all tokens where each free one took a pass. step, forced: as of
    `free_tokens`."""
    n_free = free_tokens(step, forced)
    is_free: np.ndarray = np.any(step > 0, axis=0) if forced is None else ~forced
    n_last = int(is_free[::-1].argmax())
    return np.where(nfe == n_free, step.shape[1], nfe + n_last)


def compress_steps(step: np.ndarray, nfe: np.ndarray, forced: np.ndarray | None = None) -> np.ndarray:
    """Compute the step compression [n] of each image; step, forced: as of `free_tokens`, nfe [n] its passes."""
    return step.shape[1] / count_steps(step, nfe, forced)


def rows(sample: Any) -> dict[str, Any]:
    """List for every image its passes, its nodes, the tokens that each pass kept, and the pass of each token."""
    shard = sample.shard
    kept_by_pass = [k[k > 0] for k in shard.kept]
    return {"nfe": shard.nfe, "nodes": shard.nodes, "kept": kept_by_pass, "step": list(shard.step)}


def drop_last_pass(kept: np.ndarray) -> np.ndarray:
    """List the tokens that each pass made final, of kept [n, passes] (0 once a row is done), without last passes."""
    last_pass = kept.shape[1] - 1 - (kept > 0)[:, ::-1].argmax(1)
    return kept[(kept > 0) & (np.arange(kept.shape[1]) < last_pass[:, None])]


def compute_slot_shares(kept: np.ndarray) -> list[float]:
    """Compute the share of drafts accepted in slots 1, 2, ... given that the slot before was accepted."""
    n_kept = drop_last_pass(kept)
    return [float((n_kept > j).sum() / (n_kept >= j).sum()) for j in range(1, int(n_kept.max(initial=0)))]


def measure(sample: Any) -> dict[str, Any]:
    if sample.shard.is_made:
        return measure_made(sample)
    return measure_passes(sample) | measure_calls(sample) | measure_requests(sample)


def measure_made(sample: Any) -> dict[str, Any]:
    """Measure, of tokens made elsewhere, what their makers counted: passes, and where they name each token's pass the
    tokens of one."""
    shard = sample.shard
    figures: dict[str, Any] = {name: Estimate(why=UNKNOWN) for name in MEASURES}
    figures["tokens"] = float(free_tokens(shard.step, sample.forced).mean())
    if not np.isnan(shard.nfe).any():
        ratios = compress_steps(shard.step, shard.nfe, sample.forced)
        low, high = bootstrap_interval(ratios, sample.groups)
        figures["nfe"] = Estimate(*mean_and_error(shard.nfe, sample.groups))
        figures["step_compression"] = Estimate(float(ratios.mean()), low=low, high=high)
    if not shard.lacks("step"):
        figures["acceptance_length"] = Estimate(*ratio_and_error(shard.kept.sum(1), (shard.kept > 0).sum(1)))
    return figures


def measure_passes(sample: Any) -> dict[str, Any]:
    """Compute means over images, with errors by prompt: free tokens, passes, nodes, and step compression and TPF, with
    bootstrap intervals."""
    shard = sample.shard
    free = free_tokens(shard.step, sample.forced)
    columns = {"nfe": shard.nfe, "nodes_per_pass": shard.nodes / shard.nfe, "nodes_per_token": shard.nodes / free}
    figures = {name: Estimate(*mean_and_error(values, sample.groups)) for name, values in columns.items()}
    steps = count_steps(shard.step, shard.nfe, sample.forced)
    is_plain = steps == shard.step.shape[1]
    after_first = (shard.step.shape[1] - shard.kept[:, 0]) / np.maximum(steps - 1, 1)
    ratios = {"step_compression": compress_steps(shard.step, shard.nfe, sample.forced)}
    ratios["tpf"] = np.where(is_plain, 1.0, after_first)
    for name, values in ratios.items():
        low, high = bootstrap_interval(values, sample.groups)
        figures[name] = Estimate(float(values.mean()), low=low, high=high)
    return {"tokens": float(free.mean()), **figures}


def measure_calls(sample: Any) -> dict[str, Any]:
    """Count the speculator's calls, those of a batch shared out to its rows by their passes, and its size over the
    target's."""
    shard = sample.shard
    drafted = shard.draft_calls * shard.nfe / shard.passes
    figures: dict[str, Any] = {
        name: Estimate(*mean_and_error(values, sample.groups))
        for name, values in {"draft_calls": drafted, "calls": shard.nfe + drafted}.items()
    }
    if shard.draft_calls.sum():
        figures["draft_nodes"] = float(shard.draft_tokens.sum() / shard.draft_calls.sum())
        sizes = dict(shard.provenance.get("parameters", {}))
        if target := sizes.pop("target", 0):
            figures["draft_share"] = sum(sizes.values()) / target
    return figures


def measure_requests(sample: Any) -> dict[str, Any]:
    """Measure acceptance by slot (`acceptance_by_slot`: JSON, a list) and the speed of a request: tokens per second of
    a row in its batch, and the median seconds to the first token, reading the prompt included."""
    shard = sample.shard
    passes = (shard.kept > 0).sum(1)
    free = free_tokens(shard.step, sample.forced)
    # A row waits until its batch is done, unless other rows take the places of those that are done.
    waited = np.where(shard.at_once < shard.batch, shard.nfe / shard.passes, 1) * shard.seconds
    figures: dict[str, Any] = {
        "acceptance_length": Estimate(*ratio_and_error(shard.kept.sum(1), passes)),
        "acceptance_by_slot": dump_canonical([round(share, 4) for share in compute_slot_shares(shard.kept)]),
        "request_tokens_per_second": Estimate(*mean_and_error(free / waited, sample.groups)),
    }
    if "first_seconds" in shard.columns:
        figures["first_token_seconds"] = float(np.median(shard.first_seconds))
    return figures
