use rule decode as discrete_mtj with:
    pathvars:
        kind="discrete",
        method="mtj",
