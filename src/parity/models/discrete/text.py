"""Former names, until every import site has the new ones: parity.embedded.tokenizer and parity.models.discrete.t5."""

from parity.embedded.tokenizer import PREFIX, VOCAB, encode, token_ids, tokenizer  # noqa: F401
from parity.models.discrete.t5 import t5_encoder  # noqa: F401
