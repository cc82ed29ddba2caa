"""Coverage-guided fuzzing of everything that reads files: each input gives a typed error or a result, nothing else.

    pip install -e '.[fuzz]'        (atheris; Linux)
    python -m lab campaign fuzz_readers [--count 100000] [--target panel|frame|run]

panel   one file of a packed panel is replaced, with or without its manifest being updated to match
run     the same for a saved forecaster, which holds a run
frame   Parquet bytes, or Arrow IPC bytes that Arrow itself accepts, go to `Panel.from_frame` and to the evaluation

Each target runs in a process of its own, on a folder in memory. Exceptions other than MqcastError are failures, and
fuzzing continues; a signal, a hang or a huge allocation is a failure that ends the process, and another takes over.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

TARGETS = ("panel", "frame", "run")  # the slowest comes last, and gets what time is left
MOST_BYTES, MOST_MEGABYTES, SECONDS = 30_000, 3000, 60
RESEALED, MAPPED = 1, 2  # bits of an input's second byte; the first says which file, the rest is its content


# -- inside the process that fuzzes ------------------------------------------------------------------------------------


def fuzz(target: str, place: Path, arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["mqcast"]):
        from artifact_samples import files_of, make_all

        from mqcast.errors import MqcastError
    warnings.simplefilter("ignore")
    if not (place / "made").exists():
        make_all(place / "made")
    folder = place / "made" / {"panel": "panel", "run": "forecaster", "frame": "panel"}[target]
    files = [file for file in files_of(folder) if target != "run" or "panel" not in file.relative_to(folder).parts]
    corpus = place / f"corpus-{target}"
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(_frame_seeds() if target == "frame" else _file_seeds(files)):
        (corpus / f"seed{number:03}").write_bytes(seed)
    try_one = _try_frame(place) if target == "frame" else _try_folder(folder, files)
    log, count = (place / f"failures-{target}").open("a"), 0
    tally = (place / f"count-{target}").open("w")

    def one_input(content: bytes) -> None:
        nonlocal count
        try:
            try_one(content)
        except MqcastError:
            pass
        except Exception as error:
            steps = [step for step in traceback.extract_tb(error.__traceback__) if "mqcast" in step.filename]
            where = f"{Path(steps[-1].filename).name}:{steps[-1].lineno}" if steps else "?"
            log.write(json.dumps([f"{type(error).__name__} at {where}: {str(error)[:200]}", content.hex()]) + "\n")
            log.flush()
        count += 1
        tally.seek(0)
        tally.write(str(count))
        tally.flush()

    atheris.Setup([sys.argv[0], *arguments, str(corpus)], one_input)
    atheris.Fuzz()


def _file_seeds(files: list[Path]) -> list[bytes]:
    return [bytes([i, flags]) + file.read_bytes() for i, file in enumerate(files) for flags in (0, RESEALED, 3)]


def _try_folder(folder: Path, files: list[Path]) -> Callable[[bytes], None]:
    from mqcast import Forecaster, Panel
    from mqcast.data import store
    from mqcast.data.export import frames_of
    from mqcast.data.summary import summarise

    originals = {file: file.read_bytes() for file in folder.rglob("*") if file in files or file.suffix == ".json"}

    def try_one(content: bytes) -> None:
        if len(content) < 2:
            return
        file = files[content[0] % len(files)]
        store.SMALL_BYTES = 0 if content[1] & MAPPED else 2**26
        file.write_bytes(content[2:])
        try:
            if content[1] & RESEALED:
                _reseal(folder, file)
            if folder.name == "forecaster":
                made = Forecaster.load(folder)
                if zlib.crc32(content) % 8 == 0:  # takes longer than all the rest
                    made.predict()
            else:
                panel = Panel.open(folder)
                summarise(panel), frames_of(panel), panel.ids.to_pylist()
        finally:
            for changed, original in originals.items():
                if changed == file or changed.suffix == ".json":
                    changed.write_bytes(original)

    return try_one


def _reseal(folder: Path, file: Path) -> None:
    """Update the manifests to match a file, as far as they can be read."""
    from mqcast.artifact import Manifest, entry_of, seal

    for manifest in (folder / "panel.json", folder / "panel" / "panel.json"):
        if not manifest.exists():
            continue
        try:
            facts: dict[str, Any] = json.loads(manifest.read_bytes())
            facts.pop("seal", None)
            if file.suffix == ".npy":
                facts["arrays"][file.stem] |= entry_of(file.read_bytes())
            manifest.write_text(seal(facts))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            return
    if (folder / "manifest.json").exists():
        try:
            files = json.loads((folder / "manifest.json").read_bytes())["files"]
            Manifest({name: entry_of((folder / name).read_bytes()) for name in files}, {}).write(folder)
        except (ValueError, TypeError, KeyError, RecursionError, OSError):
            return


def _frame_seeds() -> list[bytes]:
    import io

    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq
    from artifact_samples import HORIZON, tiny_frame

    rows = tiny_frame().filter(pl.col("unique_id") < "item 2")
    keys = {"horizon": pl.lit(HORIZON, pl.Int32), "cutoff": pl.col("ds").dt.offset_by(f"-{HORIZON}w")}
    forecasts = rows.select("unique_id", "ds", "y").drop_nulls().with_columns(**keys).rename({"y": "q0.5"})
    seeds = []
    for table in (rows.to_arrow(), forecasts.to_arrow(), pa.Table.from_pandas(rows.to_pandas())):
        table = table.cast(
            pa.schema([(f.name, pa.string() if f.type == pa.large_string() else f.type) for f in table.schema])
        )
        for compression in ("none", "snappy"):
            packed = io.BytesIO()
            pq.write_table(table, packed, compression=compression)
            seeds.append(b"\0\0" + packed.getvalue())
        packed = io.BytesIO()
        with pa.ipc.new_stream(packed, table.schema) as writer:
            writer.write_table(table)
        seeds.append(b"\1\0" + packed.getvalue())
    return seeds


def _try_frame(place: Path) -> Callable[[bytes], None]:
    import pyarrow as pa
    from artifact_samples import SCHEMA

    from mqcast import Panel
    from mqcast.errors import MqcastError
    from mqcast.evaluation import Names, read_forecasts

    file = place / "fuzzed.parquet"

    def try_one(content: bytes) -> None:
        if len(content) < 2:
            return
        frame: Any = file
        if content[0] % 2:
            try:
                frame = pa.ipc.open_stream(content[2:]).read_all()
                frame.validate(full=True)
            except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError):
                return  # Arrow refuses it before mqcast is asked
        else:
            file.write_bytes(content[2:])
        for read in (
            lambda: Panel.from_frame(frame, SCHEMA if content[1] % 2 else None),
            lambda: read_forecasts(frame, Names()),
        ):
            try:
                read()
            except MqcastError:
                continue

    return try_one


# -- outside -----------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=TARGETS, action="append", help="repeat for more; default: all")
    parser.add_argument("--keep", type=Path, help="a folder for the inputs that end the process")


def main() -> None:
    from lab.campaigns.campaign import Campaign

    campaign = Campaign(
        "Readers of panels, runs and frames give a result or a typed error, whatever the bytes.",
        100_000,
        add_arguments,
    )
    try:
        import atheris  # noqa: F401
    except ImportError:
        sys.exit("this campaign needs atheris: pip install -e '.[fuzz]'")
    targets = campaign.options.target or TARGETS
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="mqcast-fuzz-") as place:
        for target in targets:
            _run_target(campaign, target, Path(place))
    campaign.finish(targets=list(targets))


def _run_target(campaign: Any, target: str, place: Path) -> None:
    import time

    left, seed = campaign.options.count, campaign.options.seed
    deadline = campaign.began + 60 * campaign.options.minutes
    while left > 0 and time.monotonic() < deadline:
        limits = [f"-max_len={MOST_BYTES}", f"-rss_limit_mb={MOST_MEGABYTES}", f"-timeout={SECONDS}", "-len_control=0"]
        limits += [f"-runs={left}", f"-seed={seed + 1}", f"-artifact_prefix={place}/", "-verbosity=0"]
        if deadline < float("inf"):
            limits.append(f"-max_total_time={max(1, int(deadline - time.monotonic()))}")
        command = [sys.executable, __file__, "--inside", target, str(place), *limits]
        done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
        count, failures = place / f"count-{target}", place / f"failures-{target}"
        tried = int((count.read_text() if count.exists() else "") or 0)
        lines = failures.read_text().splitlines() if failures.exists() else []
        failures.unlink(missing_ok=True)
        count.unlink(missing_ok=True)
        for line in lines:
            what, content = json.loads(line)
            campaign.check(False, target, f"{what}; input {content[:4]}…, {len(content) // 2} bytes")
        for _ in range(tried - len(lines)):
            campaign.check(True, target)
        if done.returncode:
            inputs = [path for kind in ("oom", "crash", "timeout", "leak") for path in place.glob(f"{kind}-*")]
            if campaign.options.keep is not None:
                campaign.options.keep.mkdir(parents=True, exist_ok=True)
                for path in inputs:
                    shutil.copy(path, campaign.options.keep)
            last = "\n".join(done.stderr.splitlines()[-5:])
            campaign.check(False, target, f"the process ended with code {done.returncode}: {last}")
            for path in inputs:
                path.unlink()
        if not tried:
            return
        left, seed = left - tried, seed + 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        fuzz(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    else:
        main()
