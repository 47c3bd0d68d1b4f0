use rule generate as zipar with:
    pathvars:
        method="zipar",
