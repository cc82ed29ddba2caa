"""The promise of the formats: what an earlier 0.x wrote is read, and forecasts the same."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from mqcast import Forecaster, Panel
from mqcast.artifact import ArtifactFolder, Manifest, entry_of
from mqcast.forecast.predict import forecast_frame
from mqcast.run import Run

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(path.name for path in GOLDEN.iterdir() if (path / "digests.json").exists())


def same(found: pl.DataFrame, wanted: pl.DataFrame) -> None:
    keys = ["unique_id", "cutoff", "ds", "horizon"]
    assert found.select(keys).equals(wanted.select(keys))
    for name in ("q0.5", "q0.9"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4)


def test_the_first_version_has_golden_files():
    assert "0.1.0" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_panel_and_a_run_of_each_version_are_read_and_forecast_the_same(version):
    folder, wanted = GOLDEN / version, pl.read_parquet(GOLDEN / version / "forecasts.parquet")
    run, panel = Run.open(folder / "run"), Panel.open(folder / "panel")
    digests = {"panel": panel.fingerprint, "signature": run.layout.signature, "weights": run.weights_digest}
    assert digests == json.loads((folder / "digests.json").read_text())
    assert panel._digest() == panel.fingerprint, "the same content has the same fingerprint"
    same(forecast_frame(run, panel, first=wanted["cutoff"].min(), last=wanted["cutoff"].max()), wanted)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_forecaster_of_each_version_is_loaded_and_forecasts_the_same(version):
    made = Forecaster.load(GOLDEN / version / "forecaster")
    same(made.revisions(), pl.read_parquet(GOLDEN / version / "forecasts.parquet"))
    assert (made.horizon, made.quantiles, made.model) == (2, (0.5, 0.9), "mqt")


@pytest.mark.parametrize("version", VERSIONS)
def test_facts_that_this_version_does_not_know_are_no_obstacle(version, tmp_path):
    folder = shutil.copytree(GOLDEN / version / "run", tmp_path / "run")
    facts = json.dumps(json.loads((folder / "run.json").read_text()) | {"of_a_later_version": [1, 2]}).encode()
    (folder / "run.json").write_bytes(facts)
    manifest = ArtifactFolder(folder, "").manifest()
    Manifest(manifest.files | {"run.json": entry_of(facts)}, {}).write(folder)
    assert Run.open(folder).network() is not None


def test_loading_and_forecasting_import_no_compiler_of_torch():
    """It takes longer to import than everything else together."""
    code = (
        "import sys, mqcast; "
        f"mqcast.Forecaster.load({str(GOLDEN / '0.1.0' / 'forecaster')!r}).predict(); "
        "print([name for name in ('torch._dynamo', 'sympy', 'scipy.signal', 'plotly') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
