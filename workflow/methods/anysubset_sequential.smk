use rule decode as anysubset_sequential with:
    pathvars:
        kind="anysubset",
        method="sequential",
