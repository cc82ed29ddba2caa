"""A small world as the report sees it, and attention that no network had to learn."""

import base64
import gzip
import json
import re
from collections.abc import Sequence
from functools import cache

import polars as pl

from mqcast import Panel
from mqcast.report.sources import Sources, Trained
from mqcast.simulate import World, lognormal_world

LEVELS, HORIZON, FIRST, LAST = (0.1, 0.5, 0.9), 4, 40, 51


@cache
def world() -> World:
    return lognormal_world(12, 52, HORIZON)


@cache
def forecasts() -> dict[str, pl.DataFrame]:
    """The oracle, and one who always says a fifth more."""
    best = world().oracle_forecasts(LEVELS, FIRST, LAST)
    return {"good": best, "high": best.with_columns(pl.col("^q.*$") * 1.2)}


@cache
def panel() -> Panel:
    return Panel.from_frame(world().frame, world().schema, world().static, world().events)


def sources(**changes) -> Sources:
    return Sources.of(forecasts(), world().actuals, **{"panel": panel()} | changes)


def explain(ids: Sequence[str]) -> pl.DataFrame:
    """Looks at the cutoff (0.6) and the week before (0.4), and at one earlier forecast of the same date (1)."""
    rows = forecasts()["good"].filter(pl.col("unique_id").is_in(list(ids)))
    keys = rows.select("unique_id", "cutoff", "ds", "horizon")
    parts = [
        keys.with_columns(block=pl.lit(block), looked_at=pl.col("cutoff").dt.offset_by(away), weight=pl.lit(weight))
        for block, away, weight in (("history", "0w", 0.6), ("history", "-1w", 0.4), ("feedback", "-1w", 1.0))
    ]
    return pl.concat(parts)


def trained() -> Trained:
    weeks = world().frame["ds"].unique().sort().to_list()
    codes = [(week, channel, float(i % 3 * channel)) for i, week in enumerate(weeks) for channel in range(3)]
    lines = [{"record": "step", "step": i, "epoch": 0, "loss": 1 / i, "seconds": 1.0} for i in range(1, 5)]
    return Trained(
        metrics=lines,
        config="[model]\nmodel = 'mqt'\n",
        facts={"seed": "7"},
        explain=explain,
        encodings=pl.DataFrame(codes, schema=["ds", "channel", "value"], orient="row"),
    )


def inside(page: str, name: str):
    """The JSON in one of the page's scripts."""
    found = re.search(rf'<script type="application/json" id="data-{name}">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def chunks(page: str) -> list:
    """The index of items, then the chunks, as the browser reads them."""
    found = re.findall(r'<script type="text/plain" class="chunk">(.*?)</script>', page)
    return [json.loads(gzip.decompress(base64.b64decode(text))) for text in found]


def items_of(page: str) -> list:
    """The items of a report, each with its id and why it is there."""
    index, *parts = chunks(page)
    items = [item for part in parts for item in part]
    return [item | {"id": id, "why": why} for item, id, why in zip(items, index["ids"], index["why"], strict=True)]
