use rule generate as spec with:
    pathvars:
        method="spec",
