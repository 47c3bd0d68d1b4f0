"""How deep a pass is: the functions between a decoder's pass and attention."""

import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from parity.decode import loop
from parity.experiment.options import options
from parity.inputs.prompts import encode
from parity.models import fetch

ROOT = Path(__file__).parents[2]
SAMPLING = {"guidance": 1.8, "temperature": 1.0, "top_k": 20, "top_p": 0.9}


@pytest.mark.parametrize("method", ["sjd", "mtj"])
def test_few_functions_stand_between_a_pass_and_attention(method, tmp_path, monkeypatch):
    """A window and a tree; functions of torch do not count."""
    stacks = []
    attend = F.scaled_dot_product_attention

    def note_stack(*inputs, **keywords):
        stacks.append(traceback.extract_stack()[:-1])
        return attend(*inputs, **keywords)

    manifest = fetch.make_manifest("discrete", "m", {"family": "llamagen", "grid": 8}, tmp_path)
    spec = {"method": method, "options": options("discrete", method, {"window": 4}), "sampling": SAMPLING, "seed": 0}
    rows = {"ids": np.array(["0"]), **encode(manifest, ["a red circle"])}
    start = loop.start_decoding("discrete", loop.load("discrete", manifest, spec), spec)
    _, _, steps = start(rows, loop.batch_noise(0, ["0"], "cpu", torch.float32))
    next(steps)
    monkeypatch.setattr(F, "scaled_dot_product_attention", note_stack)
    next(steps)
    names = [frame.name for frame in stacks[0]]
    frames = stacks[0][names.index("run_pass") :]
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(ROOT) and ".venv" not in frame.filename]
    print(*(f"{Path(frame.filename).relative_to(ROOT)}: {frame.name}" for frame in own), sep="\n")
    assert len(own) <= 7
    assert len({frame.filename for frame in own}) <= 4
