use rule generate as sjd_coupled with:
    pathvars:
        method="sjd_coupled",
