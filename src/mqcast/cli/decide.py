"""The command that turns forecasts and stock into orders."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mqcast.cli.app import AsJson, app
from mqcast.cli.forecasts import table_file, write_table
from mqcast.cli.output import tell
from mqcast.data.joined import joined_name


@app.command("orders")
def orders_command(
    forecast: Annotated[
        Path,
        typer.Argument(help="Parquet or CSV of forecasts from one cutoff, or of totals (a column 'span', in steps)."),
    ],
    stock: Annotated[Path, typer.Option(help="Parquet or CSV with id, on_hand and, if there are any, on_order.")],
    out: Annotated[Path, typer.Option(help="The orders, as .parquet or .csv.")],
    lead_time: Annotated[int, typer.Option(help="Steps before an order can serve demand.")] = 0,
    review_period: Annotated[int, typer.Option(help="Steps between orders.")] = 1,
    holding_cost: Annotated[float | None, typer.Option(help="Of a unit in stock at the end of a step.")] = None,
    shortage_cost: Annotated[float | None, typer.Option(help="Of a unit that is short.")] = None,
    service_level: Annotated[float | None, typer.Option(help="In place of costs: such as 0.95.")] = None,
    service: Annotated[str, typer.Option(help="What it means: 'cycle' (nothing is short) or 'fill' (rate).")] = "cycle",
    unit_cost: Annotated[float, typer.Option(help="Price of a unit, to value orders.")] = 0.0,
    pack_size: Annotated[float | None, typer.Option(help="Orders are whole packs.")] = None,
    min_order: Annotated[float, typer.Option(help="The smallest order.")] = 0.0,
    correlation: Annotated[float, typer.Option(help="Between steps, for forecasts of single steps.")] = 0.5,
    id: Annotated[str | None, typer.Option("--id", help="The column of series ids, or several: store,item.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what to order of each item, from its forecast and its stock.

    Example: [bold]mqcast orders forecasts.parquet --stock stock.csv --out orders.csv --service-level 0.95[/bold]
    """
    from mqcast.decide import Policy, orders

    table_file(out)
    options: dict[str, Any] = {"service": service}
    policy = Policy(
        lead_time,
        review_period,
        holding_cost,
        shortage_cost,
        service_level,
        **options,
        unit_cost=unit_cost,
        pack_size=pack_size,
        min_order=min_order,
    )
    table = orders(forecast, stock, policy, correlation=correlation, id=joined_name(id))
    write_table(table, out)
    ordered = int((table["order"] > 0).sum())
    facts = {"orders": str(out), "items": len(table), "ordered": ordered, "units": float(table["order"].sum())}
    tell(
        as_json, facts, f"{ordered} of {len(table)} items are ordered, {facts['units']:,.0f} units; orders are in {out}"
    )
