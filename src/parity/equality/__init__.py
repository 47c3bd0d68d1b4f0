"""Does a decoder draw from the target's law? Tests of known size and stated power, in layers (docs/equality.md)."""
