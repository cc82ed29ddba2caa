"""Panel and trained network → a long frame of quantiles: one row per series, cutoff and horizon.

The work is divided into shards of neighbouring series. The file of a shard is written completely or not at all. Any
number of processes can therefore share the work, and finished shards are not repeated after an interruption.
"""

import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from mqcast.artifact import ArtifactFolder
from mqcast.data.batch import Assembler
from mqcast.data.closed import ClosedRows
from mqcast.data.cutoffs import CutoffPlan
from mqcast.data.panel import Panel
from mqcast.data.windows import Windows
from mqcast.durable import cannot_write, claimed, put_in_place, write_file
from mqcast.errors import ArtifactError
from mqcast.forecast.frames import Spans, plan_cutoffs, rows_frame, spans_frame
from mqcast.forecast.limits import KEY, Limited, within_limits
from mqcast.launch import num_cores
from mqcast.nn.members import AnyNetwork
from mqcast.nn.position import reach_of
from mqcast.run import Run
from mqcast.settings import ModelConfig
from mqcast.train.distributed import joined, use_threads

ROWS_A_SHARD, LEAST_ROWS_A_SHARD, NUM_SHARDS = 2**20, 2**14, 16
WINDOWS_AT_A_TIME = 128
KEPT = "mqcast-forecast"  # the name of threads that stay
DIGEST_SIZE = 32  # bytes of SHA-256


