"""The packed store: fingerprints, the folder on disk, crashes, damage."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest

from mqcast import Panel, Schema, pack
from mqcast.data import store
from mqcast.data.store import MANIFEST, new_data_folder
from mqcast.errors import ArtifactError, ConfigError, DataError, DuplicateRowsError

WEEKLY = Schema(freq="W", known=("promo", "price"))


@pytest.mark.parametrize("small", [0, store.SMALL_BYTES])
def test_a_packed_panel_is_the_panel(sales, tmp_path, same_arrays, small, monkeypatch):
    monkeypatch.setattr(store, "SMALL_BYTES", small)
    sales.write_parquet(tmp_path / "sales.parquet")
    packed = pack(tmp_path / "sales.parquet", tmp_path / "panel", WEEKLY)
    same_arrays(Panel.from_frame(sales, WEEKLY), packed)
    assert isinstance(packed.target, np.memmap) == (small == 0)
    packed.verify()


def test_the_fingerprint_changes_with_any_value_and_role(sales):
    seen = {Panel.from_frame(sales, WEEKLY).fingerprint}
    for changed in (
        sales.with_columns(y=pl.col("y") + 1e-3),
        sales.with_columns(promo=~pl.col("promo")),
        sales.with_columns(unique_id=pl.col("unique_id") + "!"),
        sales.with_columns(ds=pl.col("ds").dt.offset_by("1w")),
        sales.head(15),
    ):
        seen.add(Panel.from_frame(changed, WEEKLY).fingerprint)
    seen.add(Panel.from_frame(sales, Schema(freq="W", known=("promo",), past=("price",))).fingerprint)
    seen.add(Panel.from_frame(sales, WEEKLY.replace(holidays=("US",))).fingerprint)
    assert len(seen) == 8


def test_what_the_schema_leaves_out_and_what_it_says_is_one_panel(sales):
    said = Schema(freq="W-SUN", known=("promo", "price"), kinds={"promo": "flag", "price": "number"})
    assert Panel.from_frame(sales, said).fingerprint == Panel.from_frame(sales, WEEKLY.replace(freq=None)).fingerprint


def test_a_schema_and_a_likeness_exclude_each_other(sales):
    with pytest.raises(ConfigError, match="not both"):
        Panel.from_frame(sales, WEEKLY, like=Panel.from_frame(sales, WEEKLY))


def test_an_unknown_series_is_named(sales):
    panel = Panel.from_frame(sales, WEEKLY)
    assert panel.index_of("b") == 1
    with pytest.raises(DataError, match="series 'c': no such series"):
        panel.index_of("c")
    with pytest.raises(DataError, match="did you mean 'b'"):
        panel.index_of("B")


def test_a_bad_frame_leaves_the_old_panel_or_nothing(sales, tmp_path):
    bad = pl.concat([sales, sales])
    with pytest.raises(DuplicateRowsError):
        pack(bad, tmp_path / "new", WEEKLY)
    assert not (tmp_path / "new").exists()
    old = pack(sales, tmp_path / "old", WEEKLY).fingerprint
    with pytest.raises(DuplicateRowsError):
        pack(bad, tmp_path / "old", WEEKLY)
    panel = Panel.open(tmp_path / "old")
    panel.verify()
    assert panel.fingerprint == old
    assert len(list((tmp_path / "old").iterdir())) == 2


def test_packing_again_replaces_the_panel_and_cleans_up(sales, tmp_path):
    first = pack(sales, tmp_path / "panel", WEEKLY)
    second = pack(sales.head(12), tmp_path / "panel", WEEKLY)
    assert second.num_rows == 12
    assert first.target[0] == 10, "who has the old panel open may go on with it"
    assert len(list((tmp_path / "panel").glob("data-*"))) == 1


def test_a_folder_of_something_else_is_not_touched(sales, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="is neither empty nor a panel"):
        pack(sales, tmp_path / "mine", WEEKLY)
    with pytest.raises(ArtifactError, match="is a file"):
        pack(sales, tmp_path / "mine" / "thesis.txt", WEEKLY)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


CRASH = """
import sys, polars as pl
from mqcast import Schema, pack
pack(pl.read_parquet(sys.argv[1]), sys.argv[2], Schema(freq="D"))
"""


def test_a_killed_pack_leaves_the_old_panel_or_the_new_one(tmp_path):
    days = pl.datetime_range(pl.datetime(2000, 1, 1), pl.datetime(2020, 1, 1), "1d", eager=True)
    frame = pl.concat(pl.DataFrame({"unique_id": f"{i:03}", "ds": days, "y": float(i)}) for i in range(60))
    frame.write_parquet(tmp_path / "new.parquet")
    new = Panel.from_frame(frame, Schema(freq="D")).fingerprint
    old = pack(frame.head(100), tmp_path / "panel", Schema(freq="D")).fingerprint
    command = [sys.executable, "-c", CRASH, str(tmp_path / "new.parquet"), str(tmp_path / "panel")]
    started = time.perf_counter()
    subprocess.run(command, check=True)
    duration = time.perf_counter() - started
    pack(frame.head(100), tmp_path / "panel", Schema(freq="D"))
    for share in (0.5, 0.7, 0.8, 0.9, 0.95):
        process = subprocess.Popen(command)
        time.sleep(share * duration)
        process.kill()
        process.wait()
        panel = Panel.open(tmp_path / "panel")
        panel.verify()
        assert panel.fingerprint in (old, new)
    pack(frame, tmp_path / "panel", Schema(freq="D")).verify()
    assert len(list((tmp_path / "panel").iterdir())) == 2, "what the killed ones left is gone"


@pytest.mark.parametrize(
    "damage", ["no folder", "no manifest", "torn manifest", "other format", "newer", "short", "lost"]
)
def test_a_damaged_panel_is_refused_when_it_is_opened(sales, tmp_path, damage):
    pack(sales, tmp_path / "panel", WEEKLY)
    manifest = tmp_path / "panel" / MANIFEST
    data = next((tmp_path / "panel").glob("data-*"))
    contents = json.loads(manifest.read_text())
    if damage == "no folder":
        manifest = tmp_path / "nowhere" / MANIFEST
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "torn manifest":
        manifest.write_text(manifest.read_text()[:100])
    elif damage == "other format":
        manifest.write_text("[]")
    elif damage == "newer":
        manifest.write_text(json.dumps(contents | {"version": 99}))
    elif damage == "short":
        os.truncate(data / "target.npy", 130)
    elif damage == "lost":
        manifest.write_text(json.dumps({k: v for k, v in contents.items() if k != "vocabularies"}))
    with pytest.raises(ArtifactError, match="pack"):
        Panel.open(manifest.parent)


def test_a_changed_byte_is_found_by_verify(sales, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SMALL_BYTES", 0)
    pack(sales, tmp_path / "panel", WEEKLY)
    file = next((tmp_path / "panel").glob("data-*/target.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    panel = Panel.open(tmp_path / "panel")
    with pytest.raises(ArtifactError, match=r"target\.npy"):
        panel.verify()


def test_a_manifest_cannot_point_outside_its_folder(sales, tmp_path):
    pack(sales, tmp_path / "panel", WEEKLY)
    manifest = tmp_path / "panel" / MANIFEST
    contents = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(contents | {"folder": "../../elsewhere"}))
    with pytest.raises(ArtifactError, match="missing or damaged"):
        Panel.open(tmp_path / "panel")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_an_error(sales, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(ArtifactError, match="cannot write"):
        pack(sales, tmp_path / "locked" / "panel", WEEKLY)


def test_two_packs_into_one_folder_do_not_destroy_each_other(sales, tmp_path):
    with (
        new_data_folder(tmp_path / "panel"),
        pytest.raises(ArtifactError, match="another process or thread is"),
    ):
        pack(sales, tmp_path / "panel", WEEKLY)
    pack(sales, tmp_path / "panel", WEEKLY).verify()


def test_what_a_killed_first_pack_leaves_does_not_bar_the_next(sales, tmp_path):
    (tmp_path / "panel" / "data-leftover").mkdir(parents=True)
    pack(sales, tmp_path / "panel", WEEKLY).verify()
    assert len(list((tmp_path / "panel").iterdir())) == 2


def test_a_failed_pack_leaves_no_folder_behind(sales, tmp_path):
    with pytest.raises(DuplicateRowsError):
        pack(pl.concat([sales, sales]), tmp_path / "a" / "b" / "c", WEEKLY)
    assert not (tmp_path / "a").exists()


def test_the_rows_until_a_time_are_counted_with_and_without_gaps(sales):
    gappy = sales.filter(pl.int_range(pl.len()) % 3 != 1)
    for frame in (sales, gappy):
        panel = Panel.from_frame(frame, WEEKLY)
        for ds in sales["ds"].unique():
            expected = [frame.filter(pl.col("unique_id") == name, pl.col("ds") <= ds).height for name in "ab"]
            time = int(np.datetime64(ds, "us").astype(int))
            assert (panel.row_ends(time) - panel.offsets[:-1]).tolist() == expected


def test_the_last_cutoffs_come_right_before_the_latest_observation(sales):
    weeks = [int(np.datetime64(ds, "us").astype(int)) for ds in sales["ds"].unique().sort()]
    longer = pl.when(pl.col("unique_id") == "a").then("y").otherwise(pl.col("y").fill_null(1.0))
    for frame, end in ((sales, 5), (sales.with_columns(y=longer), 7)):
        panel = Panel.from_frame(frame, WEEKLY)
        assert panel.last_observed_time() == weeks[end]
        assert panel.last_observed_time(2) == weeks[end - 2]
        assert panel.last_cutoffs(3) == (weeks[end - 3], weeks[end - 1])
        assert panel.last_cutoffs(99) == (weeks[0], weeks[end - 1])
