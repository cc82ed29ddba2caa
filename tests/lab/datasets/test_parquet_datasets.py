"""Loaders of real data, on small files of the same layout."""

import datetime as dt
from importlib import import_module

import numpy as np
import polars as pl
import pytest

from lab.datasets import load, names
from lab.datasets.fev import TASKS
from lab.datasets.source_files import SourceFiles
from mqcast.errors import ConfigError, MissingColumnError, SourceError

PARQUET = [
    name for name in names() if getattr(import_module(f"lab.datasets.{name}"), "SOURCE", SourceFiles("", "")).columns
]


def days(first: dt.datetime, number: int, step: str = "1d") -> pl.Series:
    return pl.datetime_range(first, interval=step, end=first + dt.timedelta(days=10_000), eager=True)[:number]


def long(ids: list[str], dates: pl.Series, **columns) -> pl.DataFrame:
    """The same dates for every id; columns are functions of the row's number."""
    rows = pl.DataFrame({"unique_id": ids}).join(pl.DataFrame({"ds": dates}), how="cross")
    made = {name: pl.Series([of(i) for i in range(rows.height)]) for name, of in columns.items()}
    return rows.with_columns(pl.col("unique_id").cast(pl.Categorical), **made)


@pytest.fixture
def folder(tmp_path):
    """All data sets, as small as can be."""
    long(
        ["0001", "0002"],
        days(dt.datetime(2013, 1, 1), 120),
        y=lambda i: float(100 + i % 7) * (i % 7 != 6),
        customers=lambda i: i % 5,
        open=lambda i: int(i % 7 != 6),
        promo=lambda i: i // 7 % 2,
        state_holiday=lambda i: "a" if i % 120 == 0 else "0",
        school_holiday=lambda i: int(i % 120 < 5),
    ).write_parquet(tmp_path / "rossmann_daily.parquet")
    pl.DataFrame(
        {
            "unique_id": ["0001", "0002"],
            "store_type": ["c", "a"],
            "assortment": ["a", "b"],
            "state": ["HE", "BY"],
            "competition_distance_m": [1270.0, None],
            "competition_open_since_month": [3, None],
            "competition_open_since_year": [2013, None],
            "promo2": [1, 0],
            "promo2_since_week": [7, None],
            "promo2_since_year": [2013, None],
            "promo2_interval": ["Mar,Jun,Sept,Dec", None],
        }
    ).write_parquet(tmp_path / "rossmann_static.parquet")
    long(["A_CA_1", "A_WI_1", "B_CA_1"], days(dt.datetime(2016, 1, 1), 40), y=lambda i: i % 3).write_parquet(
        tmp_path / "m5_item_daily.parquet"
    )
    names = [("A_CA_1", "A", "CA_1", "CA"), ("A_WI_1", "A", "WI_1", "WI"), ("B_CA_1", "B", "CA_1", "CA")]
    pl.DataFrame(
        [(i, item, "D1", "C1", store, state) for i, item, store, state in names],
        schema=["unique_id", "item_id", "dept_id", "cat_id", "store_id", "state_id"],
        orient="row",
    ).write_parquet(tmp_path / "m5_static.parquet")
    dates = days(dt.datetime(2016, 1, 1), 60)
    pl.DataFrame({"ds": dates}).with_columns(
        wm_yr_wk=pl.int_range(60) // 7 + 11600,
        event_name_1=pl.when(pl.int_range(60) == 30).then(pl.lit("SuperBowl")),
        event_name_2=pl.lit(None, pl.String),
        snap_ca=(pl.int_range(60) % 10 == 0).cast(pl.Int8),
        snap_tx=pl.lit(0, pl.Int8),
        snap_wi=(pl.int_range(60) % 10 == 5).cast(pl.Int8),
    ).write_parquet(tmp_path / "m5_calendar.parquet")
    pl.DataFrame(
        [(store, item, 11600 + week, 2.0 if week != 2 else 1.0) for _, item, store, _ in names for week in range(6)],
        schema=["store_id", "item_id", "wm_yr_wk", "sell_price"],
        orient="row",
    ).write_parquet(tmp_path / "m5_prices.parquet")
    weekly = long(
        ["1_10", "2_10"],
        days(dt.datetime(2009, 1, 14), 20, "1w"),
        y=lambda i: float(i % 4 + 1),
        visits=lambda i: i % 4,
        households=lambda i: i % 4,
        price=lambda i: 2.0 if i % 5 else 1.5,
        base_price=lambda i: None if i == 7 else 2.0,
        feature=lambda i: int(i % 5 == 0),
        display=lambda i: 0,
        tpr_only=lambda i: 0,
    )
    ids = weekly["unique_id"].cast(pl.String).str.split_exact("_", 1).struct.unnest()
    weekly = weekly.with_columns(store_id=ids["field_0"], upc_id=ids["field_1"])
    weekly.filter(~pl.int_range(40).is_in([4, 5])).write_parquet(tmp_path / "frat_weekly.parquet")
    pl.DataFrame(
        {"store_id": ["1", "2"], "address_state_prov_code": ["TX", "OH"], "seg_value_name": ["VALUE", "UPSCALE"]}
    ).write_parquet(tmp_path / "frat_stores.parquet")
    pl.DataFrame(
        {"upc_id": ["10"], "manufacturer": ["M"], "category": ["SNACK"], "sub_category": ["PRETZELS"]}
    ).write_parquet(tmp_path / "frat_products.parquet")
    hours = days(dt.datetime(2023, 1, 1), 60, "1h")
    long(["AEC", "AVA", "PSEI"], hours, y=lambda i: float(i), imputed=lambda i: int(i % 60 == 3)).write_parquet(
        tmp_path / "eia_hourly.parquet"
    )
    pl.DataFrame(
        {"unique_id": ["AEC", "AVA", "PSEI"], "time_zone": ["Central", "Pacific", "Pacific"], "region": list("abb")}
    ).write_parquet(tmp_path / "eia_static.parquet")
    trading = days(dt.datetime(2010, 1, 1), 40).filter(days(dt.datetime(2010, 1, 1), 40).dt.weekday() < 6)
    long([".AEX", ".SPX"], trading, y=lambda i: None if i == 3 else -9 + i / 10, region=lambda i: "EMEA").write_parquet(
        tmp_path / "oxfordman_rk_daily.parquet"
    )
    sessions = days(dt.datetime(2010, 1, 1), 30)  # with weekends
    long(
        [".AEX", ".SPX"], sessions, log_rv5=lambda i: -9 + i / 10, ret_cc=lambda i: 0.01, region=lambda i: "EMEA"
    ).write_parquet(tmp_path / "volatility_omi_rv5.parquet")
    write_sample(tmp_path)
    write_favorita_tables(tmp_path)
    return tmp_path


