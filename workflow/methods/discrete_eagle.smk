use rule decode as discrete_eagle with:
    pathvars:
        kind="discrete",
        method="eagle",
