use rule generate as sjd with:
    pathvars:
        method="sjd",
