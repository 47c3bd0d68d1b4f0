"""One thread for every test: results must not depend on it."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
