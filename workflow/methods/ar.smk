use rule generate as ar with:
    pathvars:
        method="ar",
