"""An image of the first screen of a page, for the README; needs Chromium.

python benchmarks/page_picture.py results/default/report.html [--out docs/page.png] [--width 1200] [--height 1000]
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"]
QUIET += ["--disable-background-networking", "--disable-component-update", "--disable-quic"]


def main() -> None:
    """Save the first screen of a page in headless Chromium as a PNG of 128 colours; exit if either is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/page.png"))
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=1000)
    a = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser or not a.page.exists():
        raise SystemExit(f"error: {'no Chromium on PATH' if not browser else f'{a.page}: no such file'}")
    with tempfile.TemporaryDirectory() as folder:
        screenshot = Path(folder) / "page.png"
        size = f"--window-size={a.width},{a.height}"
        files = [f"--user-data-dir={folder}/profile", f"--screenshot={screenshot}", a.page.resolve().as_uri()]
        subprocess.run([browser, *QUIET, size, *files], check=True, capture_output=True)
        Image.open(screenshot).convert("RGB").quantize(128).save(a.out, optimize=True)
    print(f"{a.out}: {a.out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
