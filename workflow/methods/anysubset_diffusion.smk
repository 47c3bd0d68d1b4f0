use rule decode as anysubset_diffusion with:
    pathvars:
        kind="anysubset",
        method="diffusion",
