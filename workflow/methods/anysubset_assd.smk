use rule decode as anysubset_assd with:
    pathvars:
        kind="anysubset",
        method="assd",
