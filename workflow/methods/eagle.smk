use rule generate as eagle with:
    pathvars:
        method="eagle",
