"""A simulated device: tensors that report another device and compute on the CPU.

    with simulate_device() as device:
        x = torch.arange(3, device=DEVICE)  # or device.put(x), of a tensor, a tree of them, a network

An op of tensors on two devices raises an error that names the line, as a GPU refuses it; a tensor without dimensions
may be on the CPU. `reads` lists the lines that make the host wait for a GPU: they ask for a value, copy to the CPU or
need a shape that depends on values (nonzero, an index of bools). Random
numbers of the global generator raise an error, because a GPU draws others.
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

backend_registration._setup_privateuseone_for_python_backend()  # torch needs a guard for every device
DEVICE = torch.device("privateuseone:0")
ROOT = Path(__file__).parents[1]
# These ops return a number, or a shape that depends on values, so that the host waits for the device.
READS = ("item", "_local_scalar_dense", "equal", "is_nonzero", "allclose", "nonzero", "masked_select", "argwhere")
READS += ("unique", "_unique", "_unique2", "unique_dim", "unique_consecutive", "bincount", "nonzero_numpy")
RANDOM = ("rand", "randn", "randint", "bernoulli", "multinomial", "normal_", "uniform_", "exponential_", "randperm")


def find_caller() -> str:
    """Find the line of the sources, or else of the tests, that asked for the current op: "file:number text"."""
    stack = traceback.extract_stack()
    ours = [f for f in stack if f.filename.startswith(str(ROOT)) and f.filename != __file__]
    caller = next((f for f in reversed(ours) if "site-packages" not in f.filename), stack[0])
    name = Path(caller.filename).relative_to(ROOT) if ours else caller.filename
    return f"{name}:{caller.lineno} {caller.line}"


class DeviceTensor(Tensor):
    """A tensor on the device; `inner` is the CPU tensor that computes."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "DeviceTensor":
        """Wrap a CPU tensor as one that reports the simulated device, with the same shape and strides."""
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        wrapper = Tensor._make_wrapper_subclass(cls, inner.shape, device=DEVICE, **layout)
        wrapper.inner = inner
        return wrapper

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.inner!r})"

    def tolist(self) -> Any:
        """Copy to the CPU first, which torch does for no subclass."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, kinds, args=(), kwargs=None):
        raise AssertionError(f"{func}: a tensor of the device is used outside of it")


class SimulatedDevice(TorchDispatchMode):
    """A simulated device while its context is open; see above."""

    device = DEVICE

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        kwargs = kwargs or {}
        flat = tree_flatten((args, kwargs))[0]
        device_tensors = [x for x in flat if isinstance(x, DeviceTensor)]
        cpu_tensors = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, DeviceTensor)]
        target = kwargs.get("device") or next((x for x in args if isinstance(x, torch.device)), None)
        name = func.overloadpacket.__name__
        if not device_tensors and (target is None or target.type != DEVICE.type):
            return func(*args, **kwargs)
        self._refuse(name, device_tensors, cpu_tensors)
        to_cpu = target is not None and target.type == "cpu"
        if (device_tensors and to_cpu) or name in READS or is_boolean_index(name, args):
            self.reads.append(find_caller())
        counts = args[1] if name == "repeat_interleave" and len(args) > 1 else None
        if isinstance(counts, DeviceTensor) and "output_size" not in kwargs:
            self.reads.append(find_caller())
        unwrapped = tree_map(lambda x: x.inner if isinstance(x, DeviceTensor) else replace_device(x), (args, kwargs))
        out = func(*unwrapped[0], **unwrapped[1])
        if to_cpu:
            return out.clone() if any(out is x.inner for x in device_tensors) else out
        if isinstance(out, Tensor) and any(out is x.inner for x in device_tensors):  # an op in place returns its input
            return next(x for x in device_tensors if x.inner is out)
        return tree_map(lambda x: wrap(x) if isinstance(x, Tensor) else x, out)

    def _refuse(self, name: str, device_tensors: list[DeviceTensor], cpu_tensors: list[Tensor]) -> None:
        if name in RANDOM:
            raise AssertionError(f"{name}: random numbers of the device's own, at {find_caller()}")
        if device_tensors and name not in ("copy_", "_to_copy", "to") and any(x.ndim for x in cpu_tensors):
            raise AssertionError(f"{name}: tensors on two devices, at {find_caller()}")

    def put(self, x: Any) -> Any:
        """Put the tensors of a tree, or a network's parameters and buffers, on the device; memory is shared."""
        if isinstance(x, torch.nn.Module):
            for module in x.modules():
                for tensors in (module._parameters, module._buffers):
                    tensors.update({k: self.put(v.detach()) for k, v in tensors.items() if v is not None})
            return x
        return tree_map(lambda v: wrap(v) if isinstance(v, Tensor) else v, x)


def wrap(x: Tensor) -> DeviceTensor:
    return x if isinstance(x, DeviceTensor) else DeviceTensor(x)


def is_boolean_index(name: str, args: tuple) -> bool:
    if name not in ("index", "index_put_", "index_put", "_index_put_impl_"):
        return False
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])


def replace_device(x: Any) -> Any:
    return torch.device("cpu") if isinstance(x, torch.device) else x


def unwrap(x: Any) -> Any:
    return tree_map(lambda v: v.inner if isinstance(v, DeviceTensor) else v, x)


@contextmanager
def simulate_device() -> Iterator[SimulatedDevice]:
    """Simulate the device inside the context. No tensor needs gradients, because a view of one that does cannot be
    wrapped; `torch.tensor` builds on the CPU and copies."""
    lifting = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with torch.inference_mode(), SimulatedDevice() as device:
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(lifting)


@contextmanager
def simulate_job_device() -> Iterator[SimulatedDevice]:
    """Simulate the device for jobs that load their networks themselves onto a device that is named: patches
    `Module.to`, the reading of weights and the check of devices while the context is open."""
    original_to = torch.nn.Module.to
    original_tensors = weights.tensors

    def is_simulated(device: Any) -> bool:
        return isinstance(device, str | torch.device) and torch.device(device).type == DEVICE.type

    with simulate_device() as device:

        def move_network(net: Any, *args: Any, **kwargs: Any) -> Any:
            net = original_to(net, *(x for x in args if not is_simulated(x)), **kwargs)
            return device.put(net) if any(map(is_simulated, args)) else net

        def read_tensors(path: Any, target: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
            """Read a file's tensors by name, each put on the simulated device if that is the target."""
            for name, tensor in original_tensors(path, "cpu" if is_simulated(target) else target, *args, **kwargs):
                yield name, device.put(tensor) if is_simulated(target) else tensor

        torch.nn.Module.to, weights.tensors = move_network, read_tensors
        original_check = devices.check
        devices.check = lambda device, dtype: None if is_simulated(device) else original_check(device, dtype)
        try:
            yield device
        finally:
            torch.nn.Module.to, weights.tensors = original_to, original_tensors
            devices.check = original_check
