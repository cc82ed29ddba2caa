"""A panel larger than the memory it may use."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "larger_than_memory.py"


@pytest.mark.slow
def test_four_gigabytes_are_packed_and_read_within_two_of_anonymous_memory():
    """Takes about 5 minutes and 15 GB of disk; the script ends a process that passes the limit."""
    done = subprocess.run([sys.executable, SCRIPT, "--no-record"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["parquet_bytes"] >= 4e9
    for stage in ("pack", "train"):
        assert "failed" not in found[stage], found[stage]
        assert found[stage]["peak_anon_mb"] < 2048
    assert found["train"]["detail"]["wait_share"] < 0.05
