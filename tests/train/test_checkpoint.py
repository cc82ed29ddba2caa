"""Checkpoints that are whole or not there."""

import errno
import os
import resource
from pathlib import Path

import pytest
import torch
from train_samples import config, digest, sample_panel

from mqcast.durable import write_file
from mqcast.errors import ArtifactError
from mqcast.train.checkpoint import Checkpoints
from mqcast.train.loop import fit

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.EventReachWarning")
TENSORS = {"model.w": torch.arange(6.0).view(2, 3), "optimiser.step.w": torch.tensor(3.0)}


def saved(folder: Path, *steps: int) -> Checkpoints:
    found = Checkpoints(folder)
    for step in steps:
        found.save(f"00000-{step:09}", TENSORS | {"at": torch.tensor([step])}, {"step": step})
    return found


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path):
    found = saved(tmp_path / "checkpoints", 7).newest()
    assert found is not None
    assert found.state == {"step": 7}
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in TENSORS.items())


def test_the_newest_comes_first_and_only_two_are_kept(tmp_path):
    found = saved(tmp_path, 1, 2, 9, 10).newest()
    assert found is not None
    assert found.state["step"] == 10
    assert {path.stem for path in tmp_path.iterdir()} == {"00000-000000009", "00000-000000010"}
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    "damage", ["tensors cut", "tensors gone", "tensors changed", "vouch cut", "vouch empty", "vouch of another kind"]
)
def test_a_torn_checkpoint_is_skipped_with_a_message(tmp_path, damage):
    checkpoints, messages = saved(tmp_path, 4, 5), []
    tensors, vouch = tmp_path / "00000-000000005.safetensors", tmp_path / "00000-000000005.json"
    content = tensors.read_bytes()
    if damage == "tensors cut":
        tensors.write_bytes(content[:-5])
    elif damage == "tensors gone":
        tensors.unlink()
    elif damage == "tensors changed":
        tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "vouch cut":
        vouch.write_text(vouch.read_text()[:-20])
    else:
        vouch.write_text("" if damage == "vouch empty" else "[1, 2]")
    found = checkpoints.newest(messages.append)
    assert found is not None
    assert found.state["step"] == 4
    assert len(messages) == 1
    assert "00000-000000005.json is damaged" in messages[0]
    assert "looking for an older one" in messages[0]


def test_what_an_interrupted_save_left_is_not_a_checkpoint_and_goes_with_the_next(tmp_path):
    checkpoints = saved(tmp_path, 4)
    (tmp_path / ".00000-000000005.safetensors.77.part").write_bytes(b"half")
    (tmp_path / "00000-000000005.safetensors").write_bytes(b"no one vouches for it")
    messages = []
    found = checkpoints.newest(messages.append)
    assert found is not None
    assert found.state["step"] == 4
    assert not messages
    saved(tmp_path, 6)
    assert {path.stem for path in tmp_path.iterdir()} == {"00000-000000004", "00000-000000006"}


def test_no_checkpoint_is_no_error(tmp_path):
    assert Checkpoints(tmp_path / "nowhere").newest() is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_a_clear_error(tmp_path):
    checkpoints = saved(tmp_path, 1)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ArtifactError, match="Permission denied; free space or give write permission"):
            checkpoints.save("00000-000000002", TENSORS, {})
    finally:
        tmp_path.chmod(0o700)
    assert checkpoints.newest().state["step"] == 1


@pytest.mark.parametrize("trouble", ["disk full", "read-only"])
def test_a_disk_that_takes_no_more_stops_training_and_leaves_the_last_checkpoint(tmp_path, monkeypatch, trouble):
    """The folder fills up, or turns read-only, after the third save; when that is over, training goes on."""
    settings, count = config(checkpoint_minutes=0.0), 0
    fsync, opened = os.fsync, Path.open

    def full(handle):
        nonlocal count
        count += 1
        if count > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    def read_only(self, mode="r", *args, **kwargs):
        nonlocal count
        if "w" in mode and ".part" in self.name:
            count += 1
            if count > 7:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(self, mode, *args, **kwargs)

    if trouble == "disk full":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "open", read_only)
    words = "No space left on device" if trouble == "disk full" else "Read-only file system"
    with pytest.raises(ArtifactError, match=f"cannot write .*{words}; .*What was saved before is intact"):
        fit(sample_panel(), settings, tmp_path / "run")
    monkeypatch.undo()
    assert not list((tmp_path / "run" / "checkpoints").glob(".*.part"))
    assert Checkpoints(tmp_path / "run" / "checkpoints").newest() is not None
    resumed = fit(sample_panel(), settings, tmp_path / "run", resume=True)
    assert digest(resumed) == digest(fit(sample_panel(), settings, tmp_path / "whole"))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    """With a real limit on the size of files: the write fails half-way."""
    path = tmp_path / "file"
    write_file(path, "before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ArtifactError, match="File too large"):
            write_file(path, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