def write_sample(folder):
    sample = long(
        ["A_CA_1", "A_TX_1"],
        days(dt.datetime(2016, 1, 1), 40),
        y=lambda i: i % 3,
        sell_price=lambda i: None if i < 5 else 2.5,
        event_name_1=lambda i: "SuperBowl" if i % 40 == 30 else None,
        event_name_2=lambda i: None if i else "none such",
        snap_CA=lambda i: int(i % 10 == 0),
        snap_TX=lambda i: int(i % 10 == 5),
        snap_WI=lambda i: 0,
    )
    state = pl.col("unique_id").cast(pl.String).str.slice(2, 2)
    sample.with_columns(
        item_id=pl.lit("A"), dept_id=pl.lit("D1"), cat_id=pl.lit("C1"), store_id=state + "_1", state_id=state
    ).write_parquet(folder / "m5_sample1000.parquet")


def write_favorita_tables(folder):
    """Two stores and their families from the second Monday of 2013 on; the tasks' weeks end on Sundays.

    The third store, and 2015, are in the daily sales alone.
    """
    (folder / "fev").mkdir()
    dates, first = days(dt.datetime(2013, 1, 1), 90), dt.datetime(2013, 1, 13)
    families = ["1_EGGS", "2_EGGS"]
    for name, ids in (("stores", families), ("transactions", ["1", "2"])):
        weeks, months = days(first, 11, "1w"), days(dt.datetime(2013, 2, 1), 2, "1mo")
        for period, stamps in (("1D", dates), ("1W", weeks), ("1M", months)):
            long(ids, stamps, y=lambda i: float(i)).write_parquet(folder / f"fev/favorita_{name}_{period}.parquet")
    long(["1", "2"], days(first, 15, "1w"), y=lambda i: float(i)).write_parquet(folder / "fev/rossmann_1W.parquet")
    later = days(dt.datetime(2015, 1, 1), 90)
    every = pl.concat([dates, later])
    sales = long(
        [*families, "3_EGGS"], every, onpromotion=lambda i: i % 90, y=lambda i: float(i % 90 % 7) if i % 90 > 3 else 0.0
    )
    store = pl.col("unique_id").cast(pl.String).str.slice(0, 1).cast(pl.Int64)
    fixed = {"family": "EGGS", "city": "Quito", "state": "Pichincha", "type": "D"}
    long(["01", "02"], later, y=lambda i: 1000.0 + i).write_parquet(folder / "favorita_transactions_daily.parquet")
    sales.with_columns(
        store_nbr=store, cluster=store % 2, **{name: pl.lit(value) for name, value in fixed.items()}
    ).write_parquet(folder / "store_sales_train.parquet")
    pl.DataFrame(
        {"unique_id": ["01", "02", "03"], "city": "Quito", "state": "Pichincha", "store_type": "D", "cluster": 13}
    ).write_parquet(folder / "favorita_static.parquet")
    oil = pl.DataFrame({"ds": dates, "oil_wti": [None, *range(93, 182)]}).filter(pl.col("ds").dt.weekday() < 6)
    oil.write_parquet(folder / "favorita_oil.parquet")
    holidays = [(2, "Holiday", "National", 0), (3, "Holiday", "National", 1), (4, "Event", "National", 0)]
    places = {"National": "Ecuador", "Local": "Quito", "Regional": "Pichincha"}
    rows = [(dates[i], *rest) for i, *rest in [*holidays, (5, "Holiday", "Local", 0), (6, "Transfer", "National", 0)]]
    rows += [
        (later[i], "Holiday", locale, 0)
        for i, locale in ((10, "Local"), (11, "Regional"), (12, "National"), (13, "National"))
    ]
    pl.DataFrame(rows, schema=["ds", "holiday_type", "locale", "transferred"], orient="row").with_columns(
        locale_name=pl.col("locale").replace_strict(places),
        description=pl.when(pl.col("ds") == later[13]).then(pl.lit("Terremoto")).otherwise(pl.lit("Fiesta")),
    ).write_parquet(folder / "favorita_holidays.parquet")


