"""Write the JSON schema of config.yaml, for editors; with --check only say whether the file is up to date.

    python -m parity.experiment.json_schema [--check] workflow/schemas/config.schema.json

Nothing that runs reads the file: a new decoder works before it is written. The pre-commit hook writes it, CI checks it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from parity.base.command import one_line
from parity.base.errors import ParityError
from parity.base.files import write_json
from parity.experiment.module_metadata import outline
from parity.experiment.options import KINDS, methods, option_schema, plain_method
from parity.experiment.schema import Config
from parity.experiment.tuned import AUTO


def schema() -> dict[str, Any]:
    """JSON schema of config.yaml, each method's options included."""
    top = Config.model_json_schema()
    for kind, section in KINDS.items():
        variants = {}
        for method in methods(kind):
            variant = option_schema(kind, method).model_json_schema()
            variant["description"] = outline(f"decoders/{kind}", method).doc
            variants[method] = {"type": "array", "items": variant, "minItems": 1}
        variants[AUTO] = {"const": [{}], "description": "the fastest lossless method, as `parity tune` found it"}
        top["$defs"][f"{section.capitalize()}Section"]["properties"]["methods"] = {
            "type": "object", "properties": variants, "additionalProperties": False, "required": [plain_method(kind)],
        }  # fmt: skip
    top["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return top


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("file", type=Path)
    a = parser.parse_args()
    if not a.check:
        write_json(a.file, schema())
    elif not a.file.exists() or json.loads(a.file.read_text(encoding="utf-8")) != schema():
        raise ParityError(f"{a.file}: out of date; run `python -m parity.experiment.json_schema {a.file}`")


if __name__ == "__main__":
    one_line(main)
