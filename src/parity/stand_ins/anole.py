"""Anole's layout in transformers: one folder, the image tokenizer with its decoder in it; no line tokens."""

from pathlib import Path
from typing import Any

from parity.stand_ins import words as shared
from parity.stand_ins.chameleon import CODES, SIDE, decoder, network
from parity.stand_ins.words import save


def write(folder: Path, codes: int = CODES, side: int = SIDE) -> dict[str, Path]:
    """`model` is the folder."""
    net = network(folder / "Anole-7b-v0.1-hf", "ChameleonForConditionalGeneration", codes, side)
    image = {f"model.vqmodel.{name}": tensor for name, tensor in decoder(net).items()}
    save(net, folder / "Anole-7b-v0.1-hf", net.state_dict() | image)
    return {"model": Path("Anole-7b-v0.1-hf")}


def entry(folder: Path) -> dict[str, Any]:
    """The stand-in, written, as an experiment's model."""
    return shared.entry(folder, write(folder), "chameleon")
