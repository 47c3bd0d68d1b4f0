"""One thread for every test: jobs run side by side, and results must not depend on it."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
