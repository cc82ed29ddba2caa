"""Small files in the raw formats of the four public data sets, written as their owners write them."""

import datetime as dt
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)
SYMBOLS = {".AEX": "EMEA", ".N225": "APAC ", ".RUT": "EMEA", ".SPX": "AMER", ".SSEC": "APAC"}


def zipped(folder: Path, archive: str, *names: str) -> None:
    """Put files into a .zip, inside a folder as some archives have it, and take the plain ones away."""
    with zipfile.ZipFile(folder / archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            file.write(folder / name, f"inner/{name}")
            (folder / name).unlink()


def load_at(customer: int, stamp: dt.datetime) -> float:
    """A load that is never 0: a daily wave, a weekly one, and its own size."""
    wave = np.sin(2 * np.pi * (stamp.hour + stamp.minute / 60) / 24) + 0.3 * np.cos(2 * np.pi * stamp.weekday() / 7)
    return round(float(10.0**customer * (2 + wave + 0.1 * np.sin(stamp.toordinal()))), 6)


def write_electricity(
    folder: Path,
    first: dt.datetime = dt.datetime(2013, 12, 30),
    lives: dict[str, tuple[dt.datetime, dt.datetime]] | None = None,
    load: Callable[[int, dt.datetime], float] = load_at,
    step: dt.timedelta = dt.timedelta(minutes=15),
) -> Path:
    """Stamps from `first` to 2014-09-09, and one on 2011-01-01; loads are 0 outside `lives`."""
    lives = lives or {f"MT_{i:03}": (dt.datetime(2014, 1, 1), dt.datetime(2014, 12, 1)) for i in (1, 2)}
    stamps = [dt.datetime(2011, 1, 1, 0, 15)]
    while (stamp := first + len(stamps) * step - step) <= dt.datetime(2014, 9, 9):
        stamps.append(stamp)
    lines = [";".join(['""', *(f'"{name}"' for name in lives)])]
    for stamp in stamps:
        loads = [load(i, stamp) if a <= stamp <= b else 0 for i, (a, b) in enumerate(lives.values())]
        lines.append(";".join([f'"{stamp}"', *(str(value).replace(".", ",") for value in loads)]))
    path = folder / "LD2011_2014.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def write_traffic(
    folder: Path, num_days: int = 175, num_sensors: int = 2, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Days in a random order over two files; returns (days, sensors, 144) occupancies and weekdays in order of time."""
    rng = np.random.default_rng(seed)
    time = np.arange(num_days * 144).reshape(num_days, 1, 144)
    size = 1 + np.arange(num_sensors)[:, None]
    values = np.round(
        0.05 * size * (1.2 + np.sin(2 * np.pi * time / 144)) + 0.01 * rng.random((num_days, num_sensors, 144)), 4
    )
    weekdays = 1 + (np.arange(num_days) + np.arange(num_days) // 50) % 7  # a day is skipped now and then
    order = rng.permutation(num_days)
    cut = num_days * 3 // 5

    def one_line(numbers) -> str:
        return "[" + " ".join(str(number) for number in numbers) + "]\n"

    def matrix(day: int) -> str:
        return "[" + ";".join(" ".join(f"{value:g}" for value in row) for row in values[day]) + "]\n"

    for name, days in (("train", order[:cut]), ("test", order[cut:])):
        (folder / f"PEMS_{name}").write_text("".join(matrix(day) for day in days))
        (folder / f"PEMS_{name}labels").write_text(one_line(weekdays[days]))
    (folder / "randperm").write_text(one_line(order + 1))
    (folder / "stations_list").write_text(one_line(400000 + np.arange(num_sensors)))
    return values, weekdays


def write_oxford_man(folder: Path, first: dt.date = dt.date(2013, 1, 1), last: dt.date = dt.date(2019, 12, 31)) -> Path:
    """Weekdays, with holidays that differ by symbol, a volatility of 0 and a missing return now and then."""
    rng = np.random.default_rng(1)
    lines = [",Symbol,open_price,open_to_close,rv5_ss,nobs"]
    for i, symbol in enumerate(SYMBOLS):
        level = -9.0
        for day in (first + k * DAY for k in range((last - first).days + 1)):
            if day.weekday() >= 5 or (day.toordinal() + i) % 40 == 0:
                continue
            level = -9 + 0.9 * (level + 9) + 0.3 * rng.standard_normal()
            vol = "0.0" if day.toordinal() % 97 == 0 else repr(float(np.exp(level)))
            gain = "" if day.toordinal() % 61 == 0 else f"{0.01 * rng.standard_normal():.6f}"
            lines.append(f"{day} 00:00:00+00:00,{symbol},100.0,{gain},{vol},78")
    path = folder / "oxfordmanrealizedvolatilityindices.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def write_favorita(
    folder: Path,
    trajectories: dict[tuple[int, int], tuple[str, str]] | None = None,
    returns: tuple[int, int] | None = None,
) -> dict[tuple[int, int, str], float]:
    """All six files; sales on most days of each life. Returns what was sold by store, item and day."""
    trajectories = trajectories or {(s, i): ("2014-12-20", "2016-07-01") for s in (1, 2) for i in (103, 1047679)}
    sold, rows = {}, []
    for (store, item), (first, last) in trajectories.items():
        day = dt.date.fromisoformat(first)
        for n in range((dt.date.fromisoformat(last) - day).days + 1):
            date = day + n * DAY
            is_end = str(date) in (first, last)
            if not is_end and ((n + store + item) % 5 == 0 or (date.month, date.day) == (1, 1)):
                continue  # no sale, and on the first of January nowhere
            amount = round(5 + 3 * np.sin(2 * np.pi * date.weekday() / 7) + (n % 3) + store, 3)
            sold[store, item, str(date)] = amount
            if (store, item) == returns and str(date) == "2015-06-03":
                amount = -2.0
            rows.append((str(date), store, item, amount, n % 11 == 0))
    rows.sort()
    lines = [f"{i},{d},{s},{n},{a},{p}" for i, (d, s, n, a, p) in enumerate(rows)]
    _write(folder, "train.csv", "id,date,store_nbr,item_nbr,unit_sales,onpromotion", lines)
    _write(
        folder,
        "stores.csv",
        "store_nbr,city,state,type,cluster",
        ["1,Quito,Pichincha,D,13", "2,Ambato,Tungurahua,A,14"],
    )
    items = sorted({item for _, item in trajectories})
    _write(
        folder,
        "items.csv",
        "item_nbr,family,class,perishable",
        [f"{i},GROCERY I,{1000 + i % 7},{i % 2}" for i in items],
    )
    days = [dt.date(2014, 12, 1) + n * DAY for n in range(640)]
    prices = ["" if day.weekday() >= 5 or day == dt.date(2015, 1, 1) else f"{50 + day.day / 10}" for day in days]
    _write(folder, "oil.csv", "date,dcoilwtico", [f"{d},{p}" for d, p in zip(days, prices, strict=True)])
    moved = [f"{d},{s},{1000 + 10 * s + d.day}" for d in days for s in (1, 2) if d.day != 13]
    _write(folder, "transactions.csv", "date,store_nbr,transactions", moved)
    holidays = [
        "2015-04-14,Holiday,Local,Quito,Fiesta de Quito,False",
        "2015-05-01,Holiday,National,Ecuador,Dia del Trabajo,False",
        "2015-07-03,Holiday,Regional,Tungurahua,Fiesta de Tungurahua,False",
        "2015-10-09,Holiday,National,Ecuador,Independencia,True",
        "2016-01-08,Holiday,National,Ecuador,Puente,False",
        "2016-05-01,Event,National,Ecuador,Terremoto,False",
        "2016-05-01,Holiday,National,Ecuador,Dia del Trabajo,False",
    ]
    _write(folder, "holidays_events.csv", "date,type,locale,locale_name,description,transferred", holidays)
    return sold


def write_store_sales(folder: Path) -> None:
    """Two families in two stores from 2014-12-20 to 2016-07-01, without a sale now and then, without Christmas."""
    days = [day for n in range(560) if (day := dt.datetime(2014, 12, 20) + n * DAY).strftime("%m-%d") != "12-25"]
    rows = [
        {
            "unique_id": f"{store}_{family}",
            "ds": day,
            "y": 0.0 if (n + store) % 13 == 0 else 20.0 + day.weekday() + store,
        }
        | {"onpromotion": n % 4, "store_nbr": store, "family": family}
        for store in (1, 2)
        for family in ("EGGS", "MEATS")
        for n, day in enumerate(days)
    ]
    sales = pl.DataFrame(rows).with_columns(
        city=pl.lit("Quito"), state=pl.lit("Pichincha"), type=pl.lit("D"), cluster=pl.lit(13)
    )
    sales.write_parquet(folder / "store_sales_train.parquet")
    moved = [{"unique_id": f"{store:02}", "ds": day, "y": 1000.0 + day.day} for store in (1, 2) for day in days]
    pl.DataFrame(moved).write_parquet(folder / "favorita_transactions_daily.parquet")
    pl.DataFrame({"ds": days, "oil_wti": [50.0 + day.day / 10 for day in days]}).write_parquet(
        folder / "favorita_oil.parquet"
    )
    holiday = {"ds": dt.datetime(2015, 5, 1), "locale": "National", "locale_name": "Ecuador"}
    pl.DataFrame([holiday | {"description": "Dia del Trabajo", "transferred": 0}]).write_parquet(
        folder / "favorita_holidays.parquet"
    )


def _write(folder: Path, name: str, header: str, lines: list[str]) -> None:
    (folder / name).write_text("\n".join([header, *lines]) + "\n")
