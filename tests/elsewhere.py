"""A device that is not there: tensors that say they are elsewhere and compute on the CPU.

    with elsewhere() as device:
        x = torch.arange(3, device=DEVICE)  # or device.put(x), of a tensor, a tree of them, a network

What a GPU refuses is an error with its place: an op of tensors on two devices (a number, a tensor without dimensions,
may stand on the CPU). What makes the host wait for a GPU is noted, with its place, in `reads`: a value asked for, a
copy to the CPU, a shape that depends on values (nonzero, an index of bools). What is copied to the device is noted in
`writes`. Random numbers of the global generator are an error: a GPU's are others.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from parity.base import devices, weights

backend_registration._setup_privateuseone_for_python_backend()  # torch asks for a guard of every device it is named
DEVICE = torch.device("privateuseone:0")
ROOT = Path(__file__).parents[1]
# their result is a number, or a shape that depends on values
READS = ("item", "_local_scalar_dense", "equal", "is_nonzero", "allclose", "nonzero", "masked_select", "argwhere")
READS += ("unique", "_unique", "_unique2", "unique_dim", "unique_consecutive", "bincount", "nonzero_numpy")
RANDOM = ("rand", "randn", "randint", "bernoulli", "multinomial", "normal_", "uniform_", "exponential_", "randperm")


def place() -> str:
    """Where in the sources, or else in the tests, the op at hand was asked for."""
    own = [f for f in traceback.extract_stack() if f.filename.startswith(str(ROOT)) and f.filename != __file__]
    f = next((f for f in reversed(own) if "site-packages" not in f.filename), traceback.extract_stack()[0])
    return f"{Path(f.filename).relative_to(ROOT)}:{f.lineno} {f.line}" if own else f"{f.filename}:{f.lineno}"


class There(Tensor):
    """A tensor on the device; `held` is the tensor that computes."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "There":
        given = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made = Tensor._make_wrapper_subclass(cls, held.shape, device=DEVICE, **given)
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"There({self.held!r})"

    def tolist(self) -> Any:
        """As torch does it for no subclass: a copy to the CPU first."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, kinds, args=(), kwargs=None):
        raise AssertionError(f"{func}: a tensor of the device is used outside of it")


class Elsewhere(TorchDispatchMode):
    """The device, while it is there; see above."""

    device = DEVICE

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.writes: list[str] = []

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        kwargs = kwargs or {}
        flat = tree_flatten((args, kwargs))[0]
        there = [x for x in flat if isinstance(x, There)]
        here = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, There)]
        to = kwargs.get("device") or next((x for x in args if isinstance(x, torch.device)), None)
        name = func.overloadpacket.__name__
        if not there and (to is None or to.type != DEVICE.type):
            return func(*args, **kwargs)
        self._refuse(name, there, here)
        if (there and (to is not None and to.type == "cpu")) or name in READS or bools(name, args):
            self.reads.append(place())
        if name == "repeat_interleave" and len(args) > 1 and isinstance(args[1], There) and "output_size" not in kwargs:
            self.reads.append(place())
        if (not there and here) or (name == "copy_" and here):
            self.writes.append(place())
        held = tree_map(lambda x: x.held if isinstance(x, There) else here_device(x), (args, kwargs))
        out = func(*held[0], **held[1])
        if to is not None and to.type == "cpu":
            return out.clone() if any(out is x.held for x in there) else out
        if isinstance(out, Tensor) and any(out is x.held for x in there):  # an op in place
            return next(x for x in there if x.held is out)
        return tree_map(lambda x: There(x) if isinstance(x, Tensor) else x, out)

    def _refuse(self, name: str, there: list[There], here: list[Tensor]) -> None:
        if name in RANDOM:
            raise AssertionError(f"{name}: random numbers of the device's own, at {place()}")
        if there and name not in ("copy_", "_to_copy", "to") and any(x.ndim for x in here):
            raise AssertionError(f"{name}: tensors on two devices, at {place()}")

    def put(self, x: Any) -> Any:
        """Tensors of a tree, or a network's parameters and buffers, on the device; what they hold is shared."""
        if isinstance(x, torch.nn.Module):
            for module in x.modules():
                for own in (module._parameters, module._buffers):
                    own.update({k: self.put(v.detach()) for k, v in own.items() if v is not None})
            return x
        return tree_map(lambda v: There(v) if isinstance(v, Tensor) and not isinstance(v, There) else v, x)


def bools(name: str, args: tuple) -> bool:
    """Whether an op is an index of bools."""
    if name not in ("index", "index_put_", "index_put", "_index_put_impl_"):
        return False
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])


def here_device(x: Any) -> Any:
    return torch.device("cpu") if isinstance(x, torch.device) else x


def back(x: Any) -> Any:
    """Tensors of a tree as they are on the CPU."""
    return tree_map(lambda v: v.held if isinstance(v, There) else v, x)


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    """The device. A view of a tensor that knows gradients cannot be wrapped, so none does; `torch.tensor` builds on the
    CPU and copies."""
    lifting = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with torch.inference_mode(), Elsewhere() as device:
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(lifting)


@contextmanager
def loading() -> Iterator[Elsewhere]:
    """The device, for jobs that load their networks themselves, onto the device whose name they are given."""
    to, tensors = torch.nn.Module.to, weights.tensors

    def there(device: Any) -> bool:
        return isinstance(device, str | torch.device) and torch.device(device).type == DEVICE.type

    with elsewhere() as device:

        def moved(net: Any, *given: Any, **named: Any) -> Any:
            net = to(net, *(x for x in given if not there(x)), **named)
            return device.put(net) if any(map(there, given)) else net

        def here(path: Any, where: Any = "cpu", *given: Any, **named: Any) -> Any:
            for name, tensor in tensors(path, "cpu" if there(where) else where, *given, **named):
                yield name, device.put(tensor) if there(where) else tensor

        torch.nn.Module.to, weights.tensors = moved, here
        checked, devices.check = devices.check, lambda device, dtype: None if there(device) else checked(device, dtype)
        try:
            yield device
        finally:
            torch.nn.Module.to, weights.tensors = to, tensors
            devices.check = checked
