"""Write the JSON schema of config.yaml: python -m parity.schema workflow/schemas/config.schema.json"""

import sys
from pathlib import Path

from parity.base.files import write_json
from parity.experiment.config import schema

if __name__ == "__main__":
    write_json(Path(sys.argv[1]), schema())
