"""Does a decoder draw from the target's distribution? Tests of known size and stated power
(docs/explanation/lossless.md)."""
