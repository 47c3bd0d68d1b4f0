use rule generate as vvs with:
    pathvars:
        method="vvs",
