use rule generate as jacobi with:
    pathvars:
        method="jacobi",
