use rule decode as continuous_mar with:
    pathvars:
        kind="continuous",
        method="mar",
