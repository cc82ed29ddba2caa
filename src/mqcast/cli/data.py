"""Commands about data: init, pack, inspect, demo."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mqcast.cli.app import AsJson, app, progress
from mqcast.cli.output import console, print_json, tell
from mqcast.data.joined import joined_name, with_joined_id
from mqcast.data.panel import Panel, pack
from mqcast.data.plan import with_plan
from mqcast.data.schema import Schema
from mqcast.data.source import open_source
from mqcast.data.summary import Summary, summarise
from mqcast.durable import write_file
from mqcast.errors import ArtifactError, ConfigError, quoted


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where to write.")] = Path("demo"),
    items: Annotated[int, typer.Option(help="How many items to simulate.", min=2)] = 400,
    steps: Annotated[
        int | None, typer.Option(help="Training steps of each network; default: as many as take some minutes.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Simulate a retailer, train MQTransformer and MQ-CNN, evaluate every creation time, and write a report and a
    page on the coming weeks.

    After an interruption, the same command continues where it stopped.

    Example: [bold]mqcast demo --items 1000 --steps 2000[/bold]
    """
    from mqcast.demo import ACCURACY, VOLATILITY, accuracy_rows, run_demo, volatility_rows

    result = run_demo(folder, items, seed, steps, lambda text: None if as_json else console.print(text))
    if as_json:
        print_json(asdict(result))
        return
    console.print(_summary_table(result.summary))
    console.print(f"\nEvaluated on {result.scored}:", highlight=False)
    for title, headings, rows in (
        ("Quantile risk: lower is better", ACCURACY, accuracy_rows(result.table)),
        (
            "Excess volatility: 0 is best, positive means unexplained revisions",
            VOLATILITY,
            volatility_rows(result.table),
        ),
    ):
        table = Table(title=title, title_justify="left")
        for heading in headings:
            table.add_column(heading, justify="left" if heading == "forecaster" else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(f"the report on the past is {result.report}", highlight=False, soft_wrap=True)
    console.print(f"the coming weeks are in {result.page} ({result.seconds:.0f} s)", highlight=False, soft_wrap=True)


@app.command("init")
def init_command(
    frame: Annotated[str, typer.Argument(help="Parquet or CSV: file, folder or quoted glob of long rows.")],
    out: Annotated[Path, typer.Option(help="The TOML file to write.")] = Path("mqcast.toml"),
    horizon: Annotated[int, typer.Option(min=1, help="Steps ahead.")] = 13,
    id: Annotated[
        str | None, typer.Option("--id", help="The column of series ids, or several: store,item; left out: guessed.")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", help="The column of dates; left out: guessed.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="The column to forecast; left out: guessed.")] = None,
    future: Annotated[
        str | None, typer.Option(help="A second file of what is planned after the last sale: id, date, promotions …")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at all rows and write a first TOML file: column roles guessed, settings shown, every line explained.

    Examples: [bold]mqcast init sales.parquet --horizon 26[/bold],
    [bold]mqcast init sales.parquet --future plan.parquet[/bold]
    """
    from mqcast.starter import look_at, starter_toml, with_plan_looked_at

    if out.exists():
        raise ArtifactError(f"{out} already exists; choose another with --out, or delete it")
    look = look_at(open_source(frame), joined_name(id), time, target)
    look = look if future is None else with_plan_looked_at(look, future)
    text, trouble = starter_toml(look, horizon, frame)
    write_file(out, text)
    if trouble is not None:
        raise ConfigError(f"{out} is written, but the data cannot be packed like that: {trouble}")
    tell(
        as_json,
        {"config": str(out), "schema": look.schema.model_dump(mode="json")},
        f"{out} is written; read it before you use it",
    )


@app.command("pack")
def pack_command(
    frame: Annotated[str, typer.Argument(help="Parquet or CSV: file, folder or quoted glob of long rows.")],
    folder: Annotated[Path, typer.Argument(help="Where to write the panel.")],
    config: Annotated[
        Path | None, typer.Option(help="TOML file with a table \\[schema], instead of these options.")
    ] = None,
    target: Annotated[str, typer.Option(help="The column to forecast.")] = "y",
    id: Annotated[str, typer.Option(help="The column of series ids, or several: store,item.")] = "unique_id",
    time: Annotated[str, typer.Option(help="The column of dates.")] = "ds",
    freq: Annotated[
        str | None, typer.Option(help="'h', 'D', 'W-SUN', 'MS' …; left out: inferred from the dates.")
    ] = None,
    static: Annotated[list[str] | None, typer.Option(help="Column with one value per series; repeatable.")] = None,
    past: Annotated[list[str] | None, typer.Option(help="Column known only up to the cutoff; repeatable.")] = None,
    known: Annotated[list[str] | None, typer.Option(help="Column known ahead, such as a price; repeatable.")] = None,
    event: Annotated[list[str] | None, typer.Option(help="Column shared by all series; repeatable.")] = None,
    fill: Annotated[
        list[str] | None, typer.Option(help="What a missing value of a known column means: markdown=0; repeatable.")
    ] = None,
    category: Annotated[
        list[str] | None, typer.Option(help="Column of numbers to treat as categories; repeat the option for more.")
    ] = None,
    holidays: Annotated[
        list[str] | None, typer.Option(help="Country or region, such as US or DE-BY; repeat the option for more.")
    ] = None,
    observed: Annotated[str | None, typer.Option(help="Column of flags: false where demand was not observed.")] = None,
    time_grid: Annotated[str, typer.Option(help="'calendar', or 'rows': each row is the next step.")] = "calendar",
    like: Annotated[
        Path | None,
        typer.Option(help="A packed panel to take roles and categories from: the one a run was trained on."),
    ] = None,
    static_table: Annotated[str | None, typer.Option(help="Parquet or CSV with one row per series.")] = None,
    event_table: Annotated[str | None, typer.Option(help="Parquet or CSV with one row per date.")] = None,
    future: Annotated[
        str | None, typer.Option(help="Parquet or CSV of what is planned after the last sale: id, date, known columns.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Validate a frame of any size and pack it into a folder, for training from disk.

    Example: [bold]mqcast pack sales.parquet panel --freq W --known promo --known price --holidays US[/bold]
    """
    options: dict[str, Any] = {
        "target": target,
        "id": joined_name(id),
        "time": time,
        "freq": freq,
        "observed": observed,
        "time_grid": time_grid,
        "static": static or (),
        "past": past or (),
        "known": known or (),
        "events": event or (),
        "holidays": holidays or (),
        "fill": dict(_fill(one) for one in fill or ()),
        "kinds": dict.fromkeys(category or (), "category"),
    }
    given = {name: value for name, value in options.items() if value != Schema.model_fields[name].default}
    ways = [way for way, is_given in {"--config": config, "--like": like}.items() if is_given is not None]
    if len(ways) + bool(given) > 1:
        raise ConfigError(f"give only one of {', '.join(ways + ['--' + name for name in given])}")
    schema = Schema(**options) if not ways else None if config is None else Schema.from_toml(config, table="schema")
    other = None if like is None else Panel.open(like)
    columns = other.schema if other is not None else Schema.of(schema)
    rows = with_joined_id(open_source(frame), columns.id)
    rows = rows if future is None else with_plan(rows, future, columns)
    with progress("packing", quiet=as_json) as on_progress:
        panel = pack(rows, folder, schema, static_table, event_table, like=other, on_progress=on_progress)
    _show_panel(panel, as_json)


def _fill(text: str) -> tuple[str, float | str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"--fill is {quoted(text)}; give a column and a value: --fill markdown=0")
    try:
        return name, float(value)
    except ValueError:
        return name, value


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="A packed panel.")],
    verify: Annotated[bool, typer.Option(help="Verify every byte; this takes a while for a large panel.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show what a packed panel contains, after verifying every byte of it.

    Example: [bold]mqcast inspect panel[/bold]
    """
    panel = Panel.open(folder)
    if verify:
        panel.verify()
    _show_panel(panel, as_json)


def _show_panel(panel: Panel, as_json: bool) -> None:
    summary = summarise(panel)
    if as_json:
        print_json(asdict(summary) | {"fingerprint": panel.fingerprint})
    else:
        console.print(_summary_table(summary))
        console.print(f"fingerprint {panel.fingerprint}", highlight=False)


def _summary_table(summary: Summary) -> Table:
    table = Table(title="Panel", title_justify="left", show_header=False)
    table.add_row("series", f"{summary.num_series:,}, of {summary.shortest:,} to {summary.longest:,} steps")
    table.add_row("rows", f"{summary.num_rows:,} in {summary.num_bytes / 2**20:,.1f} MiB")
    table.add_row("dates", f"{summary.first} to {summary.last}, {summary.freq}")
    table.add_row(
        "target", f"{summary.missing_share:.1%} of steps missing, {summary.zero_share:.1%} of the rest are zero"
    )
    for role, names in summary.columns.items():
        table.add_row(role, ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else ""))
    return table
