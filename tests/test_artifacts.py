"""What is on disk is as it was written, or it is refused by name: no crash, no hang, no other forecast."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from artifact_samples import files_of, flip, make_all, make_fifo

from mqcast import Forecaster, Panel
from mqcast.artifact import MANIFEST, ArtifactFolder, Manifest, add_files, entry_of
from mqcast.data import store
from mqcast.errors import ArtifactError, NonFiniteError
from mqcast.forecast import predict
from mqcast.forecast.predict import forecast, forecast_frame
from mqcast.run import Run


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_all(folder)
    return folder


@pytest.fixture
def copy(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "copy")


@pytest.fixture
def mapped(monkeypatch) -> None:
    """Panels of any size are mapped, as large ones are."""
    monkeypatch.setattr(store, "SMALL_BYTES", 0)


def reseal(folder: Path, name: str, content: bytes) -> None:
    """Change a file together with its manifest, as only somebody who means to can."""
    (folder / name).write_bytes(content)
    manifest = ArtifactFolder(folder, "").manifest()
    Manifest(manifest.files | {name: entry_of(content)}, {}).write(folder)


def use(folder: Path) -> pl.DataFrame:
    """Open what the folder is named after, and forecast by it."""
    if folder.name == "forecaster":
        return Forecaster.load(folder).revisions()
    if folder.name == "run":
        return forecast_frame(Run.open(folder), Panel.open(folder.parent / "panel"))
    return forecast_frame(Run.open(folder.parent / "run"), Panel.open(folder))


# -- a changed byte ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["panel", "run", "forecaster"])
def test_a_changed_bit_in_any_file_is_an_error_that_names_the_file(copy, kind):
    use(copy / kind)
    for file in files_of(copy / kind):
        if "checkpoints" in file.parts:
            continue
        for bit in (3, 4 * file.stat().st_size, -2):
            flip(file, bit)
            with pytest.raises(ArtifactError, match=file.name):
                use(copy / kind)
            flip(file, bit)
    use(copy / kind)


@pytest.mark.usefixtures("mapped")
def test_a_changed_bit_in_a_mapped_panel_is_found_before_a_forecast_is_published(copy):
    run = Run.open(copy / "run")
    flip(next((copy / "panel").glob("data-*/target.npy")), -20)
    panel = Panel.open(copy / "panel")
    assert isinstance(panel.target, np.memmap)
    with pytest.raises(ArtifactError, match=r"target\.npy"):
        forecast_frame(run, panel)
    with pytest.raises(ArtifactError, match=r"target\.npy"):
        forecast(run, panel, copy / "out.parquet")
    assert not (copy / "out.parquet").exists()
    with pytest.raises(ArtifactError, match=r"target\.npy"):
        Forecaster("seasonal-naive", 2, verbose=False).fit(panel).predict()


@pytest.mark.usefixtures("mapped")
def test_a_mapped_panel_is_read_whole_once_however_often_it_is_forecast(copy, monkeypatch):
    count, read = 0, store.entry_of_file

    def counted(handle):
        nonlocal count
        count += 1
        return read(handle)

    run, panel = Run.open(copy / "run"), Panel.open(copy / "panel")
    monkeypatch.setattr(store, "entry_of_file", counted)
    for _ in range(3):
        forecast_frame(run, panel)
    assert count == len(panel.arrays)


@pytest.mark.usefixtures("mapped")
def test_a_panel_that_is_packed_anew_does_not_disturb_those_who_have_it_open(copy):
    run, panel = Run.open(copy / "run"), Panel.open(copy / "panel")
    shutil.rmtree(copy / "panel")
    assert len(forecast_frame(run, panel))


CUT_OFF = """
import os, sys
from mqcast import Panel
from mqcast.data import store
from mqcast.errors import ArtifactError
from mqcast.forecast.predict import forecast_frame
from mqcast.run import Run

def outcome(folder, small, is_used_before):
    store.SMALL_BYTES = small
    run, panel = Run.open(folder + "/run"), Panel.open(folder + "/panel")
    if is_used_before:
        forecast_frame(run, panel)
    for name, _, files in os.walk(folder + "/panel"):
        for file in files:
            os.truncate(os.path.join(name, file), 0)
    try:
        forecast_frame(run, panel)
    except ArtifactError:
        return "refused"
    return "forecast"

