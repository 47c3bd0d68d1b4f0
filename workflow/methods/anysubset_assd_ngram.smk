use rule decode as anysubset_assd_ngram with:
    pathvars:
        kind="anysubset",
        method="assd_ngram",
