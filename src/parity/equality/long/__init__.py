"""The long layer: a decoder at its own options, on models whose law is known though their joint cannot be listed.

A module of this folder says of its kind

    targets(options, size, which="")  its targets, long enough for the options; `size` tokens are drawn on each.
                                      `which` is the decoder's TARGETS (see `parity.experiment.options`)

and its targets are like those of the exact layer (`parity.equality.targets.Target`); how many
sequences are drawn is theirs. The harness is the exact layer's (`parity.equality.exact`); all tests are one family.
"""
