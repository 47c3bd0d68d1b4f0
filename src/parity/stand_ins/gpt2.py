"""A GPT-2 judge: a folder of GPT2LMHeadModel with its byte-level tokenizer, which knows one mark."""

import json
from pathlib import Path

from parity.embedded import stories
from parity.models.anysubset import causal
from parity.stand_ins import pieces
from parity.stand_ins.tensors import drawn

END = "<|endoftext|>"


def write(folder: Path) -> dict[str, str]:
    made = pieces.byte_pairs([" ".join(stories.text(i)) for i in range(20)], (END,), 320)
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": END, "eos_token": END, "unk_token": END}
    pieces.save(made, folder / "gpt2-large", config)
    model = json.loads(made.to_str())["model"]
    (folder / "gpt2-large/vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), encoding="utf-8")
    merges = "".join(" ".join(pair) + "\n" for pair in model["merges"])
    (folder / "gpt2-large/merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    vocab = made.get_vocab_size()
    sizes = {"vocab_size": vocab, "n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 2}
    net = causal.build(sizes | {"bos_token_id": vocab - 1, "eos_token_id": vocab - 1})
    net.load_state_dict(drawn(net, 9, 0.2))
    net.save_pretrained(folder / "gpt2-large")
    return {"judge": "gpt2-large"}
