"""Any-subset text models: what is decoded (`xlnet`, `causal`, `tabular`), how (`decoders`), and the tasks it is measured on.

Letters as in the paper (Guo & Ermon 2025): N positions, m of them the prompt, sigma the order of decoding, here `order`. A *rank* is a
place in that order: position order[i] has rank i.
"""
