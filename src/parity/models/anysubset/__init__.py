"""Families of models that fill in text in any order.

A *family* of models is one module here that declares FAMILY, and has `build(config)`, transformers' network of a saved
configuration, `plain(net, mask)` and `cached(weights, config, mask)`, which are `AnySubsetModel`s of
`parity_decoders.protocols`; or `wrap(net, words, cache)`, one of both in place of these:

    FAMILY = {
        "files": parts of a model: the network first, and the judge that scores texts,
        "also": parts that it may have: the network's tokenizer, where it lies in a folder of its own,
        "model_types": `model_type` in config.json, by part,
        "methods": the decoders that it runs, if not all: no others make cells of it,
        "prompt": "prefix" if it reads from left to right alone: known tokens after hidden ones are dropped,
        "cache": False if it keeps no keys and values, whatever `text.cache` says,
        "stand_in": the stand-in that is written for it, if not that of the family's name,
    }
"""
