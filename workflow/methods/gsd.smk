use rule generate as gsd with:
    pathvars:
        method="gsd",
