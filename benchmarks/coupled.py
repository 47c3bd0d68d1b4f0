"""Do the coupled decoders return the very tokens of plain sampling under the same noise, on every prompt?

    python benchmarks/coupled.py [--images 64] [--dtype float64] 'jacobi: {coupling: shared}' 'mtj' ...

The report's pathwise layer tests the same on a few images of each run. For a method that differs, the first prompt
with other tokens is printed.
"""

from common import decode_rows, encode_captions, make_sampling, make_spec, parse_flags

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
    """Decode plainly and by each variant under the same noise, and print on how many captions all tokens agree."""
    dtypes = ("float64", "float32", "bfloat16")
    a = parse_flags(__doc__, DEFAULT, images=64, batch=32, seed=2, dtype=dtypes, guidance=1.8)
    manifest, rows = encode_captions(a.images)

    def decode(variant):
        """Decode all captions by a variant; return tokens [images, L]."""
        spec = make_spec("discrete", variant, a.seed, sampling=make_sampling(a.guidance)) | {"dtype": a.dtype}
        return decode_rows("discrete", manifest, spec, rows, a.batch).tokens

    plain = decode("")
    for variant in a.variants:
        differs = (decode(variant) != plain).any(1)
        first = f"; differs first on: {rows['captions'][int(differs.argmax())]}" if differs.any() else ""
        print(f"{variant:70s} {(~differs).sum()} of {len(differs)} prompts equal, {a.dtype}{first}", flush=True)


if __name__ == "__main__":
    main()
