use rule decode as anysubset_sigma_gpt with:
    pathvars:
        kind="anysubset",
        method="sigma_gpt",
