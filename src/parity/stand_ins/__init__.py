"""Stand-ins: tiny random checkpoints in the layouts of published ones, for whoever has neither a network nor room.

A module is a layout, and has `write(folder) -> {part: path}`: seeded weights of some hundred KB, in one folder, under
the published names, and the parts as a configuration's `files` would name them, relative to the folder. What such a
model draws means nothing; that it goes the way of the real one is what it is for.
"""