@pytest.mark.parametrize("name", PARQUET)
def test_every_data_set_becomes_a_panel(name, folder):
    dataset = load(name, folder)
    panel = dataset.panel()
    assert panel.num_rows == dataset.frame.height
    assert panel.num_series == dataset.frame[dataset.schema.id].n_unique()
    assert set(dataset.promotions) <= set(dataset.schema.known)


def test_an_unknown_data_set_or_option_is_told_with_those_that_there_are(folder):
    others = {"oxford_man_rk", "oxford_man_rv5", "rossmann", "store_sales"}
    assert set(PARQUET) == {"eia", "fev", "frat", "m5", "m5_sample"} | others
    with pytest.raises(ConfigError, match=r"no data set 'rossman' .did you mean 'rossmann'"):
        load("rossman", folder)
    with pytest.raises(ConfigError, match=r"m5 has no option 'evry'; its options are every"):
        load("m5", folder, evry=2)


def test_rossmann_flags_rounds_of_the_yearly_promotion_and_the_competitor(folder):
    rows = load("rossmann", folder).frame
    one = rows.filter(unique_id="0001")
    assert one.filter("promo2_round")["ds"].dt.month().unique().to_list() == [3]
    assert one.filter("competition_open")["ds"].min() == dt.datetime(2013, 3, 1)
    other = rows.filter(unique_id="0002")
    assert not other["promo2_round"].any()
    assert other["competition_open"].all()  # nobody says when it came


