use rule decode as discrete_jacobi with:
    pathvars:
        kind="discrete",
        method="jacobi",
