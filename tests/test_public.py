"""The public face: what is exported, and what importing it costs."""

import subprocess
import sys

import pytest

import mqcast
from mqcast import errors


def test_the_public_names_are_pinned():
    assert mqcast.__all__ == [
        "ArtifactError",
        "Calibrator",
        "ConfigError",
        "DataError",
        "Forecaster",
        "Hierarchy",
        "MqcastError",
        "Panel",
        "Policy",
        "Schema",
        "SchemaError",
        "calibrate",
        "compare",
        "evaluate",
        "implausible",
        "orders",
        "pack",
        "quick",
        "rank_revisions",
        "reconcile",
        "replay",
        "totals",
        "volatility",
    ]
    assert all(hasattr(mqcast, name) for name in mqcast.__all__)


@pytest.mark.parametrize(
    ("statement", "left_out"),
    [
        ("import mqcast", ("numpy", "polars", "pyarrow", "pydantic", "scipy", "torch")),
        ("from mqcast import *", ("duckdb", "holidays", "pyarrow.parquet", "scipy", "torch")),
        ("import mqcast.cli, mqcast.simulate, mqcast.evaluation, mqcast.decide", ("scipy.signal", "torch")),
    ],
)
def test_importing_mqcast_leaves_slow_libraries_for_their_first_use(statement, left_out):
    code = f"{statement}\nimport sys\nsys.exit(' '.join(set({left_out}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr.strip() == ""


def test_public_names_are_listed_and_unknown_ones_refused():
    assert set(mqcast.__all__) < set(dir(mqcast))
    with pytest.raises(AttributeError, match="forecster"):
        mqcast.forecster  # noqa: B018


def test_a_renamed_function_still_works_and_warns(monkeypatch):
    monkeypatch.delitem(vars(mqcast), "exceptions", raising=False)
    with pytest.warns(DeprecationWarning, match="exceptions is now rank_revisions"):
        assert mqcast.exceptions is mqcast.rank_revisions
    with pytest.warns(DeprecationWarning, match="exceptions is now rank_revisions"):
        from mqcast.evaluation import exceptions
    assert exceptions is mqcast.rank_revisions


def test_every_error_is_one_of_ours_and_drawn_in_the_tree():
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert issubclass(kind, (errors.MqcastError, errors.MqcastWarning))
            assert name in (errors.__doc__ or "")
