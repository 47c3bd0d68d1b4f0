"""Does a decoder draw from the target's law? Tests of known size and stated power, in layers, and a verdict (docs/equality.md).

from parity.equality import certify
print(certify(my_decoder, n=100_000, window=4))
"""

from parity.equality.certificate import Certificate, certify

__all__ = ["Certificate", "certify"]
