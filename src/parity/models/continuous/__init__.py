"""Families of models of vectors.

A *family* of models is one module here that declares FAMILY, a literal that the configuration's checks read without
importing it, and has `Config`, a dataclass of sizes, `Network(config)`, and `Model(net, given, sampling)`, which is a
`ContinuousModel`:

    FAMILY = {
        "condition": "class" or "caption": what images are conditioned on; `given` is [B] classes, or [B, P] token ids
            with padding below 0,
        "causal": whether a rank has no distribution before the one before it is known: raster order, one at a time,
        "single_path": whether its distributions are walks (`diffusion.Steps`) whose likelihood ratio along one path is
            known,
        "samplers": samplers of its head that it has, "schedules": schedules of guidance; () for no guidance,
        "reads": sampling settings that its distribution depends on: another one makes no other cell,
        "released": sizes of its published networks, if there are any: `grid`, and `cell`,
        "sampled": sampling settings of its published networks by width, as their authors sample them,
        "tensors": by which its published files are known,
    }

The header's `grid` is tokens a side; where it has `cell`, a rank is a cell of this many tokens a side. A family with
released checkpoints says what `parity.models convert` must know with `read_config(state) -> Config`.
"""
