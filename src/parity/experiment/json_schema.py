"""Write the JSON schema of config.yaml: python -m parity.experiment.json_schema workflow/schemas/config.schema.json"""

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

from parity.base.files import write_json
from parity.experiment.declared import source
from parity.experiment.options import KINDS, methods, option_schema, plain_method
from parity.experiment.schema import Config


def schema() -> dict[str, Any]:
    """JSON schema of config.yaml, each method's options included; a test says that the file is this."""
    top = Config.model_json_schema()
    for kind, section in KINDS.items():
        variants = {}
        for method in methods(kind):
            variant = option_schema(kind, method).model_json_schema()
            variant["description"] = inspect.cleandoc(ast.get_docstring(source(f"decoders/{kind}", method)) or "")
            variants[method] = {"type": "array", "items": variant, "minItems": 1}
        top["$defs"][f"{section.capitalize()}Section"]["properties"]["methods"] = {
            "type": "object", "properties": variants, "additionalProperties": False, "required": [plain_method(kind)],
        }  # fmt: skip
    top["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return top


if __name__ == "__main__":
    write_json(Path(sys.argv[1]), schema())
