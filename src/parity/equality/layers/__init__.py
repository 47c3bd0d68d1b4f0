"""Equality layers that look at a cell: one module each, in the folder of the kind of model. Adding a layer is adding
a file.

A module declares literals, which the rules read without importing it (`parity.experiment.layers`):

    ROLES     roles of cells that it looks at: some of "reference", "control", "method", "again"
    WHEN      "always"; "coupled": cells that must return plain decoding's tokens; "drafted": methods with drafts, of
              tokens or of steps, and controls
    READS     some of "shards", "inputs", "checkpoint", "features" (of the cell), "baseline" (shards and features of the
              reference cell), "reference" (pictures that quality is compared with)
    WRITES    ("laws",) if it also writes what the target gave the cell's tokens (--laws FILE), else ()
    SETTINGS  keys of the section `equality` (and `forced`, `conditions` of `continuous`) that it reads

and has `rows(cell) -> list of rows`. The module's name with "-" for "_" is the layer's name in paths.
"""
