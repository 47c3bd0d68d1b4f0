use rule decode as anysubset_gpt2 with:
    pathvars:
        kind="anysubset",
        method="gpt2",
