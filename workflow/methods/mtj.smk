use rule generate as mtj with:
    pathvars:
        method="mtj",