def forecast(
    run: Run,
    panel: Panel,
    path: str | Path,
    *,
    first: Any = None,
    last: Any = None,
    max_unobserved_steps: int | None = None,
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the forecasts of the cutoffs from `first` to `last` to a Parquet file.

    `last` defaults to the panel's last observation, and `first` to `last`. A series that was not observed for more
    than `max_unobserved_steps` (default: the horizon) has ended and is not forecast.

    Under torchrun, all processes make the same call. After an interruption, the same call continues where it stopped.
    """
    plan = cutoff_plan(run, panel, first, last, max_unobserved_steps)
    return write_forecasts(run, panel, plan, path, device=device, on_progress=on_progress)


def write_forecasts(
    run: Run,
    panel: Panel,
    plan: CutoffPlan,
    path: str | Path,
    *,
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the forecasts of the creation times of a plan to a Parquet file."""
    panel.require_verified()
    path, network = Path(path), run.kept_network
    assemble = run.assembler(panel).on_windows(plan.config)
    shards = series_shards(panel, plan)
    folder = path.with_name(f".{path.name}.{_key(run, panel, plan)}")
    with joined(device) as ranks, contextlib.ExitStack() as stack:
        draft = stack.enter_context(claimed(path, "forecasting to", make_parents=True)) if ranks.is_first else path
        ranks.agree(1)  # no process forecasts before this one has claimed the path
        moved(network, ranks.device)
        files = [folder / f"{i:06}.arrow" for i in range(len(shards))]
        with Merger(files, path, draft) as merger:
            for i in ranks.claims(len(shards)):
                if _shard(files[i]) is None:
                    _write_shard(files[i], *shard_frame(run, network, assemble, plan, shards[i]))
                if ranks.is_first:
                    merger.take()
                    if on_progress is not None:
                        on_progress(i + 1, len(shards))
            ranks.agree(1)  # all shards are written
            if ranks.is_first:
                merger.finish()
                merger.limited.warn()
                shutil.rmtree(folder, ignore_errors=True)
        ranks.agree(1)
    return path


def forecast_frame(
    run: Run,
    panel: Panel,
    *,
    first: Any = None,
    last: Any = None,
    spans: Spans = (),
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> pl.DataFrame:
    """The forecasts of the cutoffs from `first` to `last` in memory, by one process; with spans, those of totals."""
    network = run.kept_network
    plan = cutoff_plan(run, panel, first, last)
    assemble, shards = run.assembler(panel).on_windows(plan.config), series_shards(panel, plan)
    frames, limited = [], Limited()
    num_threads = run.config.train.num_threads
    with joined(device, None) as ranks:
        moved(network, ranks.device)
        at_once = on_cores(ranks.device, plan, num_threads)
        for i, series in enumerate(shards):
            frame, limited_here = shard_frame(run, network, assemble, plan, series, at_once, spans)
            frames.append(frame)
            limited.add(limited_here)
            if on_progress is not None:
                on_progress(i + 1, len(shards))
    limited.warn()
    return pl.concat(frames)


def cutoff_plan(
    run: Run, panel: Panel, first: Any = None, last: Any = None, max_unobserved_steps: int | None = None
) -> CutoffPlan:
    """Windows with the cutoffs as their creation times; default: the panel's last observation.

    Each window contains all the history that its forecasts depend on, so that they do not depend on where it begins.
    (The memory of an LSTM has no end: it gets as much history as in training.)
    """
    trained, model = run.config.window, run.config.model
    history = max(context_of(model, trained.horizon), trained.num_steps if model.variant.is_recurrent else 1)
    window = trained.replace(
        history=history, num_trajectories=None, aligned=True, min_history=1, batch_size=WINDOWS_AT_A_TIME
    )
    return plan_cutoffs(window, panel, first, last, max_unobserved_steps)


def context_of(model: ModelConfig, horizon: int) -> int:
    """Steps before a creation time that its forecast may depend on."""
    events = 0 if model.variant.has_attention else reach_of(model, horizon)  # it looks back to the last event
    return model.context(horizon) + events


def series_shards(panel: Panel, plan: CutoffPlan) -> list[range]:
    """Ranges of neighbouring series with about ROWS_A_SHARD rows of forecasts at most, for any number of processes.

    There are enough shards to keep several processes busy, unless they would be very small. Series that are forecast
    only from later cutoffs do not change the bounds.
    """
    rows, known = plan.num_cutoffs * plan.config.horizon, plan.first_series
    size = max(1, min(ROWS_A_SHARD // rows, max(-(-known.size // NUM_SHARDS), LEAST_ROWS_A_SHARD // rows)))
    num = -(-known.size // size)
    bounds = [0, *(int(known[known.size * i // num]) for i in range(1, num)), panel.num_series]
    return [range(a, b) for a, b in pairwise(bounds)]


def on_cores(device: torch.device, plan: CutoffPlan, num_threads: int) -> Callable[..., Iterable[Any]]:
    """A `map` that works on a batch on each core of this process. Each batch is computed as by one core alone."""
    num_batches = -(-len(plan.series) // WINDOWS_AT_A_TIME)
    is_alone = min(num_cores() // num_threads, num_batches) < 2
    if device.type != "cpu" or (is_alone and torch.get_num_threads() == num_threads):
        return map
    return _kept_threads(max(1, num_cores() // num_threads), num_threads).map


@cache
def _kept_threads(num: int, num_threads: int) -> ThreadPoolExecutor:
    """Python threads that stay, each with this number of torch's, since changing that takes longer than a forecast."""
    return ThreadPoolExecutor(num, KEPT, use_threads, (num_threads,))


def moved(network: AnyNetwork, device: torch.device) -> None:
    """Move the network to the device, unless it is there."""
    if network.levels.device != device:
        network.to(device)


def shard_frame(
    run: Run,
    network: AnyNetwork,
    assemble: Assembler,
    plan: CutoffPlan,
    series: range,
    at_once: Callable[..., Iterable[Any]] = map,
    spans: Spans = (),
) -> tuple[pl.DataFrame, Limited]:
    """The forecasts of some series, sorted by series, cutoff and horizon or span, and which of them were limited."""
    wanted = [network.horizon + network.config.spans.index(span) for span in spans] or slice(network.horizon)
    num_rows = len(spans) or network.horizon

    @torch.inference_mode()
    def forecast_batch(windows: Windows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        batch = assemble(windows, assemble.begun_steps(windows)).to(network.levels.device)
        quantiles = network.quantiles(batch, windows.num_fcts, spans=bool(spans)).values
        return _rows(windows, batch.unscaled(quantiles[:, wanted]))

    part = plan.of_series(series)
    nothing = np.zeros(0, int), np.zeros(0, int), np.zeros((0, num_rows, len(network.config.quantiles)))
    parts_of_rows = [nothing, *(at_once(forecast_batch, part.batches()) if part else ())]
    of_series, cutoff, values = (np.concatenate(parts) for parts in zip(*parts_of_rows, strict=True))
    order = np.lexsort((cutoff, of_series))
    rows, typical = (of_series[order], cutoff[order]), assemble.target.scaler.typical_largest
    values = values[order]
    if spans:
        values = calibrated_spans(run, values, spans)
    elif run.calibrator is not None:
        values = run.calibrator.moved_grid(values)
    values, limited = within_limits(assemble.panel, *rows, values, typical, run.lower_bound, spans)
    if spans:
        return spans_frame(assemble.panel, *rows, values, network.config.quantiles, spans), limited
    values = zero_when_closed(assemble.target.target.closed, *rows, values)
    return rows_frame(assemble.panel, *rows, values, network.config.quantiles), limited


def calibrated_spans(run: Run, values: np.ndarray, spans: Spans) -> np.ndarray:
    """The (cutoffs, spans, levels) means over spans, whose totals are moved by their calibrator, if they have one."""
    moved = values.copy()
    for place, (first, last) in enumerate(spans):
        if (calibrator := run.span_calibrators.get((first, last))) is not None:
            length = last - first + 1
            moved[:, place] = calibrator.moved(length * values[:, place], np.full(len(values), last)) / length
    return moved


def zero_when_closed(closed: ClosedRows, series: np.ndarray, cutoff: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The (cutoffs, horizon, levels) values, and 0 for targets on which nothing can be sold."""
    if not closed or not len(values):
        return values
    rows, exists = closed.panel.rows_at(series, cutoff + 1, values.shape[1])
    return np.where((exists & closed(rows))[..., None], 0.0, values)


def _rows(windows: Windows, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Series, cutoff (as a step) and (horizon, level) values of the windows' creation times."""
    steps = windows.start[:, None] + np.arange(values.shape[2])
    wanted = (steps >= windows.first_fct[:, None]) & (steps <= windows.last_fct[:, None])
    of_series = np.broadcast_to(windows.series[:, None], steps.shape)
    return of_series[wanted], steps[wanted], values.transpose(0, 2, 1, 3)[wanted]


def _key(run: Run, panel: Panel, plan: CutoffPlan) -> str:
    """A digest of what the shards depend on, so that shards of another model, panel or time span are not reused."""
    digest = hashlib.sha256(run.weights_digest.encode())
    digest.update(run.calibrator.to_json().encode() if run.calibrator else b"")
    for part in (run.facts, run.config.model_dump(mode="json"), plan.config.model_dump(mode="json"), panel.fingerprint):
        digest.update(json.dumps(part, sort_keys=True).encode())
    for array in (plan.series, plan.first_fct, plan.last_fct):
        digest.update(np.ascontiguousarray(array, np.int64).data)
    return digest.hexdigest()[:16]


def _write_shard(file: Path, frame: pl.DataFrame, limited: Limited) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(file, error) from error
    packed, table = io.BytesIO(), frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    table = table.replace_schema_metadata({KEY: limited.to_json()})
    with pa.ipc.new_file(packed, table.schema) as writer:
        writer.write_table(table)
    content = packed.getvalue()
    write_file(
        file, content + _shard_digest(file, content), lasting=False
    )  # lost in a crash of the machine, it is computed again


def _shard(file: Path) -> pa.Table | None:
    """The rows of a shard; None if its file is missing or does not match the digest at its end."""
    try:
        content = memoryview(ArtifactFolder(file.parent, "it is computed again").read(file.name))
        if len(content) < DIGEST_SIZE or content[-DIGEST_SIZE:] != _shard_digest(file, content[:-DIGEST_SIZE]):
            return None
        return pa.ipc.open_file(pa.py_buffer(content[:-DIGEST_SIZE])).read_all()
    except (ArtifactError, OSError, pa.ArrowInvalid):
        return None


def _shard_digest(file: Path, content: bytes | memoryview) -> bytes:
    """A digest of the rows and of the file name, so that a shard under another name is not accepted."""
    return hashlib.sha256(f"{file.parent.name}/{file.name}".encode() + content).digest()


class Merger:
    """Appends shards to one Parquet file in their order, as they appear. Quantiles rarely repeat: no dictionary."""

    def __init__(self, files: list[Path], path: Path, draft: Path):
        self.files, self.path, self.draft = files, path, draft
        self.writer: pq.ParquetWriter | None = None
        self.num_taken, self.limited = 0, Limited()

    def __enter__(self) -> "Merger":
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:  # after an error or an interruption
            with contextlib.suppress(OSError):  # the first error is the one to report
                self.writer.close()

    def take(self) -> None:
        """Append the next shards, up to the first that is not written yet."""
        try:
            while self.num_taken < len(self.files) and (table := _shard(self.files[self.num_taken])) is not None:
                if self.writer is None:
                    repeated = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
                    self.writer = pq.ParquetWriter(self.draft, table.schema.remove_metadata(), use_dictionary=repeated)  # type: ignore[arg-type]
                self.writer.write_table(table.replace_schema_metadata())
                self.limited.add(Limited.from_metadata(table.schema.metadata))
                self.num_taken += 1
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def finish(self) -> None:
        self.take()
        if self.writer is None or self.num_taken < len(self.files):
            missing = self.files[self.num_taken]
            raise ArtifactError(
                f"{missing} is missing; make all processes write to the same file system, and forecast again"
            )
        try:
            self.writer.add_key_value_metadata({KEY: self.limited.to_json()})
            self.writer.close()
            put_in_place(self.draft, self.path)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.writer = None
