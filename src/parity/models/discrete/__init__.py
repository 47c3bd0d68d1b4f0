"""Families of models of image tokens.

A *family* of models is one module here. It declares FAMILY, a literal that the configuration's checks read without
importing the module, and functions that turn its manifest (`parity.models.fetch`) into a token model:

    FAMILY = {
        "files": parts that a published model must have; "also": those that it may have,
        "trained": speculators that `parity train` makes for it,
        "stand_in_drafter": the stand-in of its drafter, unless it is "eagle_drafter",
        "embedded": files of the embedded model by part, {} if there is none,
        "network": sizes that are known before the files are: vocab, the number of codes, and grid, tokens a side, or
            rows and columns of codes, line and end, tokens that the grammar forces after a row and after the last,
        "sizes": those that a configuration may give, with their defaults; "divides", "at_most", "multiples" of them,
        "model_types": `model_type` in config.json, of a family whose files are transformers' folders,
        "sampling": the sampling settings of its authors, for `parity models add`,
        "papers": names of published models in papers' tables, with their sizes that are no default,
    }
    TENSORS = tensors by which a part's published file is known   these three are read before any job, if declared
    SHAPES = {part: {size: (tensor, axis, what is added)}}        see base.headers.derive_sizes
    CONFIG = {size: (section, key)}                               of config.json
    shape(manifest) -> tokens in a row of an image, pixels of its longer side    known before anything is loaded
    load(manifest, part, device, dtype) -> network                   part: "net", "vq", "drafter", "draft", "heads"
    condition(nets, inputs, guided, run) -> Conditioned              of a batch of encoded prompts
    images(nets, tokens [n, L]) -> [n, 3, H, W] in [-1, 1]
    groups(nets) -> bool [G, V]                                      tokens that look alike
    encoder(manifest, device)(captions) -> inputs                    what `condition` reads of a batch
    to_pixels(images) -> uint8 [n, H, W, 3]                        if it rounds in its own way
    embed_prompts(net, inputs, guided) -> Prompts                  if speculators can be trained for it,
    make_speculator(part, config of the net) -> network            and this
    read_sizes(folder, pixels) -> sizes                            for `parity models add`, of a folder of transformers;
    read_sizes(shapes, grid), stride(shapes) -> pixels a token     of tensors in a layout of its own
    read_published(part, path, spec) -> (tensors, sizes) or None   of drafters released under other names

Its stand-in, a small random checkpoint for tests and trials, is a file of `parity.stand_ins`.
"""
