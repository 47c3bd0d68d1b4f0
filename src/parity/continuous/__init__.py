"""The continuous family: MAR, xAR, Harmon and Gaussian-mixture models, and continuous speculative decoding over them.

Its tokens are vectors, so it has a protocol (`protocol.py`), decoders and an equality layer of its own; noise, commands and report parts are
shared with the rest of the package.
"""
