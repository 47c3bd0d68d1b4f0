"""Tiny random checkpoints in the layouts of published ones: `write(folder)` of each module makes one, and returns its
parts by path relative to the folder. They stand where nobody has the files: in tests, and in trials of experiments."""
