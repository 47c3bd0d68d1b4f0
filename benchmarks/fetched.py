"""Print what the environment of this folder downloaded: packages, and the sizes of their files by uv's lock.

python benchmarks/fetched.py
"""

import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Print the number of installed packages, the size of their files in uv's lock, and the five largest."""
    tags = {tag: rank for rank, tag in enumerate(sys_tags())}
    installed = {canonicalize_name(d.name): d.version for d in distributions()}
    sizes: dict[str, int] = {}
    for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        if installed.get(package["name"]) != package.get("version") or "registry" not in package["source"]:
            continue
        wheels = [(w, parse_wheel_filename(Path(w["url"]).name)[3]) for w in package.get("wheels", [])]
        fits = [(min(tags[t] for t in supported if t in tags), w) for w, supported in wheels if supported & tags.keys()]
        file = min(fits, key=lambda f: f[0])[1] if fits else package["sdist"]
        sizes[package["name"]] = file["size"]
    largest = ", ".join(f"{name} {sizes[name] / 1e6:.0f} MB" for name in sorted(sizes, key=lambda n: -sizes[n])[:5])
    print(f"{len(sizes)} packages, {sum(sizes.values()) / 1e9:.2f} GB; the largest: {largest}")


if __name__ == "__main__":
    main()
