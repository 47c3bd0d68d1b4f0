"""Is a sampler lossless, whoever wrote it?

from parity_certify import certify_sampler, read_distribution, target_distribution
target = target_distribution(f, vocab=4, ...)                         or read_distribution("target.json")
print(certify_sampler(my_sampler, target))                            anything that turns prompts and a seed into tokens
print(certify_verifier(verify))                                       accept-or-resample of speculative sampling
print(certify_command(["./engine"], target))                          an engine in any language, over stdin and stdout
print(certify_samples("samples.jsonl", target))                       samples drawn elsewhere
"""

import warnings
from importlib import import_module
from typing import Any

_WHERE = {
    "Certificate": "certificate", "certify_sampler": "sampler", "Sampled": "calls",
    "certify_verifier": "verifier", "certify_speculation": "speculation", "Speculated": "speculation",
    "Problem": "verifier", "certify_command": "command", "certify_samples": "samples",
    "Distribution": "distributions", "target_distribution": "distributions",
    "read_distribution": "distributions", "write_distribution": "distributions",
    "shape_distribution": "processors", "certify_design": "design", "certify_conditions": "design",
    "Condition": "design",
}  # fmt: skip
__all__ = list(_WHERE)
_OLD = {
    "Law": "Distribution",  # deprecated
    "law": "target_distribution",  # deprecated
    "read_law": "read_distribution",  # deprecated
    "write_law": "write_distribution",  # deprecated
    "shape_law": "shape_distribution",  # deprecated
}


def __getattr__(name: str) -> Any:
    """Import the names above on demand: the plugin starts in every run of pytest, without numpy."""
    if new := _OLD.get(name):
        warnings.warn(f"parity_certify.{name} is deprecated: use {new}", DeprecationWarning, stacklevel=2)
        name = new
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"parity_certify.{_WHERE[name]}"), name)
