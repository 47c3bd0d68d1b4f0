use rule decode as continuous_coupled with:
    pathvars:
        kind="continuous",
        method="coupled",