def test_m5_prices_events_and_food_stamps_come_to_their_days(folder):
    dataset = load("m5", folder)
    wisconsin = dataset.frame.filter(unique_id="A_WI_1")
    assert np.flatnonzero(wisconsin["snap"]).tolist() == [5, 15, 25, 35]
    assert wisconsin["price_cut"].arg_true().to_list() == list(range(14, 21))
    assert dataset.events.filter(event_1="SuperBowl")["ds"].to_list() == [dt.datetime(2016, 1, 31)]
    assert load("m5", folder, every=2).frame["unique_id"].unique().sort().to_list() == ["A_CA_1", "B_CA_1"]
    with pytest.raises(ConfigError, match="every is 0"):
        load("m5", folder, every=0)


def test_frat_weeks_without_a_row_are_weeks_without_a_sale(folder):
    one = load("frat", folder).frame.filter(unique_id="1_10")
    assert one.height == 20
    assert one["y"][4:6].to_list() == [0, 0]
    assert one["feature"][5] == 0
    assert one["price"][4] == pytest.approx(np.log(2 / 1.5) / 5)  # 2 is carried on; the mean has one 1.5 among five
    assert one["discount"].to_numpy()[[0, 1, 7]] == pytest.approx([0.25, 0, 0])


def test_eia_leaves_out_what_was_mostly_imputed_and_masks_the_rest(folder):
    dataset = load("eia", folder, since=dt.datetime(2023, 1, 1, 2))
    assert dataset.frame["unique_id"].unique().to_list() == ["AVA"]
    assert dataset.frame.height == 58
    assert dataset.frame.filter(~pl.col("measured"))["ds"].to_list() == [dt.datetime(2023, 1, 1, 3)]
    assert np.isnan(dataset.panel().target).sum() == 1


def test_oxford_man_rk_steps_are_trading_days(folder):
    dataset = load("oxford_man_rk", folder)
    assert dataset.frame["y"].null_count() == 0
    panel = dataset.panel()
    assert panel.last_step.tolist() == (np.diff(panel.offsets) - 1).tolist()


def test_oxford_man_rv5_has_business_days_alone(folder):
    assert load("oxford_man_rv5", folder).frame["ds"].dt.weekday().max() == 5


def test_the_sample_of_m5_begins_with_a_price_and_has_its_states_food_stamps(folder):
    dataset = load("m5_sample", folder)
    california = dataset.frame.filter(unique_id="A_CA_1")
    assert california["ds"].min() == dt.datetime(2016, 1, 6)
    assert california.filter(snap=1)["ds"].dt.day().to_list() == [11, 21, 31]
    assert dataset.events.height == 40


@pytest.mark.parametrize("task", TASKS)
def test_every_task_of_fev_becomes_a_panel_with_its_targets(task, folder):
    dataset = load("fev", folder, task=task)
    path = folder / ("rossmann_daily.parquet" if task == "rossmann_1D" else f"fev/{task}.parquet")
    assert dataset.frame["y"].to_list() == pl.read_parquet(path)["y"].to_list()
    assert dataset.panel().num_series == dataset.static.height == 2


