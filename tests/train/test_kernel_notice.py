"""Training says so where PyTorch has to do what compiled kernels would have done."""

import shutil

import pytest
from train_samples import config, sample_panel

from mqcast.nn import kernels, library
from mqcast.train.loop import fit
from mqcast.train.records import Message

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.EventReachWarning")


@pytest.mark.skipif(kernels.status() != "compiled", reason=kernels.status())
def test_a_fit_without_kernels_says_why_and_writes_it_down(tmp_path, monkeypatch):
    for file in (library.SOURCE, library.LIBRARY, library.MANIFEST):
        shutil.copy(library.FOLDER / file, tmp_path)
    with (tmp_path / library.LIBRARY).open("r+b") as file:
        file.truncate(9000)
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    kernels._kernels.cache_clear()
    try:
        settings, told = config(max_steps=1), []
        settings = settings.replace(model=settings.model.replace(hidden_dim=16, head_dim=8, context_dim=8))
        run = fit(sample_panel(), settings, tmp_path / "run", listeners=(told.append,))
    finally:
        kernels._kernels.cache_clear()
    why = "plain PyTorch: libkernels.so is damaged: its checksum is wrong; reinstall mqcast"
    assert run.facts["decoder"] == why
    assert any(f"not compiled ({why})" in m.text for m in told if isinstance(m, Message))