print(outcome(sys.argv[1], 0, False), outcome(sys.argv[2], 0, True), outcome(sys.argv[3], 2**30, False))
"""


def test_a_panel_cut_off_while_it_is_open_does_not_bring_the_process_down(made, tmp_path):
    """A mapped one is refused, used before or not; a small one is in memory and does not notice."""
    copies = [str(shutil.copytree(made, tmp_path / str(i))) for i in range(3)]
    done = subprocess.run([sys.executable, "-c", CUT_OFF, *copies], check=False, capture_output=True, text=True)
    assert done.stdout.split() == ["refused", "refused", "forecast"], (done.returncode, done.stderr)


def test_swapped_files_are_refused(copy):
    one, other = (next((copy / "panel").glob(f"data-*/{name}.npy")) for name in ("first_step", "last_observed"))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"(first_step|last_observed)\.npy"):
        Panel.open(copy / "panel")


# -- what is not a file, or not inside ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["panel", "run", "forecaster"])
@pytest.mark.parametrize("harm", ["fifo", "folder", "link out", "gone", "empty"])
def test_what_is_not_a_regular_file_inside_the_folder_is_refused_at_once(copy, kind, harm):
    alarm = threading.Timer(60, os.kill, (os.getpid(), signal.SIGABRT))  # a hang is a failure
    alarm.start()
    for file in files_of(copy / kind):
        if "checkpoints" in file.parts:
            continue
        content = file.read_bytes()
        if harm == "fifo":
            make_fifo(file)
        elif harm == "folder":
            file.unlink()
            file.mkdir()
        elif harm == "link out":
            (copy / "elsewhere").write_bytes(content)
            file.unlink()
            file.symlink_to(copy / "elsewhere")
        elif harm == "gone":
            file.unlink()
        elif harm == "empty":
            file.write_bytes(b"")
        if (harm, file.name) == ("gone", "metrics.jsonl") and kind == "run":  # a log; training can do without it
            use(copy / kind)
        else:
            with pytest.raises(ArtifactError):
                use(copy / kind)
        file.rmdir() if harm == "folder" else file.unlink(missing_ok=True)
        file.write_bytes(content)
    alarm.cancel()


def test_a_link_inside_the_folder_and_a_link_to_the_folder_are_read(copy):
    file = copy / "run" / "config.toml"
    file.rename(copy / "run" / "real.toml")
    file.symlink_to("real.toml")
    (copy / "link").symlink_to(copy / "run")
    assert Run.open(copy / "link").is_trained


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "manifest"),
        ('{"files": ' * 50_000, "manifest"),
        ("{}", "manifest"),
        ("null", "manifest"),
        ('{"format": 1e999}', "manifest"),
        ("\udcff", "manifest"),
    ],
)
def test_json_of_any_shape_is_refused(copy, text, problem):
    (copy / "run" / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ArtifactError, match=problem):
        Run.open(copy / "run")


def test_a_file_far_larger_than_it_should_be_is_not_read(copy):
    for name in ("run/run.json", "run/model.safetensors", "panel/panel.json"):
        with (copy / name).open("r+b") as file:
            file.truncate(2**40)  # a hole: it takes no space
        with pytest.raises(ArtifactError, match=name.split("/")[1]):
            use(copy / "run")
        shutil.copy(copy / "forecaster" / name.split("/")[1].replace("panel.json", "panel/panel.json"), copy / name)


# -- resealed: the manifest agrees, the content does not ---------------------------------------------------------------


def scaling_with(folder: Path, name: str, change) -> bytes:
    arrays = safetensors.numpy.load((folder / "scaling.safetensors").read_bytes())
    arrays[name] = change(arrays[name].copy())
    return safetensors.numpy.save(arrays)


def set_at(index: int, value: float):
    def change(array: np.ndarray) -> np.ndarray:
        array[index] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("target.id_offsets", set_at(1, 2**60)),
        ("target.id_offsets", set_at(1, -1)),
        ("target.id_offsets", lambda array: array[:-1]),
        ("target.id_bytes", set_at(0, 255)),
        ("target.scale", set_at(0, 0.0)),
        ("target.scale", set_at(0, -1.0)),
        ("target.scale", set_at(0, np.inf)),
        ("target.loc", lambda array: array.astype(np.float32)),
        ("target.default", set_at(0, np.nan)),
        ("number.past.scale", set_at(0, np.nan)),
        ("number.past.loc", lambda array: np.append(array, 0.0)),
        ("category.static.0", set_at(0, 99)),
    ],
)
def test_transforms_out_of_range_are_refused_before_anything_uses_them(copy, name, change):
    reseal(copy / "run", "scaling.safetensors", scaling_with(copy / "run", name, change))
    run, panel = Run.open(copy / "run"), Panel.open(copy / "panel")
    with pytest.raises(ArtifactError, match=r"scaling\.safetensors"):
        forecast_frame(run, panel)


def test_weights_that_are_not_finite_are_refused(copy):
    weights = safetensors.torch.load((copy / "run" / "model.safetensors").read_bytes())
    next(iter(weights.values())).view(-1)[0] = torch.nan
    reseal(copy / "run", "model.safetensors", safetensors.torch.save(weights))
    with pytest.raises(ArtifactError, match=r"model\.safetensors .*not finite"):
        Run.open(copy / "run").network()


@pytest.mark.parametrize(
    ("old", "new"), [("hidden_dim = 4", "hidden_dim = 1000000000000"), ("horizon = 2", "horizon = 3")]
)
def test_settings_of_another_network_are_refused_before_it_is_allocated(copy, old, new):
    text = (copy / "run" / "config.toml").read_text()
    assert old in text
    reseal(copy / "run", "config.toml", text.replace(old, new).encode())
    with pytest.raises(ArtifactError, match=r"model\.safetensors|config\.toml"):
        forecast_frame(Run.open(copy / "run"), Panel.open(copy / "panel"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("offsets", set_at(1, -1)),
        ("offsets", set_at(1, 10**9)),
        ("id_offsets", set_at(2, 10**9)),
        ("last_observed", set_at(0, 2**62)),
        ("first_step", set_at(0, -(2**62))),
    ],
)
@pytest.mark.usefixtures("mapped")
def test_a_mapped_panels_offsets_are_checked_when_it_is_opened(copy, name, change):
    file = next((copy / "panel").glob(f"data-*/{name}.npy"))
    np.save(file, change(np.load(file)))
    with pytest.raises(ArtifactError, match=name):
        Panel.open(copy / "panel")


def test_a_forecast_that_is_not_finite_is_never_returned(copy, monkeypatch):
    rows = predict._rows

    def spoilt(windows, values):
        values[0, 0, -1, 0] = np.nan
        return rows(windows, values)

    monkeypatch.setattr(predict, "_rows", spoilt)
    with pytest.raises(NonFiniteError, match=r"series 'item 0', at 2023-05-28.*not finite"):
        forecast_frame(Run.open(copy / "run"), Panel.open(copy / "panel"))


# -- what a crash leaves -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_writes", range(4))
def test_a_crash_while_files_are_replaced_leaves_the_old_ones_or_the_new(copy, num_writes, monkeypatch):
    import mqcast.artifact

    folder, write, left = ArtifactFolder(copy / "run", ""), mqcast.artifact.write_file, num_writes

    def crash_after(path, content):
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        write(path, content)

    before = (copy / "run" / "model.safetensors").read_bytes()
    monkeypatch.setattr(mqcast.artifact, "write_file", crash_after)
    if num_writes < 3:
        with pytest.raises(KeyboardInterrupt):
            add_files(folder, {"model.safetensors": b"new"})
    else:
        add_files(folder, {"model.safetensors": b"new"})
    assert folder.read_verified("model.safetensors") == (before if num_writes < 2 else b"new")
    monkeypatch.undo()
    add_files(folder, {"other": b"x"})
    assert folder.read_verified("model.safetensors") == (before if num_writes < 2 else b"new")


def test_a_changed_checkpoint_is_passed_over_whatever_byte_it_is(copy):
    from mqcast.train.checkpoint import Checkpoints

    checkpoints = Checkpoints(copy / "run" / "checkpoints")
    names = [path.stem for path in sorted(checkpoints.folder.glob("*.json"))]
    newest = checkpoints.folder / f"{names[-1]}.json"
    for bit in range(0, 8 * newest.stat().st_size, 37):
        flip(newest, bit)
        found = checkpoints.newest()
        assert found is not None
        assert found.name == names[0]
        flip(newest, bit)


def test_a_run_tells_all_that_is_in_its_manifest(made):
    listed = set(json.loads((made / "run" / MANIFEST).read_text())["files"])
    there = {str(path.relative_to(made / "run")) for path in files_of(made / "run") if "checkpoints" not in path.parts}
    assert listed == there - {MANIFEST}
