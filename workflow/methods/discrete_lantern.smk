use rule decode as discrete_lantern with:
    pathvars:
        kind="discrete",
        method="lantern",
