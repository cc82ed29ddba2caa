"""A small retailer, settings that train in a second, and a process that trains and may be killed.

As a program, `python train_samples.py FOLDER` trains in FOLDER, resuming what is there, and saves after every step.
Its environment may ask for accidents: DIE_WHILE_SAVING="stage number", KILL_RANK="rank step", STOP_AT="step".
"""

import hashlib
import os
import signal
import sys
import warnings
from functools import cache
from pathlib import Path

from mqcast import Panel
from mqcast.data.batch import Batch
from mqcast.errors import EventReachWarning, Interrupted
from mqcast.launch import is_worker, leave, was_restarted
from mqcast.nn.networks import Network
from mqcast.run import Run
from mqcast.settings import ModelConfig, RunConfig, ScalingConfig, TrainConfig, WindowConfig
from mqcast.simulate import World, lognormal_world
from mqcast.train import checkpoint, loop
from mqcast.train.records import Record, Step

HORIZON = 4
WINDOW = WindowConfig(horizon=HORIZON, history=12, num_fcts=8, batch_size=10)
MODEL = ModelConfig(hidden_dim=8, encoder_dilations=(1, 2, 4), lookback=8)
TRAIN = TrainConfig(learning_rate=3e-3, max_epochs=2, micro_batch=4, log_every=1, average=0.9)
CONFIG = RunConfig(window=WINDOW, scaling=ScalingConfig(by="past", log1p=True), model=MODEL, train=TRAIN)
STAGES = ("half written", "written", "tensors renamed", "half vouched", "vouched", "saved")


def config(**train) -> RunConfig:
    return CONFIG.replace(train=TRAIN.replace(**train))


@cache
def sample_world() -> World:
    return lognormal_world(12, 40, HORIZON, seed=3)


@cache
def sample_panel() -> Panel:
    world = sample_world()
    return Panel.from_frame(world.frame, world.schema, world.static, world.events)


def digest(run: Run | Path) -> str:
    folder = run.folder if isinstance(run, Run) else run
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def log_trajectories(path: Path) -> None:
    """Append to a file every series and creation time that a gradient is taken of, a line each."""
    loss = loop.Training._loss

    def logged(self: loop.Training, batch: Batch, leaf: int, network: Network):
        for series, start, is_fct in zip(batch.series.tolist(), batch.start.tolist(), batch.is_fct, strict=True):
            lines = [f"{series} {start + t}\n" for t in is_fct.nonzero().flatten().tolist()]
            with path.open("a") as file:
                file.write("".join(lines))
        return loss(self, batch, leaf, network)

    loop.Training._loss = logged


def die_while_saving(stage: str, save: int) -> None:
    """Kill this process, as `kill -9` would, at a stage of its save number `save`."""
    write_file, tidy, count = checkpoint.write_file, checkpoint.Checkpoints._tidy, 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write(path: Path, content: bytes | str) -> None:
        nonlocal count
        is_json = path.suffix == ".json"
        count += not is_json
        if count >= save and stage == ("half vouched" if is_json else "half written"):
            packed = content.encode() if isinstance(content, str) else content
            path.with_name(f".{path.name}.part").write_bytes(packed[: len(packed) // 2])
            die()
        if count >= save and stage == "written":
            Path.replace = lambda *_: die()
        write_file(path, content)
        if count >= save and stage == ("vouched" if is_json else "tensors renamed"):
            die()

    def tidy_and_die(self: checkpoint.Checkpoints, newest: str) -> None:
        tidy(self, newest)
        if stage == "saved" and count >= save:
            die()

    checkpoint.write_file = write
    checkpoint.Checkpoints._tidy = tidy_and_die


def after_step(record: Record) -> None:
    """Say that training has begun, and let happen what the environment asks for."""
    if not isinstance(record, Step):
        return
    sys.stdout.write(f"step {record.step}\n")
    sys.stdout.flush()
    if record.step == int(os.environ.get("STOP_AT", -1)):
        os.kill(os.getpid(), signal.SIGTERM)


def kill_rank(rank: int, step: int) -> None:
    """Kill one of the processes, once, before a step of its own."""
    run_step = loop.Training._run_step

    def killed(self: loop.Training, leaves, batches):
        if self.ranks.rank == rank and self.state.step == step and not was_restarted():
            os.kill(os.getpid(), signal.SIGKILL)
        return run_step(self, leaves, batches)

    loop.Training._run_step = killed


def main() -> None:
    warnings.simplefilter("ignore", EventReachWarning)
    if asked := os.environ.get("DIE_WHILE_SAVING"):
        stage, save = asked.rsplit(maxsplit=1)
        die_while_saving(stage, int(save))
    if asked := os.environ.get("KILL_RANK"):
        kill_rank(*map(int, asked.split()))
    if folder := os.environ.get("LOG_TO"):
        log_trajectories(Path(folder) / f"rank{os.environ.get('RANK', 0)}")
    try:
        loop.fit(
            sample_panel(), config(checkpoint_minutes=0.0), Path(sys.argv[1]), resume=True, listeners=(after_step,)
        )
        code = 0
    except Interrupted as stopped:
        code = 128 + stopped.signal
    if is_worker():
        leave(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
