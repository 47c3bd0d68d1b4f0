"""Is a sampler lossless, whoever wrote it?

from parity_certify import certify_sampler, law
print(certify_sampler(my_sampler, law(f, vocab=4, ...)))     anything that turns prompts and a seed into tokens
print(certify_verifier(verify))                              the accept-or-resample function of speculative sampling
print(certify_command(["./engine"], read_law("law.json")))   an engine in any language, over stdin and stdout
print(certify_samples("samples.jsonl", law))                 samples drawn elsewhere
"""

from importlib import import_module
from typing import Any

_WHERE = {
    "Certificate": "certificate", "certify_sampler": "sampler", "Sampled": "calls",
    "certify_verifier": "verifier", "certify_speculation": "speculation", "Speculated": "speculation",
    "Problem": "verifier", "certify_command": "command", "certify_samples": "samples",
    "Law": "laws", "law": "laws", "read_law": "laws", "write_law": "laws",
    "shape_law": "processors", "certify_design": "design", "certify_conditions": "design", "Condition": "design",
}  # fmt: skip
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Import the names above on demand: the plugin starts in every run of pytest, without numpy."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"parity_certify.{_WHERE[name]}"), name)
