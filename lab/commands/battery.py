"""`python -m lab battery`: models without a setting on every task, in one table."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lab.commands.options import app
from mqcast.cli.app import (
    AsJson,
    Changes,
    Config,
    said_layers,
)
from mqcast.cli.output import console
from mqcast.errors import ConfigError, MqcastError
from mqcast.settings.merge import tables_of

if TYPE_CHECKING:
    from lab.battery.job import Job

QUICK_WINDOWS, QUICK_MINUTES = 2, 3.0
RUN = "run: forecast and show the table; table: show it again from what is kept."
JUDGED = "The judged windows. Without it: the windows before them, on which changes of defaults are tried."
QUICK = (
    f"At most {QUICK_WINDOWS} windows of validation, and {QUICK_MINUTES:g} minutes a fit unless --minutes says others."
)
MINUTES = "CPU time of each fit; networks turn it into steps. Left out: as the defaults say."

Action = Annotated[Literal["run", "table"], typer.Argument(help=RUN)]
Out = Annotated[Path, typer.Option(help="Where forecasts, logs and records of all jobs are kept.")]
Data = Annotated[Path | None, typer.Option(help="The folder with the data sets' files.")]
Systems = Annotated[list[str] | None, typer.Option("--system", help="A model, by its name; repeat for more.")]
Tasks = Annotated[list[str] | None, typer.Option("--task", help="A task; repeat for more. Left out: all.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="A seed; repeat for more.")]
Label = Annotated[str | None, typer.Option(help="Another name of the results of one --system, such as with --set.")]
Minutes = Annotated[float | None, typer.Option("--minutes", "--max-minutes", help=MINUTES)]
Refit = Annotated[int | None, typer.Option(min=1, help="Fit again after so many windows. Left out: once.")]
Modules = Annotated[list[str] | None, typer.Option("--module", help="A Python file that registers models.")]
Against = Annotated[str | None, typer.Option(help="Also show the ratio of all losses to those of this label.")]
Results = Annotated[
    Path | None,
    typer.Option(help="A second folder for records and table, such as lab/results/battery; those in it are kept."),
]
Processes = Annotated[int, typer.Option(min=1, help="Jobs at the same time, of one thread each.")]


@app.command()
def battery(
    out: Out,
    action: Action = "run",
    data: Data = None,
    system: Systems = None,
    task: Tasks = None,
    seed: Seeds = None,
    label: Label = None,
    config: Config = None,
    set: Changes = None,
    judged: Annotated[bool, typer.Option("--judged", help=JUDGED)] = False,
    quick: Annotated[bool, typer.Option("--quick", help=QUICK)] = False,
    minutes: Minutes = None,
    refit: Refit = None,
    module: Modules = None,
    processes: Processes = 1,
    against: Against = None,
    results: Results = None,
    as_json: AsJson = False,
) -> None:
    """Judge models without a setting on all tasks, beside seasonal naive.

    What is finished is kept and not run again; an interrupted fit is resumed by the same command.

    Examples: [bold]python -m lab battery --data data --out runs/battery --system mqt --quick --processes 2[/bold],
    [bold]python -m lab battery table --out runs/battery --against mqt[/bold]
    """
    from lab.battery.job import Job
    from lab.battery.table import Results, write
    from lab.battery.tasks import TASKS, task_of
    from lab.experiments.systems import SEASONAL_NAIVE, import_models
    from mqcast import models

    mode, failed = "judged" if judged else "validation", []
    if action == "run":
        for name in module or []:
            import_models(name)
        systems = list(dict.fromkeys(system or [models.DEFAULT]))
        if label is not None and (len(systems) > 1 or not re.fullmatch(r"[\w.+-]+", label)):
            raise ConfigError(f"--label {label} is a name, without blanks, for the results of one --system")
        for name in systems:
            models.get(name)
        common: dict[str, Any] = {
            "mode": mode,
            "windows": QUICK_WINDOWS if quick and not judged else None,
            "data": None if data is None else str(data.resolve()),
            "command": command_line(sys.argv[1:]),
        }
        said = {
            "minutes": minutes if minutes is not None or not quick else QUICK_MINUTES,
            "refit": refit,
            "settings": tables_of(said_layers(config, set)),
            "modules": module or [],
        }
        tasks = [task_of(name).board.name for name in task or TASKS]
        jobs = [Job(name, SEASONAL_NAIVE, SEASONAL_NAIVE, **common) for name in tasks]
        for number in dict.fromkeys(seed or [0]):
            others = [one for one in systems if one != SEASONAL_NAIVE]
            names = {one: label or "-".join(re.findall(r"[\w.-]+", one)) for one in others}
            jobs += [Job(name, one, names[one], number, **common, **said) for name in tasks for one in others]
        failed = run_all(jobs, out, processes, quiet=as_json)
    found = Results(out, mode, results)
    texts = write(found, [out, *([results] if results else [])], against)
    if results is not None:
        for record in found.records:
            record.write(results)
    typer.echo(texts["json" if as_json else "md"], nl=False)
    if failed:
        raise MqcastError(
            f"{len(failed)} of the jobs failed; the first, {failed[0]}: see its log.txt; then run them again"
        )


def command_line(arguments: Sequence[str]) -> str:
    """The command, for records: of paths, which differ from machine to machine, only the names."""
    return shlex.join(["python", "-m", "lab", *(Path(one).name if "/" in one else one for one in arguments)])


def run_all(jobs: Sequence["Job"], out: Path, processes: int, quiet: bool = False) -> list[str]:
    """Run each job in a process of its own, some at a time; returns the folders of those that failed."""
    from lab.battery.job import RECORD, Record

    folders = [job.begin(out) for job in jobs]
    waiting = [(job, folder) for job, folder in zip(jobs, folders, strict=True) if not (folder / RECORD).exists()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}

    def run(number: int, job: "Job", folder: Path) -> bool:
        with (folder / "log.txt").open("ab") as log:
            command = [sys.executable, "-m", "lab.battery.job", str(folder)]
            done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
        is_done = done.returncode == 0 and (folder / RECORD).exists()
        if not quiet:
            record = Record.read(folder / RECORD) if is_done else None
            facts = f"SQL {record.metrics['SQL']:.4f}, {record.wall_seconds / 60:.1f} min" if record else "failed"
            console.print(f"{number} of {len(waiting)}: {job.name}: {facts}", highlight=False, soft_wrap=True)
        return is_done

    pool = ThreadPoolExecutor(processes)
    try:
        done = list(pool.map(lambda one: run(*one), [(i + 1, *pair) for i, pair in enumerate(waiting)]))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, which reaches the jobs too, no other is begun
    return [str(folder) for (_, folder), is_done in zip(waiting, done, strict=True) if not is_done]
