"""The published any-subset model: a folder of XLNetLMHeadModel, and its tokenizer's folder, xlnet/xlnet-base-cased's:
unigram pieces with XLNet's own marks (tokenizer.json)."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from parity.embedded import stories
from parity.models.anysubset.xlnet import xlnet
from parity.stand_ins import pieces
from parity.stand_ins.tensors import drawn

MARKS = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")  # XLNet's first nine
SPACE = "▁"


def tokenizer() -> Tokenizer:
    """Pieces of one letter, and the commonest words."""
    text = [stories.text(i) for i in range(20)]
    letters = sorted({letter for told in text for word in told for letter in word} | {chr(c) for c in range(33, 127)})
    whole = sorted({w for told in text for w in told if w.isalpha()})[:150]
    scored = [(mark, 0.0) for mark in MARKS] + [(SPACE, -3.0)]
    scored += [(letter, -8.0) for letter in letters] + [(SPACE + word, -5.0) for word in whole]
    made = Tokenizer(models.Unigram(scored, unk_id=0))
    made.normalizer = normalizers.Replace("\n", " ")  # XLNet's knows no line ends
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    made.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    made.add_special_tokens(list(MARKS))
    return made


def write(folder: Path) -> dict[str, str]:
    made = tokenizer()
    said = {mark.strip("</>") + "_token": mark for mark in ("<unk>", "<cls>", "<sep>", "<pad>", "<mask>")}
    config = {"tokenizer_class": "XLNetTokenizer", "bos_token": "<s>", "eos_token": "</s>", **said}
    pieces.save(made, folder / "xlnet-base-cased", config)
    net = xlnet(made.get_vocab_size(), 32, 2, 2)
    net.load_state_dict(drawn(net, 8, 0.2))
    net.save_pretrained(folder / "ASARM")
    return {"xlnet": "ASARM", "tokenizer": "xlnet-base-cased"}
