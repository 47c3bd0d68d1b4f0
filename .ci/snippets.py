"""Run the Python snippets of pages as printed.

    python .ci/snippets.py PAGE...

The snippets of a page are one program. Those that import `parity` are left out where it is not installed.
"""

import importlib.util
import re
import sys
from pathlib import Path


def main(pages: list[str]) -> None:
    """Run the Python blocks of each page in order; an error of a block ends the program with its traceback."""
    for page in pages:
        blocks = re.findall(r"^```python\n(.*?)^```", Path(page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        if importlib.util.find_spec("parity") is None:
            blocks = [text for text in blocks if "import parity\n" not in text]
        names = {"__name__": "__main__"}
        for text in blocks:
            exec(compile(text, page, "exec"), names)
        print(f"{page}: {len(blocks)} snippets ran")
        if not blocks:
            sys.exit(f"{page}: no snippet")


if __name__ == "__main__":
    main(sys.argv[1:])
