"""Load the commands of benchmarks/, which is no package, as modules."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load_script(name):
    """Load the file `name` of benchmarks/ as a module."""
    file = ROOT / "benchmarks" / name
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module
