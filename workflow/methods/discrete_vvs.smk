use rule decode as discrete_vvs with:
    pathvars:
        kind="discrete",
        method="vvs",
