"""Commands about training: fit, search, curve, bench."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mqcast.arguments import path_of
from mqcast.cli.app import (
    AsJson,
    Changes,
    Config,
    Device,
    Horizon,
    Model,
    Packed,
    Processes,
    app,
    console,
    in_processes,
    listening,
    run_settings,
    said_tables,
    tell,
)
from mqcast.data.panel import Panel
from mqcast.durable import make_parent, write_file
from mqcast.errors import ArtifactError
from mqcast.launch import is_first, was_restarted
from mqcast.settings import SearchConfig


@app.command("fit")
def fit_command(
    panel: Packed,
    run: Annotated[Path, typer.Argument(help="Where to write the run.")],
    horizon: Horizon = None,
    model: Model = None,
    config: Config = None,
    set: Changes = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is there.")] = False,
    start_from: Annotated[Path | None, typer.Option(help="A trained run whose weights this one begins with.")] = None,
    processes: Processes = None,
    device: Device = "auto",
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Send settings and metrics to MLflow.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a network on a packed panel.

    Ctrl-C saves; the same command with [bold]--resume[/bold] goes on, to the bit. On several machines:
    [bold]torchrun --nnodes 2 --nproc-per-node 8 … -m mqcast fit …[/bold] with a shared folder.

    Examples: [bold]mqcast fit panel runs/first --horizon 13[/bold],
    [bold]mqcast fit panel runs/first --config run.toml --set train.max_epochs=20[/bold]
    """
    from mqcast.run import Run
    from mqcast.train.loop import fit
    from mqcast.train.memory import most_windows
    from mqcast.train.records import read_metrics

    settings = run_settings(said_tables(config, set or []), panel, model, horizon)
    at_a_time = settings.train.micro_batch or most_windows(settings.window.batch_size)
    in_processes(processes, device, -(-settings.window.batch_size // at_a_time))
    with listening(settings, run.name, mlflow, quiet=as_json) as listeners:
        done = fit(
            Panel.open(panel),
            settings,
            run,
            resume=resume or was_restarted(),
            start_from=Run.open(start_from) if start_from else None,
            listeners=listeners,
            device=device,
        )
    if is_first():
        epochs = [line for line in read_metrics(done.metrics) if line["record"] == "epoch"]
        kept = [line for line in epochs if line["is_best"]] if settings.train.patience else []
        last = (kept or epochs)[-1]
        tell(as_json, {"run": str(done.folder)} | last, f"trained {last['step']:,} steps; the run is in {done.folder}")


@app.command("search")
def search_command(
    panel: Packed,
    folder: Annotated[Path, typer.Argument(help="Where to write the trials and what they found.")],
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the tables that fit takes, and \\[search].")
    ] = None,
    horizon: Horizon = None,
    set: Changes = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train with many settings and say which has the least validation loss; left out: the paper's grid of nine.

    Interrupted, the same command goes on where it was.

    Example: [bold]mqcast search panel searches/first --config search.toml[/bold]
    """
    from mqcast.train.search import search, trials_table

    tables = said_tables(config, set or [])
    wanted, settings = SearchConfig(**tables.pop("search", {})), run_settings(tables, panel, None, horizon)
    with listening(settings, folder.name, mlflow=False, quiet=as_json) as listeners:
        best = search(Panel.open(panel), settings, wanted, folder, listeners=listeners, device=device)
    if is_first():
        if not as_json:
            console.print(trials_table(best))
        facts = {"best": best.name, "run": str(best.run.folder), "trials": [asdict(trial) for trial in best.trials]}
        tell(as_json, facts, f"the best run is in {best.run.folder}")


@app.command("curve")
def curve_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, done or not.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("curve.html"),
    as_json: AsJson = False,
) -> None:
    """Draw the learning curves of one or several runs as a page that works offline.

    Example: [bold]mqcast curve searches/first/trials/* --out curve.html[/bold]
    """
    from mqcast.report.figures import learning_curve
    from mqcast.report.page import figure_page
    from mqcast.train.records import read_metrics

    names = [run.name for run in runs]
    metrics = {}
    for run in runs:
        if not (run / "metrics.jsonl").exists():
            raise ArtifactError(f"no metrics.jsonl in {run}; name the folder of a run that has begun")
        metrics[run.name if names.count(run.name) == 1 else str(run)] = read_metrics(run / "metrics.jsonl")
    make_parent(path_of("out", out))
    write_file(out, figure_page(learning_curve(metrics)))
    tell(as_json, {"curve": str(out), "runs": list(metrics)}, f"the learning curve is in {out}")


@app.command("bench")
def bench_command(
    model: Annotated[str, typer.Option(help="mqt, mqt-nods, mqt-all, mqcnn or mqrnn.")] = "mqt",
    items: Annotated[int, typer.Option(min=2, help="Simulated items.")] = 200,
    horizon: Annotated[int, typer.Option(min=1, help="Weeks ahead.")] = 13,
    steps: Annotated[int, typer.Option(min=6, help="Training steps; the first five do not count.")] = 30,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure this machine: training trajectories and forecasts a second, on simulated data, by one process.

    Example: [bold]mqcast bench --model mqcnn --horizon 26[/bold]
    """
    from mqcast.bench import measure

    found = measure(model, items, horizon, steps, device)
    text = f"{model}: {found['trajectories_per_second']:,.0f} trajectories/s in training, "
    tell(as_json, found, f"{text}{found['forecasts_per_second']:,.0f} forecasts/s of {horizon} weeks each")
