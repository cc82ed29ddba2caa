"""Commands that look at data, forecast and judge: from a bare file to ranked revisions, and ten mistakes each."""

import json
import shutil
import tomllib
from pathlib import Path

import polars as pl
import pytest
from report_samples import chunks
from typer.testing import CliRunner

from mqcast import Forecaster, Panel, evaluate, volatility
from mqcast.cli import app
from mqcast.cli.app import _with_options, main
from mqcast.data.export import frames_of
from mqcast.errors import ConfigError, MqcastError
from mqcast.models.recipe import settings_for
from mqcast.run import Run
from mqcast.settings.merge import user_layers
from mqcast.simulate import lognormal_world

SMALL = ("--set", "model.hidden_dim=6", "--set", "train.max_steps=3", "--set", "window.num_fcts=12")


def run(*arguments, fails: bool = False) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if fails:
        assert isinstance(done.exception, MqcastError), done.output
        return str(done.exception)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with sales, actuals, a plan, a packed panel and a trained run with its revisions."""
    home = tmp_path_factory.mktemp("home")
    world = lognormal_world(8, 60, 4)
    world.frame.join(world.static, on="unique_id").write_parquet(home / "sales.parquet")
    world.actuals.write_parquet(home / "actuals.parquet")
    plan = world.frame.filter(pl.col("y").is_null()).drop("y").with_columns(promo_display=pl.lit(True))
    plan.write_parquet(home / "plan.parquet")
    run("init", home / "sales.parquet", "--out", home / "mqcast.toml", "--horizon", 4)
    run("pack", home / "sales.parquet", home / "panel", "--config", home / "mqcast.toml")
    run("fit", home / "panel", home / "run", "--config", home / "mqcast.toml", *SMALL, "--processes", 1, "--json")
    run("revisions", home / "run", home / "panel", home / "rev.parquet", "--start", "2020-01-05", "--processes", 1)
    return home


def test_mistakes_name_the_options_of_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mqcast", "evaluate"])
    assert _with_options("say which is yours: id=…, or missing='drop'") == "say which is yours: --id, or --missing drop"


def test_init_guesses_the_roles_and_explains_every_line(home: Path):
    text = (home / "mqcast.toml").read_text()
    said = tomllib.loads(text)
    assert said["schema"]["known"] == ["promo_display", "promo_coupon"]
    assert said["schema"]["static"] == ["category", "brand", "price_band"]
    assert said["schema"]["freq"] == "W-SUN"
    assert said["window"]["horizon"] == 4
    assert "# what is forecast" in text
    assert '# zeros = "told_apart"' in text


def test_what_init_writes_gives_the_settings_of_a_forecaster(home: Path):
    panel = Panel.open(home / "panel")
    ours = settings_for(panel, "mqt", 4, (0.5, 0.9), *user_layers(home / "mqcast.toml")).config
    assert ours == settings_for(panel, "mqt", 4, (0.5, 0.9)).config
    assert f"# max_steps = {ours.train.max_steps}" in (home / "mqcast.toml").read_text()


def test_what_init_wrote_serves_backtest_as_well(home: Path, tmp_path):
    out = tmp_path / "backtest.parquet"
    chosen = ("--config", home / "mqcast.toml", "--horizon", 4, "--start", "2020-02-02", "--end", "2020-02-09")
    run("backtest", home / "panel", out, *chosen, "--set", "train.max_steps=2")
    assert pl.read_parquet(out).height == 8 * 2 * 4


def test_init_finds_other_names_and_past_columns(tmp_path):
    days = pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 3, 1), eager=True)
    frame = pl.DataFrame(
        {"Date": days, "Store": 7, "Sales": 1.0, "visitors": pl.Series(range(len(days)), strict=False)}
    )
    frame.with_columns(open=True).write_parquet(tmp_path / "shop.parquet")
    said = json.loads(run("init", tmp_path / "shop.parquet", "--out", tmp_path / "shop.toml", "--json"))["schema"]
    assert (said["id"], said["time"], said["target"]) == ("Store", "Date", "Sales")
    assert said["past"] == ["visitors"]
    assert said["known"] == ["open"]
    run("pack", tmp_path / "shop.parquet", tmp_path / "panel", "--config", tmp_path / "shop.toml")


def frame_of(**columns) -> pl.DataFrame:
    """Three shops, two departments each, over 30 weeks."""
    weeks = pl.date_range(pl.date(2024, 1, 7), pl.date(2024, 7, 28), "1w", eager=True)
    keys = pl.DataFrame({"Store": [1, 1, 2, 2, 3, 3], "Dept": [1, 2] * 3}).join(weeks.to_frame("Date"), how="cross")
    return keys.with_columns(pl.int_range(pl.len()).cast(pl.Float64).alias("Weekly_Sales"), **columns)


def init(path: Path, *options) -> dict:
    return json.loads(run("init", path, "--out", path.with_suffix(".toml"), "--horizon", 4, *options, "--json"))[
        "schema"
    ]


def test_init_finds_targets_by_a_word_and_leaves_an_index_out(tmp_path):
    frame = frame_of(IsHoliday=pl.lit(False), Fuel_Price=pl.lit(2.5)).filter(Dept=1).with_row_index("__index_level_0__")
    frame.write_csv(tmp_path / "walmart.csv")
    said = init(tmp_path / "walmart.csv")
    assert (said["id"], said["time"], said["target"]) == ("Store", "Date", "Weekly_Sales")
    assert said["known"] == ["IsHoliday"]
    assert "__index_level_0__ (an index)" in (tmp_path / "walmart.toml").read_text()
    hourly = pl.datetime_range(pl.datetime(2024, 1, 1), pl.datetime(2024, 1, 9), "1h", eager=True)
    bikes = pl.DataFrame({"datetime": hourly, "station": "a", "temp": 3.5, "bike_count": range(len(hourly))})
    bikes.write_parquet(tmp_path / "bikes.parquet")
    assert init(tmp_path / "bikes.parquet")["target"] == "bike_count"


def test_init_looks_at_a_plan_in_a_second_file(tmp_path):
    frame = frame_of(promo=pl.int_range(pl.len()) % 3)
    is_sold = pl.col("Date") < frame["Date"].max()
    frame.filter(is_sold).write_csv(tmp_path / "walmart.csv")
    frame.filter(~is_sold).drop("Weekly_Sales").write_csv(tmp_path / "plan.csv")
    assert init(tmp_path / "walmart.csv")["past"] == ["promo"]
    (tmp_path / "walmart.toml").unlink()
    said = init(tmp_path / "walmart.csv", "--future", tmp_path / "plan.csv")
    assert (said["id"], said["known"]) == ("Store+Dept", ["promo"])


def test_init_never_takes_a_column_that_does_not_tell_series_apart(tmp_path):
    frame_of().write_csv(tmp_path / "walmart.csv")
    said = init(tmp_path / "walmart.csv")
    assert said["id"] == "Store+Dept"
    assert said["static"] == ["Store", "Dept"]
    both = pl.format("{}/{}", "Store", "Dept").alias("series")
    frame_of().with_columns(both).write_csv(tmp_path / "both.csv")
    said = init(tmp_path / "both.csv")
    assert said["id"] == "series"
    assert said["static"] == ["Store", "Dept"]


def test_ids_of_several_columns_are_joined_by_pack_with_and_without_a_settings_file(tmp_path):
    frame_of().write_csv(tmp_path / "walmart.csv")
    names = ("--time", "Date", "--target", "Weekly_Sales")
    run("pack", tmp_path / "walmart.csv", tmp_path / "said", "--id", "Store,Dept", *names)
    ids = ["1/1", "1/2", "2/1", "2/2", "3/1", "3/2"]
    assert Panel.open(tmp_path / "said").ids.to_pylist() == ids
    init(tmp_path / "walmart.csv", "--id", "Store, Dept")
    run("pack", tmp_path / "walmart.csv", tmp_path / "panel", "--config", tmp_path / "walmart.toml")
    packed = Panel.open(tmp_path / "panel")
    assert packed.ids.to_pylist() == ids
    assert packed.schema.categories("static") == ("Store", "Dept")


def test_init_looks_at_all_rows(tmp_path):
    weeks = pl.date_range(pl.date(2024, 1, 7), pl.date(2024, 3, 31), "1w", eager=True)
    items = pl.DataFrame({"item": [f"{i:03}" for i in range(300)]}).join(weeks.to_frame("ds"), how="cross")
    late = (pl.col("item") == "299") & (pl.col("ds") == weeks[5])
    frame = items.with_columns(y=1.0, size=pl.when(late).then(2).otherwise(pl.col("item").cast(pl.Int64) % 2))
    frame.write_parquet(tmp_path / "items.parquet")
    assert init(tmp_path / "items.parquet")["static"] == []


def test_init_fails_where_the_data_cannot_be_packed_and_says_why(tmp_path):
    frame = frame_of().filter(Dept=1)
    pl.concat([frame, frame.head(1)]).write_csv(tmp_path / "twice.csv")
    message = run("init", tmp_path / "twice.csv", "--out", tmp_path / "x.toml", "--id", "Store", fails=True)
    assert "x.toml is written, but the data cannot be packed like that: series '1'" in message
    assert "# The data cannot be packed like this: series '1'" in (tmp_path / "x.toml").read_text()


def test_a_run_can_be_fitted_with_a_horizon_alone(home: Path, tmp_path):
    run("fit", home / "panel", tmp_path / "run", "--horizon", 4, "--model", "mqcnn", *SMALL, "--processes", 1, "--json")
    settings = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert settings["model"]["model"] == "mqcnn"
    assert settings["train"]["num_threads"] == 1


def test_evaluate_prints_and_writes_what_python_finds(home: Path):
    found = json.loads(run("evaluate", home / "rev.parquet", home / "actuals.parquet", "--by", "horizon", "--json"))
    expected = evaluate(pl.read_parquet(home / "rev.parquet"), pl.read_parquet(home / "actuals.parquet"), by="horizon")
    assert found["metrics"] == expected.to_dicts()
    counted = pl.read_parquet(home / "rev.parquet")
    assert (found["rows"], found["series"]) == (counted.height, counted["unique_id"].n_unique())
    assert (found["cutoffs"], found["first_cutoff"]) == (counted["cutoff"].n_unique(), str(counted["cutoff"].min()))
    assert (found["without_actual"], found["left_out"]) == (0, {"series": 0, "first": []})
    assert "P90" in run("evaluate", home / "rev.parquet", home / "panel", "--by", "horizon", "--missing", "drop")
    assert "mase" in run("evaluate", home / "rev.parquet", home / "actuals.parquet")
    shown = run(
        "evaluate", home / "rev.parquet", home / "panel", "--by", "brand", "--by", "cutoff", "--missing", "drop"
    )
    assert "brand" in shown
    assert "…" not in shown.split("\n", 1)[1], "nothing is cut where there is no terminal"


def test_evaluate_counts_the_forecasts_that_no_actual_judges(home: Path, tmp_path):
    forecasts, actuals = (pl.read_parquet(home / f"{name}.parquet") for name in ("rev", "actuals"))
    gone, last = forecasts["unique_id"][0], actuals["ds"].max()
    actuals.filter(pl.col("unique_id") != gone, pl.col("ds") < last).write_parquet(tmp_path / "fewer.parquet")
    given = ("evaluate", home / "rev.parquet", tmp_path / "fewer.parquet", "--missing", "drop", "--json")
    found = json.loads(run(*given))
    lacking = forecasts.filter((pl.col("unique_id") == gone) | (pl.col("ds") == last))
    assert found["without_actual"] == lacking.height
    assert found["left_out"] == {"series": 1, "first": [gone]}
    assert found["metrics"][0]["rows"] == found["rows"] - found["without_actual"]


def test_volatility_prints_a_reading_and_compares(home: Path):
    given = (home / "rev.parquet", home / "actuals.parquet", "--resamples", 20)
    found = json.loads(run("volatility", *given, "--compare", home / "rev.parquet", "--json"))
    frames = [pl.read_parquet(path) for path in given[:2]]
    assert found["summary"] == volatility(*frames, resamples=20).summary.to_dicts()
    assert [row["difference"] for row in found["reduction"]] == [0, 0]
    assert "reaction" in run("volatility", *given) or "not significant" in run("volatility", *given)
    assert "Reduction of excess volatility" in run("volatility", *given, "--compare", home / "rev.parquet")


def test_as_many_revisions_are_ranked_as_asked(home: Path):
    given = (home / "rev.parquet", home / "panel", "--top", 3)
    assert len(json.loads(run("rank-revisions", *given, "--json"))["ranked"]) == 3
    assert "unexplained" in run("rank-revisions", *given, "--per", "target", "--rank", "units")


def test_a_backtest_of_any_model_is_a_forecast_frame(home: Path, tmp_path):
    run("backtest", home / "panel", tmp_path / "naive.parquet", "--horizon", 4, "--model", "seasonal-naive")
    run(
        "backtest",
        home / "panel",
        tmp_path / "mqt.parquet",
        "--horizon",
        4,
        *SMALL,
        "--quantile",
        0.1,
        "--quantile",
        0.5,
    )
    naive, mqt = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("naive", "mqt"))
    assert naive["cutoff"].n_unique() == mqt["cutoff"].n_unique() == 11
    assert mqt.columns[-2:] == ["q0.1", "q0.5"]


def test_a_report_is_one_page_with_every_forecaster(home: Path, tmp_path):
    run("backtest", home / "panel", tmp_path / "naive<b>.parquet", "--horizon", 4, "--model", "seasonal-naive")
    page = tmp_path / "report.html"
    run("report", tmp_path / "naive<b>.parquet", home / "panel", "--out", page)
    text = page.read_text()
    assert "naive&lt;b&gt;" in text
    assert "over-reaction" in text or "not significant" in text or "under-reaction" in text
    run(
        "report",
        home / "rev.parquet",
        home / "actuals.parquet",
        "--compare",
        tmp_path / "naive<b>.parquet",
        "--out",
        page,
    )
    assert "P90 risk" in page.read_text()


def test_forecasters_have_the_names_that_they_are_given_and_items_are_chosen(home: Path, tmp_path):
    page, item = tmp_path / "report.html", pl.read_parquet(home / "rev.parquet")["unique_id"][0]
    ours, theirs = f"ours={home / 'rev.parquet'}", f"theirs={home / 'rev.parquet'}"
    run("report", ours, theirs, home / "panel", "--item", item, "--out", page)
    assert "ours has" in page.read_text()
    assert "than theirs." in page.read_text()
    assert chunks(page.read_text())[0]["why"][0] == "chosen"


def test_runs_are_reported_from_what_follows_their_training(home: Path, tmp_path):
    page = tmp_path / "report.html"
    run("report", home / "run", "--panel", home / "panel", "--out", page, "--title", "First & only")
    text = page.read_text()
    assert "First &amp; only" in text
    assert "was trained on dates that are evaluated here" in text
    assert "seasonal-naive" in text
    assert "Learning curve" in text
    other = tmp_path / "v1.cnn"
    run("fit", home / "panel", other, "--horizon", 4, "--model", "mqcnn", *SMALL, "--processes", 1, "--json")
    run("report", home / "run", other, home / "panel", "--out", page, "--baseline", "v1.cnn")
    assert "Settings of v1.cnn" in page.read_text()
    assert "Compared with v1.cnn: run has " in page.read_text()


def test_a_saved_forecaster_is_reported_with_its_own_panel(home: Path, tmp_path):
    Forecaster.of_run(home / "run", Panel.open(home / "panel")).save(tmp_path / "saved")
    run("report", tmp_path / "saved", "--out", tmp_path / "report.html")
    assert "seasonal-naive" in (tmp_path / "report.html").read_text()


def test_a_run_is_loaded_like_a_saved_forecaster(home: Path, tmp_path):
    panel = Panel.open(home / "panel")
    loaded = Forecaster.load(home / "run", home / "panel")
    loaded.save(tmp_path / "saved")
    expected = Forecaster.of_run(home / "run", panel).predict()
    assert loaded.predict().equals(expected)
    assert Forecaster.load(tmp_path / "saved").predict().equals(expected)
    assert Forecaster.load(tmp_path / "saved", panel).predict().equals(expected)


def test_a_run_forecasts_a_frame_without_the_panel_that_it_was_trained_on(home: Path):
    panel = Panel.open(home / "panel")
    alone, frames = Forecaster.load(home / "run"), frames_of(panel)
    found = alone.predict(frames.rows, static=frames.static, events=frames.events)
    assert found.equals(Forecaster.load(home / "run", panel).predict())
    with pytest.raises(ConfigError, match="contains no data; give a frame, or load it with panel="):
        alone.predict()


def test_a_loaded_forecaster_reads_its_weights_once(home: Path, tmp_path, monkeypatch):
    shutil.copytree(home / "run", tmp_path / "run")
    forecaster = Forecaster.load(tmp_path / "run", home / "panel")
    before = forecaster.predict()
    monkeypatch.setattr(Run, "network", lambda run: pytest.fail("the weights were read again"))
    assert forecaster.predict().equals(before)


def test_what_if_says_the_total_change(home: Path, tmp_path):
    out = tmp_path / "change.parquet"
    said = json.loads(run("what-if", home / "run", home / "panel", home / "plan.parquet", out, "--json"))
    found = pl.read_parquet(out)
    assert said["total_change"]["q0.5_change"] == pytest.approx(found["q0.5_change"].sum())
    alone = Forecaster.of_run(home / "run", Panel.open(home / "panel")).predict()
    assert found["q0.5_baseline"].to_list() == alone["q0.5"].to_list()


def test_the_old_name_of_rank_revisions_still_works_and_says_that_it_is_deprecated(home: Path):
    given = (home / "rev.parquet", home / "actuals.parquet")
    done = CliRunner().invoke(app, ["exceptions", *map(str, given), "--json"])
    assert done.exit_code == 0
    assert "deprecated" in done.stderr
    assert done.stdout == run("rank-revisions", *given, "--json")
    assert "exceptions" not in run("--help")


def test_every_verb_explains_itself_with_an_example():
    for verb in (
        "init",
        "fit",
        "forecast",
        "revisions",
        "backtest",
        "what-if",
        "evaluate",
        "volatility",
        "rank-revisions",
        "report",
    ):
        assert f"mqcast {verb}" in run(verb, "--help")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["init", "none.parquet"], "no Parquet or CSV file at none.parquet"),
        (["init", "HOME/sales.parquet", "--out", "HOME/mqcast.toml"], "already exists"),
        (["init", "HOME/sales.parquet", "--out", "x.toml", "--id", "shop"], "no column 'shop' to be the id"),
        (["init", "HOME/mqcast.toml", "--out", "x.toml"], "mqcast.toml"),
        (["fit", "HOME/panel", "r"], "give --horizon"),
        (["fit", "HOME/panel", "r", "--horizon", "4", "--model", "mqtt"], "model"),
        (["fit", "HOME/panel", "r", "--horizon", "4", "--set", "horizon=3"], "table.setting=value"),
        (["fit", "nowhere", "r", "--horizon", "4"], "no panel at nowhere"),
        (["revisions", "nowhere", "HOME/panel", "o.parquet", "--start", "2020-01-05"], "no run at nowhere"),
        (
            ["revisions", "HOME/run", "HOME/panel", "o.parquet", "--start", "soon", "--processes", "1"],
            "'soon' is not a date",
        ),
        (
            ["revisions", "HOME/run", "HOME/panel", "o.parquet", "--start", "2030-01-05", "--processes", "1"],
            "after the last",
        ),
        (["backtest", "HOME/panel", "o.parquet", "--horizon", "4", "--model", "prophet"], "model is 'prophet'"),
        (["backtest", "HOME/panel", "o.parquet", "--horizon", "4", "--quantile", "2"], "quantiles are"),
        (
            ["backtest", "HOME/panel", "o.parquet", "--horizon", "4", "--start", "2021-01-03", "--end", "2020-01-05"],
            "is after",
        ),
        (["what-if", "HOME/run", "HOME/panel", "none.parquet", "o.parquet"], "no Parquet or CSV file at none.parquet"),
        (
            ["what-if", "HOME/run", "HOME/panel", "HOME/actuals.parquet", "o.parquet"],
            "the future has no column 'promo_display'",
        ),
        (["evaluate", "none.parquet", "HOME/panel"], "no Parquet or CSV file at none.parquet"),
        (["evaluate", "HOME/mqcast.toml", "HOME/panel"], "not a readable Parquet file"),
        (["evaluate", "HOME/rev.parquet", "HOME/panel", "--missing", "raise"], "missing='drop'"),
        (["evaluate", "HOME/rev.parquet", "HOME/actuals.parquet", "--by", "brnd"], "nothing to group by called 'brnd'"),
        (
            ["evaluate", "HOME/rev.parquet", "HOME/panel", "--by", "brnd", "--missing", "drop"],
            "(did you mean 'brand'?); there are horizon, cutoff, ds, unique_id, ",
        ),
        (["evaluate", "HOME/actuals.parquet", "HOME/panel"], "no column of quantiles"),
        (["evaluate", "HOME/rev.parquet", "HOME/panel", "--id", "sku"], "leave out --id"),
        (["evaluate", "HOME/rev.parquet", "HOME/actuals.parquet", "--target", "sold"], "no column 'sold'"),
        (["volatility", "HOME/rev.parquet", "HOME/actuals.parquet", "--level", "0.7"], "have no level 0.7"),
        (["volatility", "HOME/rev.parquet", "HOME/actuals.parquet", "--cdf", "normal"], "cdf is 'normal'"),
        (["volatility", "HOME/rev.parquet", "HOME/actuals.parquet", "--weights", "x"], "weights is 'x'"),
        (["rank-revisions", "HOME/rev.parquet", "HOME/panel", "--rank", "size"], "rank is 'size'"),
        (["report", "HOME/actuals.parquet", "HOME/panel"], "no column of quantiles"),
        (["report", "HOME/rev.parquet", "HOME/panel", "--compare", "HOME/rev.parquet"], "are called 'rev'"),
        (["report", "HOME/rev.parquet", "HOME/panel", "--item", "item_9"], "no item 'item_9' was forecast"),
        (["report", "=HOME/rev.parquet", "HOME/panel"], "write name=path"),
        (["report", "HOME/run"], "no actuals to evaluate"),
        (["report", "HOME/run", "HOME/actuals.parquet"], "is a run and needs a packed panel"),
        (["report", "HOME/rev.parquet", "HOME/panel", "--baseline", "rvv"], "no model 'rvv'"),
    ],
)
def test_mistakes_are_one_clear_line_and_write_nothing(arguments, says, home: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = run(*[argument.replace("HOME", str(home)) for argument in arguments], fails=True)
    assert says in message
    assert "\n" not in message
    assert not list(tmp_path.iterdir())


def test_a_remedy_is_said_as_the_option_that_it_is(home: Path, monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["mqcast", "evaluate", str(home / "rev.parquet"), str(home / "panel"), "--missing", "raise"]
    )
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr().err
    assert "--missing drop" in told
    assert "missing=" not in told


def test_ids_of_several_columns_are_said_with_a_comma(home: Path, tmp_path):
    paths = [tmp_path / f"{name}.csv" for name in ("rev", "actuals")]
    for path in paths:
        table = pl.read_parquet(home / f"{path.stem}.parquet")
        parts = pl.col("unique_id").str.split("_").list.to_struct(fields=["kind", "number"])
        table.with_columns(parts).unnest("unique_id").write_csv(path)
    told = json.loads(run("evaluate", *paths, "--id", "kind, number", "--json"))
    alone = json.loads(run("evaluate", home / "rev.parquet", home / "actuals.parquet", "--json"))
    assert told["metrics"][0] == pytest.approx(alone["metrics"][0])
    assert told["series"] == alone["series"]


def test_scenarios_with_names_are_set_beside_the_plan(home: Path, tmp_path):
    plan, out = home / "plan.parquet", tmp_path / "both.csv"
    run("what-if", home / "run", home / "panel", f"all={plan}", f"again={plan}", out)
    both = pl.read_csv(out)
    assert {"q0.5_baseline", "q0.5_all", "q0.5_all_change", "q0.5_again"} <= set(both.columns)
    assert both["q0.5_all"].equals(both["q0.5_again"], check_names=False)
    problem = run("what-if", home / "run", home / "panel", f"all={plan}", plan, out, fails=True)
    assert "write name=file" in problem


def test_frames_with_other_names_and_an_index_are_judged_and_reported(home: Path, tmp_path):
    names = {"unique_id": "shop", "ds": "week"}
    forecasts = pl.read_parquet(home / "rev.parquet").rename(names).drop("horizon")
    forecasts.with_row_index("").write_csv(tmp_path / "theirs.csv")
    sold = pl.read_parquet(home / "sales.parquet").rename(names | {"y": "sold"})
    sold.select("shop", "week", "sold").with_row_index("").write_csv(tmp_path / "sold.csv")
    given = tmp_path / "theirs.csv", tmp_path / "sold.csv", "--target", "sold"
    assert json.loads(run("evaluate", *given, "--missing", "drop", "--json"))["series"] == forecasts["shop"].n_unique()
    facts = json.loads(run("report", *given, "--out", tmp_path / "report.html", "--json"))
    assert facts["forecasts"]["theirs"]["rows"] == forecasts.height
