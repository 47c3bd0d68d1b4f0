"""How a text is filled in: what `parity.decoders` says, with

model  a `parity.models.anysubset.protocol.AnySubsetModel`
start  `Infilling`: known tokens, the order of decoding, and where each row begins and ends
yields `Fill`, one for each loop

A draw of rank r in a loop that began at rank n has the index n N + r, so none is used twice. A module may also declare

SLOTS    True if whether a loop reaches a rank is decided by the ranks before it alone, so that tests may look at each
         slot of a loop by itself
PROMPT   "prefix" if its prompt must be one; else the known tokens may stand anywhere
NETWORK  "judge" if it decodes the judge, a causal network, instead of the any-subset one
"""