def test_fev_sums_what_is_known_by_week_and_month(folder):
    rossmann = load("fev", folder, task="rossmann_1W").frame.filter(unique_id="1")
    assert rossmann["ds"][0] == dt.datetime(2013, 1, 13)
    assert rossmann["open"].to_list() == [6.0] * 15
    assert rossmann["state_holiday"].sum() == 0  # New Year is in the week before
    weeks = load("fev", folder, task="favorita_stores_1W").frame.filter(unique_id="2_EGGS")
    assert weeks["onpromotion"][0] == sum(range(6, 13))  # Monday the 7th to Sunday the 13th
    months = load("fev", folder, task="favorita_stores_1M").frame.filter(unique_id="2_EGGS")
    assert months["onpromotion"][0] == sum(range(31, 59))
    assert "holiday" not in months.columns


def test_fev_days_know_the_last_price_of_oil_and_holidays_of_the_whole_country(folder):
    rows = load("fev", folder, task="favorita_transactions_1D").frame.filter(unique_id="1")
    assert rows["oil"][:7].to_list() == [None, 93, 94, 95, 95, 95, 98]  # the 5th and 6th are a weekend
    assert rows.filter("holiday")["ds"].dt.day().to_list() == [3, 7]
    with pytest.raises(ConfigError, match=r"fev has no task 'rossman_1D' .did you mean 'rossmann_1D'"):
        load("fev", folder, task="rossman_1D")


def test_store_sales_begin_with_a_sale_and_a_day_without_one_is_missing_and_not_told_ahead(folder):
    dataset = load("store_sales", folder)
    one = dataset.frame.filter(unique_id="2_EGGS")
    assert one["ds"].min() == dt.date(2015, 1, 5)  # nothing is sold on the first four days
    assert one.filter(pl.col("y").is_null())["ds"].to_list()[:2] == [dt.date(2015, 1, 8), dt.date(2015, 1, 15)]
    np.testing.assert_allclose(one["y"].to_numpy()[:3], np.log([4, 5, 6]))
    assert "open" not in dataset.schema.known
    assert dataset.schema.past == ("transactions", "oil")
    assert one["transactions"][0] == 1000 + 90 + 4
    assert one["oil"].unique().to_list() == [179.0]  # the last price, of a Friday in 2013
    assert dataset.frame.filter(unique_id="3_EGGS")["transactions"].unique().to_list() == [-1.0]
    assert one["onpromotion"].to_list() == list(range(4, 90))


def test_store_sales_know_holidays_of_the_city_the_state_and_the_country(folder):
    dataset = load("store_sales", folder)
    one = dataset.frame.filter(unique_id="1_EGGS")
    assert one.filter(local_hol="Fiesta")["ds"].to_list() == [dt.date(2015, 1, 11)]
    assert one.filter(regional_hol="Fiesta")["ds"].to_list() == [dt.date(2015, 1, 12)]
    national = dataset.events.filter(pl.col("national_hol") != "none")
    assert national.select("ds", "national_hol").rows() == [(dt.date(2015, 1, 13), "Fiesta")]  # and no earthquake
    assert dataset.static.filter(unique_id="1_EGGS").row(0) == ("1_EGGS", "1", "EGGS", "Quito", "Pichincha", "D", "1")


@pytest.mark.parametrize("name", PARQUET)
def test_files_that_are_not_there_are_told_with_their_layout_and_source(name, tmp_path):
    with pytest.raises(SourceError, match=rf"{name}: there is no .*; write it with the columns .*; the data are"):
        load(name, tmp_path)


def test_a_column_that_is_not_there_is_told_with_the_nearest(folder):
    path = folder / "eia_hourly.parquet"
    pl.read_parquet(path).rename({"imputed": "inputed"}).write_parquet(path)
    with pytest.raises(MissingColumnError, match=r"no column 'imputed' \(1: not measured\) \(did you mean 'inputed'"):
        load("eia", folder)
    path.write_text("no Parquet")
    with pytest.raises(SourceError, match="cannot be read as Parquet"):
        load("eia", folder)
