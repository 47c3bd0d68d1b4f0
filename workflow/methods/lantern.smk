use rule generate as lantern with:
    pathvars:
        method="lantern",
