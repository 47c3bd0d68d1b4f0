use rule generate as sjd_pac with:
    pathvars:
        method="sjd_pac",
