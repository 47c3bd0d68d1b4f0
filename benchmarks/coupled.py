"""Do the coupled decoders return the very tokens of plain sampling under the same noise, on every prompt?

    python benchmarks/coupled.py [--images 64] [--dtype float64] 'jacobi: {coupling: shared}' 'mtj' ...

The report's pathwise layer asks the same of a few images of each run. A method that falls short names its first
difference.
"""

from common import asked, captioned, cell, decoded, guided

DEFAULT = [
    "jacobi: {window: 16, coupling: shared}",
    "sjd_coupled: {window: 32}",
    "mtj: {window: 24, branches: 24}",
    "eagle: {total: 10, depth: 3, top_k: 3}",
    "eagle: {total: 10, depth: 3, top_k: 3, rank: race}",
    "lantern: {total: 10, depth: 3, top_k: 3, delta: 0.0}",
    "vvs: {total: 10, depth: 3, top_k: 3, delta: 0.0, schedule: 'off'}",
]


def main() -> None:
    kinds = ("float64", "float32", "bfloat16")
    a = asked(__doc__, DEFAULT, images=64, batch=32, seed=2, dtype=kinds, guidance=1.8)
    manifest, rows = captioned(a.images)

    def tokens(variant):
        spec = cell("discrete", variant, a.seed, sampling=guided(a.guidance)) | {"dtype": a.dtype}
        return decoded("discrete", manifest, spec, rows, a.batch).tokens

    plain = tokens("")
    for variant in a.variants:
        differs = (tokens(variant) != plain).any(1)
        first = f"; differs first on: {rows['captions'][int(differs.argmax())]}" if differs.any() else ""
        print(f"{variant:70s} {(~differs).sum()} of {len(differs)} prompts equal, {a.dtype}{first}", flush=True)


if __name__ == "__main__":
    main()
