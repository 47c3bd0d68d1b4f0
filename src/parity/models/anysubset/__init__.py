"""Families of models that fill in text in any order.

A *family* of models is one module here that declares FAMILY, and has `build(config)`, transformers' network of a saved
configuration, `plain(net, mask)` and `cached(weights, config, mask)`, which are `AnySubsetModel`s of
`parity_decoders.protocols`:

    FAMILY = {
        "files": parts of a model: the network, and the judge that scores texts,
        "also": parts that it may have: the network's tokenizer, where it lies in a folder of its own,
        "model_types": `model_type` in config.json, by part,
    }
"""
