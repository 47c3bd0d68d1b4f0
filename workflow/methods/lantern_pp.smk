use rule generate as lantern_pp with:
    pathvars:
        method="lantern_pp",
