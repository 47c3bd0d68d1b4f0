"""Stand-ins: tiny random checkpoints in the published formats, for `--config stand_in=true` and for tests.

A module a network, with `write(folder) -> {part: path}`: exactly the file names, keys, nesting and types of the
released files, small sizes, weights from a fixed seed; the paths are relative to the folder. One that an experiment
names as a model has `entry(folder)`, too: what the configuration says of it once written. Nothing in them was trained.
"""
