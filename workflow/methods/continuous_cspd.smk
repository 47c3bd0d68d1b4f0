use rule decode as continuous_cspd with:
    pathvars:
        kind="continuous",
        method="cspd",
