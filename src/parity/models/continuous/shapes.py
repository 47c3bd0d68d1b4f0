"""What the shapes of a released file's tensors say of its network: MAR's trunk, which xAR and Harmon share."""

from collections.abc import Mapping

from torch import Tensor

from parity.base.errors import ParityError

HEADS = {1280: 16}  # by width, where a head is not 64 wide: the huge networks


def numbered(state: Mapping[str, Tensor], prefix: str) -> int:
    """How many blocks have names that begin with `prefix` and a number."""
    return len({k.removeprefix(prefix).split(".")[0] for k in state if k.startswith(prefix)})


def under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries of a network that is part of another, by their own names."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def trunk(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Width, heads, numbers a token and blocks each way; KeyError for an entry that is not there, ParityError for a
    width that no head divides."""
    width, dim = state["z_proj.weight"].shape
    if width not in HEADS and (width % 64 or not width):
        raise ParityError(f"width {width}: allowed: a multiple of 64, as of all released sizes")
    blocks = {part: numbered(state, f"{part}_blocks.") for part in ("encoder", "decoder")}
    return {"width": width, "heads": HEADS.get(width, width // 64), "dim": dim, **blocks}
