"""What is published: the source distribution and the wheel, built, installed into a fresh environment, and used."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from mqcast import __version__

ROOT = Path(__file__).parents[1]
WALK = """
import polars as pl, mqcast
from mqcast.simulate import lognormal_world
world = lognormal_world(6, 60, 4, seed=0)
made = mqcast.Forecaster("mqt", 4, schema=world.schema, max_steps=2, verbose=False, device="cpu")
forecasts = made.fit(world.frame, world.static, world.events).predict()
assert forecasts.height == 24 and not forecasts["q0.5"].is_nan().any()
print(mqcast.__file__)
"""


def _run(*command: object, cwd: Path) -> str:
    """What a command prints, without this checkout on its path."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The source distribution of this checkout, and the wheel that is built from that alone."""
    place = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", place, cwd=ROOT)
    (sdist,) = place.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(place, filter="data")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place, cwd=place / f"mqcast-{__version__}")
    (wheel,) = place.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = wheel.namelist()
    assert {name.partition("/")[0] for name in names} == {"mqcast", f"mqcast-{__version__}.dist-info"}
    endings = {Path(name).suffix for name in names if name.startswith("mqcast/")}
    assert endings <= {".py", ".typed", ".c", ".json", ".so", ".j2", ".css", ".js"}
    assert "mqcast/nn/libkernels.json" in names


@pytest.mark.slow
def test_the_source_distribution_holds_no_laboratory_and_no_results(built):
    with tarfile.open(built["sdist"]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"src/mqcast/py.typed", "hatch_build.py", "build_kernels.py", "LICENSE"} <= names
    assert not [name for name in names if name.startswith(("lab/", "tests/lab/", "data/")) or "libkernels" in name]


@pytest.mark.slow
def test_the_installed_wheel_fits_and_forecasts(built, tmp_path):
    environment = tmp_path / "env"
    _run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    places = sysconfig.get_paths(vars={"base": str(environment), "platbase": str(environment)})
    Path(places["purelib"], "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    install = ("-m", "pip", "--python", scripts / "python", "install", "--no-deps", "--no-index", "--quiet")
    _run(sys.executable, *install, built["wheel"], cwd=tmp_path)
    assert __version__ in _run(scripts / "mqcast", "--version", cwd=tmp_path)
    where = _run(scripts / "python", "-c", WALK, cwd=tmp_path)
    assert Path(where).is_relative_to(environment)
