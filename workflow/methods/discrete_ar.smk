use rule decode as discrete_ar with:
    pathvars:
        kind="discrete",
        method="ar",
