"""Equations are compared in double precision, on one thread: their tensors are tiny."""

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def double_precision_on_one_thread():
    dtype, num_threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(num_threads)
