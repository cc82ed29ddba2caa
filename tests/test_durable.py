"""One writer at a time, whole files, and nothing left behind."""

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from mqcast import ArtifactError, Forecaster
from mqcast.durable import claimed, put_in_place, write_file

NUM_RACES = 20


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _race(*writers) -> list[str]:
    """Start all at once, in threads: "done", or the kind of error of each."""
    barrier = threading.Barrier(len(writers))

    def run(write) -> str:
        barrier.wait()
        try:
            write()
        except Exception as error:
            return type(error).__name__
        return "done"

    with ThreadPoolExecutor(len(writers)) as pool:
        return list(pool.map(run, writers))


def test_of_two_writers_one_is_refused_and_the_next_is_not(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    with claimed(path, make_parents=True) as draft:
        with pytest.raises(ArtifactError, match="another process or thread is writing"):
            write_file(path, "second")
        draft.write_text("first")
        put_in_place(draft, path)
    write_file(path, "third")
    assert path.read_text() == "third"
    assert _files(path.parent) == ["file"]


def test_a_writer_that_fails_leaves_neither_draft_nor_folders(tmp_path):
    with pytest.raises(ZeroDivisionError), claimed(tmp_path / "a" / "b" / "file", make_parents=True):
        raise ZeroDivisionError
    assert not _files(tmp_path)
    with pytest.raises(ArtifactError, match="cannot write"):
        write_file(tmp_path / "nowhere" / "file", "text")


def test_a_folder_in_one_that_cannot_be_written_is_claimed_by_itself(tmp_path, monkeypatch):
    folder, opened = tmp_path / "run", os.open
    folder.mkdir()

    def refused(path, flags, *mode, **options):
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", refused)
    with claimed(folder), pytest.raises(ArtifactError, match="another process or thread"), claimed(folder):
        pass
    with claimed(folder):
        pass


def _hold(path: Path, ready) -> None:
    with claimed(path) as draft:
        draft.write_text("half")
        ready.set()
        time.sleep(60)


def test_what_a_killed_writer_leaves_bars_nobody(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path / "file", ready))
    holder.start()
    assert ready.wait(60)
    with pytest.raises(ArtifactError, match="another process"):
        write_file(tmp_path / "file", "too early")
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert _files(tmp_path) == [".file.part"]
    write_file(tmp_path / "file", "whole")
    assert _files(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "whole"


def test_files_written_in_a_race_are_whole(tmp_path):
    texts = ["a" * 1_000_000, "b" * 1_000_000]
    for _ in range(NUM_RACES):
        outcomes = _race(*(lambda text=text: write_file(tmp_path / "file", text) for text in texts))
        assert "done" in outcomes
        assert set(outcomes) <= {"done", "ArtifactError"}
        assert (tmp_path / "file").read_text() in texts
        assert _files(tmp_path) == ["file"]


def test_of_two_saves_to_one_path_one_is_done_and_one_refused(tmp_path):
    weeks = pl.datetime_range(pl.datetime(2022, 1, 2), pl.datetime(2022, 6, 26), "1w", eager=True)
    frame = pl.DataFrame({"unique_id": ["a"] * len(weeks), "ds": weeks, "y": [float(i) for i in range(len(weeks))]})
    made = [Forecaster("seasonal-naive", horizon).fit(frame) for horizon in (2, 3)]
    for number in range(NUM_RACES):
        path = tmp_path / str(number)
        outcomes = _race(*(lambda one=one, path=path: one.save(path) for one in made))
        assert sorted(outcomes) == ["ArtifactError", "done"]
        assert Forecaster.load(path).horizon == made[outcomes.index("done")].horizon
    assert _files(tmp_path) == sorted(map(str, range(NUM_RACES)))


@pytest.mark.skipif(os.name == "nt", reason="Windows has other errors for these")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("folder", r"Is a directory; it is a folder: name a file\. What was saved before is intact"),
        ("n" * 300, r"; shorten the name\."),
        ("file/below", r"; a part of the path is a file: correct it\."),
        ("nowhere/file", r"; name a place whose folders are there or can be made\."),
        ("/", r"cannot write /: it is a folder; name a file or a folder in it"),
    ],
)
def test_the_remedy_fits_what_hinders(tmp_path, name, says):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=says):
        write_file(tmp_path / name, "text")
