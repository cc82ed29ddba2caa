"""What other systems lack or refuse, simulated: Windows' files and signals, macOS' missing calls."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from mqcast import Forecaster, Panel, Schema, durable, launch, pack
from mqcast.artifact import open_to_append
from mqcast.durable import claimed, write_file
from mqcast.errors import ArtifactError


@pytest.fixture
def weekly() -> pl.DataFrame:
    weeks = pl.datetime_range(pl.datetime(2022, 1, 2), pl.datetime(2022, 9, 25), "1w", eager=True)
    return pl.DataFrame({"unique_id": ["a"] * len(weeks), "ds": weeks, "y": [float(i % 7) for i in range(len(weeks))]})


@pytest.fixture
def windows(monkeypatch) -> None:
    """No locks, no handles of folders, no fsync of what is open for reading, and fewer flags, signals and calls."""
    opened, synced, writable = os.open, os.fsync, set()

    def open_file(path, flags, *mode, **options):
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied")
        handle = opened(path, flags, *mode, **options)
        (writable.add if flags & (os.O_RDWR | os.O_WRONLY) else writable.discard)(handle)
        return handle

    def fsync(handle):
        if handle not in writable:
            raise OSError(errno.EBADF, "Bad file descriptor")
        synced(handle)

    monkeypatch.setattr(durable, "fcntl", None)
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("posix_fallocate", "sched_getaffinity", "setsid", "O_NOFOLLOW", "O_NONBLOCK"):
        monkeypatch.delattr(os, name, raising=False)
    for name in ("SIGTSTP", "SIGSTOP", "SIGCONT"):
        monkeypatch.delattr(signal, name, raising=False)


@pytest.mark.usefixtures("windows")
def test_panels_and_forecasters_are_written_and_read_where_folders_cannot_be_opened(weekly, tmp_path):
    schema = Schema(freq="W")
    for _ in range(2):  # the second takes the place of the first
        panel = pack(weekly, tmp_path / "panel", schema)
    assert panel.fingerprint == Panel.from_frame(weekly, schema).fingerprint
    Panel.open(tmp_path / "panel").verify()
    made = Forecaster("seasonal-naive", 4).fit(weekly)
    made.save(tmp_path / "saved")
    assert Forecaster.load(tmp_path / "saved").predict().equals(made.predict())
    assert {path.name for path in tmp_path.iterdir()} == {"panel", "saved"}


@pytest.mark.usefixtures("windows")
def test_a_network_is_trained_and_resumed_where_folders_cannot_be_opened(weekly, tmp_path):
    settings = {"window": {"history": 8, "num_fcts": 6}, "model": {"hidden_dim": 8}}
    made = Forecaster("mqcnn", 2, config=settings, max_steps=2, verbose=False, folder=tmp_path / "run").fit(weekly)
    again = Forecaster("mqcnn", 2, config=settings, max_steps=2, verbose=False, folder=tmp_path / "run")
    assert again.fit(weekly, resume=True).predict().equals(made.predict())


@pytest.mark.usefixtures("windows")
def test_without_locks_the_last_writer_wins_and_no_draft_is_left(tmp_path):
    path = tmp_path / "a" / "file"
    with claimed(path, make_parents=True) as draft:
        draft.write_text("first")
        write_file(path, "second")
        durable.put_in_place(draft, path)
    assert path.read_text() == "first"
    assert [one.name for one in path.parent.iterdir()] == ["file"]
    with pytest.raises(ZeroDivisionError), claimed(tmp_path / "b" / "file", make_parents=True) as draft:
        draft.write_text(f"half {1 / 0}")
    assert not (tmp_path / "b").exists()
    with pytest.raises(ArtifactError, match="cannot write"), claimed(path / "inside", make_parents=True):
        pass
    with open_to_append(path) as file:
        file.write(b" and more")
    assert path.read_text() == "first and more"


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize(("num_refusals", "is_written"), [(3, True), (100, False)])
def test_a_file_that_is_being_read_is_replaced_once_its_reader_is_done(tmp_path, monkeypatch, num_refusals, is_written):
    replace, refusals = Path.replace, iter(range(num_refusals))

    def busy(self, target):
        if next(refusals, None) is not None:
            raise PermissionError(errno.EACCES, "Access is denied")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", busy)
    monkeypatch.setattr(durable.time, "sleep", lambda seconds: None)
    if is_written:
        write_file(tmp_path / "file", "text")
        assert (tmp_path / "file").read_text() == "text"
    else:
        with pytest.raises(ArtifactError, match="Access is denied"):
            write_file(tmp_path / "file", "text")
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("refusal", [errno.EACCES, errno.EINVAL, errno.EIO])
def test_a_folder_that_cannot_be_synced_is_no_failure_but_a_broken_disk_is(tmp_path, monkeypatch, refusal):
    def fsync(handle):
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "fsync", fsync)
    if refusal == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(refusal)):
            durable.fsync(tmp_path)
    else:
        durable.fsync(tmp_path)


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.ENOSPC])
def test_a_file_system_that_reserves_no_blocks_is_no_failure_but_a_full_one_is(weekly, tmp_path, monkeypatch, refusal):
    def fallocate(handle, offset, length):
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "posix_fallocate", fallocate, raising=False)
    if refusal == errno.ENOSPC:
        with pytest.raises(ArtifactError, match="No space"):
            pack(weekly, tmp_path / "panel")
    else:
        assert pack(weekly, tmp_path / "panel").num_series == 1


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("reason", [TypeError("a path, not None"), AttributeError("mallopt"), OSError("no library")])
def test_without_glibc_memory_is_left_to_the_system(monkeypatch, reason):
    def load(name):
        raise reason

    monkeypatch.setattr(ctypes, "CDLL", load)
    launch.keep_pages()
    assert launch.num_cores() == (os.cpu_count() or 1)


@pytest.mark.usefixtures("windows")
def test_processes_are_started_and_waited_for_without_sessions_and_job_control(capfd):
    before = signal.getsignal(signal.SIGINT)
    assert launch.run_processes(2, "this", ["-c"], pytest.fail) == 0
    assert "Namespaces are one honking great idea" in capfd.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before


def test_no_module_needs_what_only_unix_has():
    """fcntl, resource, pwd and the like are imported nowhere without an alternative."""
    code = (
        "import sys, importlib, pkgutil\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios'): sys.modules[name] = None\n"
        "import mqcast\n"
        "for module in pkgutil.walk_packages(mqcast.__path__, 'mqcast.'):\n"
        "    if not module.name.endswith(('__main__', 'libkernels')): importlib.import_module(module.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
