"""The variants that `parity tune` tries on a model."""

from collections.abc import Iterator

from parity.base.errors import ConfigError
from parity.base.files import dump_canonical
from parity.experiment import tuned
from parity.experiment.options import (
    declaration,
    find_plain_method,
    list_bounds,
    make_option_schema,
    make_plain_options,
    methods,
)
from parity.experiment.tuned import Case
from parity.experiment.weights import list_option_sizes
from parity.timing.bench import Variant

SIZES = (16, 8, 12, 32, 4, 64)  # variants evaluate about this many positions a pass; they are tried in this order
# By kind the options that grow with the size of a pass, and what divides the size. `sjd_pac`'s branches do not grow.
SHARES = {
    "discrete": {"window": 1, "branches": 1, "total": 1, "gamma": 4},
    "anysubset": {"window": 1, "k": 2},
    "continuous": {"window": 2, "ahead": 1, "gamma": 4},
}
FEW = 4  # an option whose default is smaller does not grow


def list_candidates(case: Case) -> Iterator[Variant]:
    """List every lossless variant that a model can run, each once: plain decoding, then all methods size by size."""
    kind = case.kind
    shares = SHARES[case.kind]
    yield Variant(find_plain_method(kind), make_plain_options(kind))
    sizes = list_option_sizes(case.spec)
    names = {f"{find_plain_method(kind)} {dump_canonical(make_plain_options(kind))}"}
    for size in SIZES:
        for method in methods(kind):
            bounds = list_bounds(kind, method, sizes)
            fields = make_option_schema(kind, method).model_fields
            sized = {n: max(2, size // shares[n]) for n, f in fields.items() if n in shares and f.default >= FEW}
            sized = {name: min(value, bounds.get(name, value)) for name, value in sized.items()}
            try:
                sized = {**declaration(kind, method).EXACT_WITH, **sized}
                chosen = tuned.complete_lossless(kind, method, sized, case.spec)
            except ConfigError:
                continue  # the variant is lossy, or the model lacks a network that it needs
            if (name := f"{method} {dump_canonical(chosen)}") not in names:
                names.add(name)
                yield Variant(method, chosen)
