"""Decoders by their names, imported by the jobs that run them; where a name leads is in `decoder_sources`."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import update_wrapper
from pathlib import Path
from typing import Any

from parity.base.errors import ParityError
from parity.experiment.decoder_sources import Source, find_source


def import_source(source: Source) -> Any:
    """Import a decoder's module; a file's once in a process."""
    if not source.module.endswith(".py"):
        return importlib.import_module(source.module)
    path = source.file.resolve()
    name = f"decoder_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)  # type: ignore[union-attr]
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def import_decoder(
    kind: str, method: str, spec: Mapping[str, Any] | None = None, wrap: Callable[[Any], Any] | None = None
) -> Callable[..., Any]:
    """Import a decoder by its name. One with a draft network of its own is handed it (`Drafted`).

    spec  of the cell: names the file of a draft network that was trained for its model; without it, as in tests on
          models of known distributions, the network has new weights
    wrap  changes the network, as with one that times its calls
    """
    module = import_source(find_source(kind, method))
    decode: Callable[..., Any] = getattr(module, find_source(kind, method).function)
    return hand_draft(decode, module, str((spec or {}).get("own_draft", "")), wrap)


def hand_draft(
    decode: Callable[..., Any], module: Any, file: str = "", wrap: Callable[[Any], Any] | None = None
) -> Callable[..., Any]:
    """Return a decoder of a module, handed the draft network that the module names as DRAFT, if it names one."""
    name = getattr(module, "DRAFT", "")
    return Drafted(decode, getattr(module, name), file, wrap) if name else decode


NETWORKS: dict[tuple[Any, ...], Any] = {}  # draft networks that this process has loaded


def count_draft_parameters() -> dict[str, int]:
    """Count the parameters of the draft networks of others that this process decodes with, by the name of the class:
    those of the torch modules that an object of it is or holds."""
    import torch

    from parity.base.weights import count_parameters

    counts = {}
    for network in NETWORKS.values():
        held = [network, *getattr(network, "__dict__", {}).values()]
        nets = torch.nn.ModuleList(net for net in held if isinstance(net, torch.nn.Module))
        counts[type(network).__name__] = count_parameters(nets)
    return counts


class Drafted:
    """A decoder with a draft network of its own, which is loaded once for all models of one size."""

    def __init__(
        self, decode: Callable[..., Any], network: Any, file: str = "", wrap: Callable[[Any], Any] | None = None
    ):
        """Set the decoder, the class of its network, and the file of the weights, "" for new ones."""
        if file and not Path(file).is_file():
            raise ParityError(
                f"{decode.__name__}: its draft network is not trained, there is no {file};"
                " allowed: what `parity train own` makes"
            )
        self.decode, self.network, self.file, self.wrap = decode, network, file, wrap
        update_wrapper(self, decode)

    def load(self, model: Any) -> Any:
        """Load the network for models of these sizes; new weights are the same each time."""
        import torch

        if issubclass(self.network, torch.nn.Module) and "train" in vars(self.network):
            problem = "is a torch module, whose `train` is another function"
            raise ParityError(f"{self.network.__name__} {problem}; allowed: a class that holds the module")
        device = model.forced.device
        key = (self.network, self.file, model.vocab, model.length, model.width, str(device))
        if key not in NETWORKS:
            with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
                torch.manual_seed(0)
                NETWORKS[key] = self.network.load(model, self.file or None)
        return NETWORKS[key]

    def __call__(self, model: Any, start: Any, **options: Any) -> Any:
        """Decode with the network as keyword `draft`."""
        draft = self.load(model)
        return self.decode(model, start, draft=self.wrap(draft) if self.wrap else draft, **options)
