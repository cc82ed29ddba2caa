"""The four public tasks: parts and windows to the day, scales of the training part alone, and each command once."""

import datetime as dt
import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from raw_samples import (
    load_at,
    write_electricity,
    write_favorita,
    write_oxford_man,
    write_store_sales,
    write_traffic,
)
from typer.testing import CliRunner

from lab.__main__ import app
from lab.benchmarks.real_peers import blocks_of
from lab.experiments.experiment import RunSpec, TrainOptions, open_experiment
from lab.experiments.paper_task import METRICS, PaperTask, forecast_blocks, num_drawn
from lab.experiments.part_panels import Panels
from lab.experiments.records import Record, beside_published
from mqcast.data.batch import Assembler, Batch
from mqcast.data.cutoffs import CutoffPlan
from mqcast.data.panel import Panel, pack
from mqcast.data.windows import WindowPlan
from mqcast.errors import ConfigError, DataError, Interrupted, MqcastError
from mqcast.run import Run
from mqcast.settings import RunConfig, ScalingConfig, SearchConfig
from mqcast.train.records import Step
from mqcast.train.spans import training_spans

ELECTRICITY, TRAFFIC, OXFORD_MAN, RETAIL, RETAIL_WITHOUT_OPEN = (
    open_experiment(name) for name in ("electricity", "traffic", "oxford-man", "retail", "retail-no-open")
)
LATE = (dt.datetime(2014, 7, 25), dt.datetime(2014, 12, 1))
ALIVE = ("2014-12-20", "2016-07-01")
LIVES = {
    (1, 103): ALIVE,
    (1, 105): ("2015-08-03", "2016-01-29"),  # as short as can be
    (1, 107): ("2015-08-04", "2016-05-01"),  # 119 training rows
    (2, 109): ("2015-01-05", "2015-10-20"),  # trained on, but gone before the validation part ends
    (2, 111): ("2015-02-05", "2016-01-28"),  # a day too short for the test part
    (2, 113): ("2016-01-03", "2016-05-01"),
    (2, 115): ALIVE,
}
WRITERS = {
    "electricity": write_electricity,
    "traffic": write_traffic,
    "oxford-man": write_oxford_man,
    "retail": lambda folder: write_favorita(folder, LIVES),
    "retail-no-open": lambda folder: write_favorita(folder, LIVES),
}
TASKS = (ELECTRICITY, TRAFFIC, OXFORD_MAN, RETAIL, RETAIL_WITHOUT_OPEN)
each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


def panels_of(task: PaperTask, folder: Path, out: Path) -> Panels:
    return task.load(folder, out)


@pytest.fixture(scope="module")
def panels_for(tmp_path_factory):
    made: dict[str, Panels] = {}

    def get(task: PaperTask) -> Panels:
        if task.name not in made:
            folder = tmp_path_factory.mktemp(task.name)
            WRITERS[task.name](folder)
            made[task.name] = panels_of(task, folder, folder / "panels")
        return made[task.name]

    return get


def plan_of(panels: Panels, part: str) -> WindowPlan | CutoffPlan:
    task = panels.task
    if part not in ("train", "valid"):
        return CutoffPlan.of_blocks(panels.part(part), task.block)
    spans = training_spans(panels.training, task.config("mqt@paper", 0, {}))
    return WindowPlan(panels.training, task.config("mqt@paper", 0, {}).window, spans[part == "valid"])


def cutoffs(panels: Panels, part: str) -> dict[str, tuple[str, str, int]]:
    """First and last creation time of each series, and how many there are."""
    plan = plan_of(panels, part)
    panel = plan.panel
    spans = {}
    for series, first, last in zip(plan.series, plan.first_fct, plan.last_fct, strict=True):
        of_series = np.array([series])
        times = [panel.times_at(of_series, np.array([step]), 1)[0, 0].astype("M8[us]").item() for step in (first, last)]
        spans[panel.ids[int(series)].as_py()] = (*(f"{time:%Y-%m-%d %H}" for time in times), int(last - first) + 1)
    return spans


# -- windows -----------------------------------------------------------------------------------------------------------


def test_electricity_has_the_blocks_that_the_protocol_counts(panels_for):
    panels = panels_for(ELECTRICITY)
    assert cutoffs(panels, "train")["MT_001"] == ("2014-01-07 23", "2014-08-06 23", 5065)
    assert cutoffs(panels, "valid")["valid MT_001"] == ("2014-08-07 23", "2014-08-30 23", 553)
    assert cutoffs(panels, "test")["MT_001"] == ("2014-08-31 23", "2014-09-06 23", 145)
    assert [len(cutoffs(panels, part)) for part in ELECTRICITY.parts] == [2, 2, 2]


def test_traffic_has_the_blocks_that_the_protocol_counts(panels_for):
    panels = panels_for(TRAFFIC)
    assert cutoffs(panels, "train")["400000"] == ("2008-01-08 00", "2008-05-29 23", 151 * 24 - 1 - 191)
    assert cutoffs(panels, "valid")["valid 400000"] == ("2008-05-30 23", "2008-06-13 23", 22 * 24 - 191)
    assert cutoffs(panels, "test")["400001"] == ("2008-06-14 23", "2008-06-20 23", 145)


def test_oxford_man_parts_have_no_context_of_the_part_before(panels_for):
    panels = panels_for(OXFORD_MAN)
    rows = {part: pl.read_parquet(panels.folder / "rows" / f"{part}.parquet") for part in OXFORD_MAN.parts}
    for part, years in (("train", range(2013, 2016)), ("valid", (2016, 2017)), ("test", (2018, 2019))):
        assert set(rows[part]["ds"].dt.year()) == set(years)
        for name, (_, _, number) in cutoffs(panels, part).items():
            assert number == rows[part].filter(unique_id=name).height - 256
    first, last, _ = cutoffs(panels, "test")[".SPX"]
    assert "2018-12-15" < first < "2019-01-20"  # a year's rows after the part's first
    assert "2019-06-18" < last < "2019-06-24"  # five rows before its end


def test_retail_has_one_creation_time_a_series_in_validation_and_test(panels_for):
    for task in (RETAIL, RETAIL_WITHOUT_OPEN):
        panels = panels_for(task)
        train, valid, test = (cutoffs(panels, part) for part in ("train", "valid", "test"))
        assert train.keys() == {"01_0000103", "01_0000105", "02_0000109", "02_0000111", "02_0000115"}
        assert train["01_0000105"] == ("2015-10-31 00", "2015-10-31 00", 1)
        assert train["01_0000103"][1:] == ("2015-10-31 00", 214)  # from 2015-01-02 on
        assert valid.keys() == {"valid 01_0000103", "valid 01_0000105", "valid 02_0000111", "valid 02_0000115"}
        assert set(valid.values()) == {("2015-11-30 00", "2015-11-30 00", 1)}
        assert test.keys() == {"01_0000103", "01_0000105", "02_0000115"}
        assert set(test.values()) == {("2015-12-30 00", "2015-12-30 00", 1)}
        thirty = ("2016-02-29 00", "2016-03-29 00", 30)
        assert cutoffs(panels, "revisions") == {"01_0000103": thirty, "02_0000115": thirty}


def test_without_forking_as_many_blocks_are_drawn_as_there_are_at_most(panels_for):
    panels = panels_for(RETAIL)
    assert num_drawn(panels) == plan_of(panels, "train").num_trajectories
    config = RETAIL.config("mqt-unforked@paper", 0, {})
    assert (config.window.num_fcts, config.window.num_steps, config.window.num_trajectories) == (1, 90, 450_000)
    windows = RETAIL.replace(num_samples=100).config("mqt-unforked@paper", 0, {}).window
    plan = WindowPlan(
        panels.training, windows, training_spans(panels.training, RETAIL.config("mqt@paper", 0, {}))[0], seed=3
    )
    drawn = [plan.batch(epoch, 0) for epoch in (0, 1)]
    pairs = [set(zip(batch.series.tolist(), batch.first_fct.tolist(), strict=True)) for batch in drawn]
    assert len(pairs[0]) == 100
    assert pairs[0] == pairs[1]  # once for all epochs


# -- scales ------------------------------------------------------------------------------------------------------------


def test_electricity_is_scaled_by_each_customers_training_part(panels_for):
    panels = panels_for(ELECTRICITY)
    train = pl.read_parquet(panels.folder / "rows" / "train.parquet")
    for name, test in pl.read_parquet(panels.folder / "rows" / "test.parquet").group_by("unique_id"):
        known = train.filter(unique_id=name[0])
        mean, spread = np.mean(known["actual"].to_numpy()), np.std(known["actual"].to_numpy())
        np.testing.assert_allclose(test["y"], (test["actual"] - mean) / spread, rtol=1e-9)
        hours = test["hours_from_start"].to_numpy()
        own = np.arange(1096 * 24, 1315 * 24)
        np.testing.assert_allclose(hours, (np.arange(1332 * 24, 1346 * 24) - own.mean()) / own.std(), rtol=1e-9)


@pytest.mark.parametrize("task", [TRAFFIC, OXFORD_MAN], ids=lambda task: task.name)
def test_other_tasks_are_scaled_by_all_training_rows(task, panels_for):
    panels = panels_for(task)
    train, test = (pl.read_parquet(panels.folder / "rows" / f"{part}.parquet") for part in ("train", "test"))
    mean, spread = train["actual"].mean(), np.std(train["actual"].to_numpy())
    np.testing.assert_allclose(test["y"], (test["actual"] - mean) / spread, rtol=1e-9)


def test_imputed_sales_are_the_training_mean_and_zero_when_scaled(panels_for):
    panels = panels_for(RETAIL)
    train, test = (pl.read_parquet(panels.folder / "rows" / f"{part}.parquet") for part in ("train", "test"))
    known = train.filter("open")["actual"]
    closed = test.filter(~pl.col("open"))
    assert closed.height > 0
    np.testing.assert_allclose(closed["actual"], known.mean(), rtol=1e-12)
    assert (closed["y"] == 0).all()
    of_sales = test.filter("open")
    np.testing.assert_allclose(of_sales["y"], (of_sales["actual"] - known.mean()) / known.std(), rtol=1e-9)
    assert not np.isnan(panels.part("test").target).any()


def test_without_the_leak_days_without_a_sale_are_masked_and_not_announced(panels_for):
    leaky, honest = panels_for(RETAIL), panels_for(RETAIL_WITHOUT_OPEN)
    assert "open" in leaky.training.schema.known
    assert "open" not in honest.training.schema.known
    actuals = honest.actuals("test")
    observed = leaky.actuals("test").filter(actuals["y"].is_not_null())
    assert 0 < actuals["y"].null_count() < actuals.height
    assert observed.equals(actuals.drop_nulls())
    assert np.isnan(honest.part("test").target).sum() == actuals["y"].null_count()


def changed_after(task: PaperTask, folder: Path) -> None:
    """Another course of events after the training part, in the same files."""
    end = task.parts["train"][1]
    if task is ELECTRICITY:
        write_electricity(folder, load=lambda i, stamp: load_at(i, stamp) + 5.0 * (stamp.date() > end.date()))
    elif task is OXFORD_MAN:
        path = folder / "oxfordmanrealizedvolatilityindices.csv"
        lines = [
            line if line[:10] < "2016" else line.replace(",0.00", ",0.07") for line in path.read_text().splitlines()
        ]
        path.write_text("\n".join(lines) + "\n")
    else:
        path = folder / "train.csv"
        lines = [line.split(",") for line in path.read_text().splitlines()]
        later = [[*line[:4], "77.5", line[5]] if line[1] > "2015-12" and line[0] != "id" else line for line in lines]
        path.write_text("\n".join(",".join(line) for line in later) + "\n")


@pytest.mark.parametrize("task", [ELECTRICITY, OXFORD_MAN, RETAIL, RETAIL_WITHOUT_OPEN], ids=lambda task: task.name)
def test_what_comes_after_training_changes_nothing_in_it(task, tmp_path):
    WRITERS[task.name](tmp_path)
    before = panels_of(task, tmp_path, tmp_path / "before")
    changed_after(task, tmp_path)
    after = panels_of(task, tmp_path, tmp_path / "after")
    assert not before.actuals("test").equals(after.actuals("test"))
    scales = [pl.read_parquet(panels.folder / "scales.parquet") for panels in (before, after)]
    assert scales[0].equals(scales[1])
    for one, other in zip(training_batches(before), training_batches(after), strict=True):
        assert all(torch.equal(tensor, getattr(other, name)) for name, tensor in one.tensors().items())


def training_batches(panels: Panels) -> list[Batch]:
    """Some of what a network sees in training."""
    plan, until = plan_of(panels, "train"), panels.task.parts["train"][1]
    assemble = Assembler.fit(
        panels.training, panels.task.config("mqt@paper", 0, {}).window, ScalingConfig(by="none"), until
    )
    return [assemble(plan.batch(0, step)) for step in range(min(4, plan.num_batches(0)))]


def test_panels_are_made_again_only_if_the_files_change(tmp_path, monkeypatch):
    write_traffic(tmp_path)
    first = panels_of(TRAFFIC, tmp_path, tmp_path / "panels").training.fingerprint
    monkeypatch.setattr("lab.experiments.part_panels.prepare", None)
    assert panels_of(TRAFFIC, tmp_path, tmp_path / "panels").training.fingerprint == first
    monkeypatch.undo()
    write_traffic(tmp_path, seed=1)
    assert panels_of(TRAFFIC, tmp_path, tmp_path / "panels").training.fingerprint != first


def test_files_that_miss_a_part_are_refused(tmp_path):
    later = ("2016-01-03", "2016-07-01")
    write_favorita(tmp_path, {(1, 103): ("2015-01-03", "2015-12-15"), (2, 9): later, (2, 10): later})
    with pytest.raises(DataError, match=r"no series has 120 rows .* its part 'valid'"):
        panels_of(RETAIL, tmp_path, tmp_path / "panels")


# -- settings and numbers of the paper ---------------------------------------------------------------------------------


@each_task
def test_settings_are_the_papers(task):
    config = task.config("mqt@paper", 7, {})
    widths = {"electricity": (128, 1e-3), "traffic": (64, 1e-3), "oxford-man": (128, 1e-3)}
    assert (config.model.hidden_dim, config.train.learning_rate) == widths.get(task.name, (64, 1e-4))
    assert sum(config.model.position_dilations or ()) == task.horizon - 1
    assert sum(config.model.encoder_dilations) == (127 if task.name == "oxford-man" else 63)
    assert (config.model.quantiles, config.model.dropout) == ((0.5, 0.9), 0.15)
    assert (config.window.batch_size, config.train.max_epochs, config.train.patience) == (256, 100, 5)
    assert (config.train.betas, config.train.epsilon, config.train.seed) == ((0.9, 0.999), 1e-8, 7)


@each_task
def test_settings_are_the_presets_but_for_what_the_paper_gives_for_the_task(task):
    """Task < preset < what the paper gives for the task < the user; horizon, quantiles and dates are the task's."""
    plain = RunConfig.paper({"horizon": task.horizon, "history": 1, "num_fcts": 1})
    config = task.config("mqt@paper", 7, {})
    research = config.model.research
    assert (research.block, research.horizon_code, research.position_norm) == ("bare", False, False)
    given = {f"{table}.{name}" for table, values in task.paper.items() for name in values}
    tables = {"window", "scaling", "model", "train"}
    differs = {f"{t}.{n}" for t in tables for n, value in getattr(config, t) if value != getattr(getattr(plain, t), n)}
    follows = {"model.static_dim", "model.head_dim", "model.context_dim", "model.quantiles", "train.seed"}
    assert differs <= given | follows
    assert {"window.batch_size", "scaling.by", "model.hidden_dim", "train.learning_rate"} <= given
    assert task.config("mqt@paper", 0, {"window": {"batch_size": 3}}).window.batch_size == 3


def test_settings_are_equal_for_all_networks_of_a_preset_but_for_the_network():
    mqt = OXFORD_MAN.config("mqt@paper", 0, {})
    for name in ("mqt-nods", "mqt-all", "mqcnn", "mqrnn"):
        assert OXFORD_MAN.config(f"{name}@paper", 0, {}) == mqt.replace(model=mqt.model.replace(model=name))


def test_settings_are_the_users_unless_results_would_not_be_comparable():
    tables = {"window": {"num_fcts": 3}, "model": {"block": "residual"}}
    assert OXFORD_MAN.config("mqt@paper", 0, tables).window.num_fcts == 3
    for tables in (
        {"window": {"horizon": 4}},
        {"model": {"quantiles": [0.5]}},
        {"split": {"train_until": "2010-01-01"}},
    ):
        with pytest.raises(ConfigError, match="remove it from the config"):
            OXFORD_MAN.config("mqt@paper", 0, tables)


def test_a_network_by_the_recipe_learns_from_the_training_part_alone(tmp_path):
    write_oxford_man(tmp_path, dt.date(2014, 10, 1))
    trial = ("run", "oxford-man", "--data", tmp_path, "--out", tmp_path / "out", "--json")
    settings = ("--model", "mqcnn", "--set", "train.max_steps=2", "--set", "model.members=1")
    (record,) = json.loads(run(*trial, *settings))["records"]
    assert (record["task"], record["config"]["scaling"]["by"]) == ("oxford-man", "recent")
    assert record["config"]["split"]["train_until"].startswith("2015-12-31")
    panels = Panels(OXFORD_MAN, tmp_path / "out" / "panels" / "oxford-man")
    train = panels.recorded("train")
    assert train.span[1] <= np.datetime64("2015-12-31").astype("M8[us]").astype(int)
    assert (train.schema.known, train.schema.calendar) == ((), None)
    assert (panels.training.schema.known, len(panels.training.schema.calendar)) == (("days_from_start",), 4)
    assert np.array_equal(panels.recorded("test").target, panels.part("test").target)
    forecasts = pl.read_parquet(tmp_path / "out" / "oxford-man" / "mqcnn-0" / "forecasts.parquet")
    assert forecasts.select("unique_id", "cutoff").n_unique() == record["details"]["scored_blocks"]


def test_another_systems_forecasts_of_the_blocks_are_judged_beside_ours(tmp_path):
    write_oxford_man(tmp_path, dt.date(2014, 10, 1))
    out = tmp_path / "out"
    command = ("run", "oxford-man", "--data", tmp_path, "--out", out, "--json", "--model", "mqcnn@paper")
    run(*command, "--set", "train.max_steps=2")
    ours = pl.read_parquet(out / "oxford-man" / "mqcnn@paper-0" / "forecasts.parquet")
    blocks = blocks_of(OXFORD_MAN, pl.read_parquet(out / "panels" / "oxford-man" / "rows" / "test.parquet"))
    keys = ours.select("unique_id", pl.col("cutoff").cast(pl.Date)).unique()
    assert keys.join(blocks, on=["unique_id", "cutoff"], how="anti").is_empty()
    assert keys.height == blocks.height
    theirs = tmp_path / "peer.parquet"
    ours.with_columns(pl.col("q0.5") + 1).write_parquet(theirs)
    (out / "oxford-man" / "peer-0").mkdir()
    took = {"config": {"minutes": 3}, "facts": {"wall_seconds": 181.0, "cpu_seconds": 180.0}}
    (out / "oxford-man" / "peer-0" / "peer.json").write_text(json.dumps(took))
    records = json.loads(run(*command, "--set", "train.max_steps=2", "--forecasts", f"peer={theirs}"))["records"]
    mine, peer = ({record["model"]: record for record in records}[name] for name in ("mqcnn@paper", "peer"))
    assert (peer["config"], peer["cpu_seconds"]) == ({"minutes": 3}, 180.0)
    assert peer["metrics"]["P90"] == mine["metrics"]["P90"]
    assert peer["metrics"]["bias"] > mine["metrics"]["bias"]


def test_the_table_has_the_published_numbers_and_means_over_seeds():
    metrics = [dict.fromkeys(METRICS, value) for value in (0.2, 0.4)]
    config, details = {"train": {"max_steps": 5}}, {"scored_blocks": 3}
    records = [Record("retail", "mqcnn@paper", i, one, config, 0.0, details=details) for i, one in enumerate(metrics)]
    rows = {row[0]: row[1:] for row in beside_published(RETAIL.published, records, RETAIL.metrics).iter_rows()}
    assert rows["DeepAR"][:3] == ("published", "0.574", "0.23")
    assert rows["MQTransformer"][1:3] == ("0.256", "0.106")
    assert rows["MQTransformer, no forking, 450K"][1:3] == ("0.2645", "0.109")
    assert rows["mqcnn@paper"] == ("mqcast, retail", *["0.3000 ± 0.1414"] * len(METRICS), "2")
    assert "at most 5 steps" in ELECTRICITY.notes(records)[1]
    assert "53,505" in ELECTRICITY.notes(records)[2]
    assert "139,635" in TRAFFIC.notes(records)[2]
    assert {task.name: tuple(task.published["TFT"].values()) for task in (ELECTRICITY, TRAFFIC, OXFORD_MAN)} == {
        "electricity": (0.055, 0.027),
        "traffic": (0.095, 0.070),
        "oxford-man": (0.039, 0.020),
    }


# -- the commands ------------------------------------------------------------------------------------------------------


def run(*arguments, fails: bool = False) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    if fails:
        assert isinstance(done.exception, MqcastError), done.output
        return str(done.exception)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


CONFIG = PaperTask.config


def few_channels(task: PaperTask, *arguments):
    config = CONFIG(task, *arguments)
    return config.replace(model=config.model.replace(hidden_dim=4, static_dim=4, head_dim=2))


@pytest.fixture(autouse=True)
def _small(request, monkeypatch):
    """The same protocol with networks that train in a moment, where something is trained."""
    if "settings_are" not in request.node.name:
        monkeypatch.setattr(PaperTask, "config", few_channels)


def naive_risks(forecasts: pd.DataFrame, actuals: pd.DataFrame, level: float) -> tuple[float, float]:
    """By horizon and then their mean, and pooled: as loops over a pandas frame would have it."""
    truth = {(row.unique_id, row.ds): row.y for row in actuals.itertuples()}
    losses: dict[int, list[float]] = {}
    sizes: dict[int, list[float]] = {}
    for row in forecasts.to_dict("records"):
        y = truth[row["unique_id"], row["ds"]]
        if y is not None and not np.isnan(y):
            error = y - row[f"q{level:g}"]
            losses.setdefault(row["horizon"], []).append(max(level * error, (level - 1) * error))
            sizes.setdefault(row["horizon"], []).append(abs(y))
    by_horizon = [2 * np.mean(losses[h]) / np.mean(sizes[h]) for h in losses]
    total = sum(map(sum, losses.values())), sum(map(sum, sizes.values()))
    return float(np.mean(by_horizon)), 2 * total[0] / total[1]


COMMANDS = {
    "electricity": ("--model", "mqt@paper"),
    "traffic": ("--model", "mqcnn-unforked@paper"),
    "oxford-man": ("--model", "mqt-nods@paper"),
    "retail": ("--model", "mqt@paper"),
    "retail-no-open": ("--model", "mqrnn@paper"),
}
BLOCKS = {"electricity": 145, "traffic": 145, "retail": 3, "retail-no-open": 3}


@pytest.fixture(scope="module")
def electricity_files(tmp_path_factory) -> Path:
    """One folder for two tests: what the first one trains, the second one finds."""
    folder = tmp_path_factory.mktemp("electricity")
    write_electricity(folder, dt.datetime(2014, 7, 24), {"MT_001": LATE})
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_task_from_its_raw_files_to_a_table(name, tmp_path, electricity_files):
    if name == "electricity":
        tmp_path = electricity_files
    elif name == "traffic":
        write_traffic(tmp_path, num_sensors=1)
    elif name == "oxford-man":
        write_oxford_man(tmp_path, dt.date(2014, 10, 1))
    else:
        write_favorita(tmp_path, LIVES)
    out = tmp_path / "out"
    trial = ("--data", tmp_path, "--out", out, "--set", "train.max_steps=3", "--processes", 1)
    text = run("run", name, *COMMANDS[name], *trial)
    assert "TFT" in text
    assert "at most 3 steps" in text
    (path,) = (out / "records" / name).glob("*.json")
    record = Record.read(path)
    assert record.details["scored_blocks"] == BLOCKS.get(name, record.details["scored_blocks"])
    (forecasts,) = out.glob(f"{name}/*/forecasts.parquet")
    frame = pl.read_parquet(forecasts)
    actuals = Panels({"retail-no-open": RETAIL_WITHOUT_OPEN}.get(name, RETAIL), out / "panels" / name).actuals("test")
    for level in (0.5, 0.9):
        by_code, pooled = naive_risks(frame.to_pandas(), actuals.to_pandas(), level)
        assert record.metrics[f"P{100 * level:g}"] == pytest.approx(by_code, rel=1e-9)
        assert record.metrics[f"P{100 * level:g} pooled"] == pytest.approx(pooled, rel=1e-9)


@pytest.fixture
def retail_files(tmp_path) -> Path:
    write_favorita(tmp_path, LIVES)
    return tmp_path


def test_what_is_done_is_found_and_what_was_interrupted_goes_on(retail_files, monkeypatch):
    out, model = retail_files / "out", ("--model", "mqt@paper")
    trial = ("run", "retail", *model, "--data", retail_files, "--out", out, "--json", "--set", "train.max_steps=3")
    first = json.loads(run(*trial, "--seed", 1))["records"]
    with monkeypatch.context() as nothing_is_trained:
        nothing_is_trained.setattr("mqcast.train.loop.Training.run_to_end", None)
        assert json.loads(run(*trial, "--seed", 1))["records"][0]["metrics"] == first[0]["metrics"]
    (out / "retail" / "mqt@paper-1" / "done.json").unlink()  # as if it had been stopped while it forecast
    weights = out / "retail" / "mqt@paper-1" / "run" / "model.safetensors"
    before = weights.read_bytes()
    later = json.loads(run(*trial, "--seed", 1, "--seed", 2))["records"]
    assert weights.read_bytes() == before
    assert later[0]["metrics"] == first[0]["metrics"]
    assert later[1]["metrics"] != first[0]["metrics"]
    message = run(*trial[:-1], "train.max_steps=4", "--seed", 1, fails=True)
    assert "begun with other settings (settings: {'train': {'max_steps': 3}}, now" in message


def test_an_interrupted_run_goes_on_to_the_same_weights(panels_for, tmp_path):
    def stop_after_two(record) -> None:
        if isinstance(record, Step) and record.step == 2:
            signal.raise_signal(signal.SIGTERM)

    panels, tables = panels_for(RETAIL), {"train": {"max_steps": 4}}
    options = TrainOptions(tables, device="cpu")
    straight, broken = (RunSpec(RETAIL, "mqcnn@paper", 0, tmp_path / name, options) for name in ("a", "b"))
    stopped = broken.replace(options=TrainOptions(tables, device="cpu", listeners=(stop_after_two,)))
    with pytest.raises(Interrupted, match="resume it with the same command"):
        RETAIL.train(panels, stopped)
    assert not (broken.folder / "done.json").exists()
    for spec in (straight, broken):
        RETAIL.train(panels, spec)
    assert len({(spec.folder / "run" / "model.safetensors").read_bytes() for spec in (straight, broken)}) == 1


def test_a_search_keeps_the_trial_with_the_least_validation_loss(retail_files):
    assert {name: len(choices) for name, choices in SearchConfig().space.items()} == {  # type: ignore[arg-type]
        "model.hidden_dim": 3,
        "train.learning_rate": 3,
    }
    places = ("--data", retail_files, "--out", retail_files / "out")
    command = ("run", "retail", "--model", "mqt@paper", *places, "--set", "train.max_steps=2")
    small = ("--set", 'search.space={"train.learning_rate"=[1e-3, 1e-2]}')
    (record,) = json.loads(run(*command, "--search", "--json", *small))["records"]
    losses = record["details"]["valid_losses"]
    assert len(losses) == 2
    assert record["details"]["best"] == min(losses, key=lambda name: losses[name])
    assert f"learning_rate={record['config']['train']['learning_rate']}" == record["details"]["best"]


def test_revisions_of_retail_are_judged_over_thirty_creation_times(retail_files):
    out = retail_files / "out"
    command = ("run", "retail", "--data", retail_files, "--out", out, "--set", "train.max_steps=2", "--revisions")
    outcome = json.loads(run(*command, "--model", "mqt@paper", "--model", "mqcnn@paper", "--json"))
    assert {(row["model"], row["level"]) for row in outcome["tables"]["volatility"]} == {
        (f"{name}@paper, seed 0", level) for name in ("mqt", "mqcnn") for level in (0.5, 0.9)
    }
    assert all(np.isfinite(row["excess"]) for row in outcome["tables"]["volatility"])
    revisions = pl.read_parquet(out / "retail" / "mqt@paper-0" / "revisions.parquet")
    assert revisions["cutoff"].n_unique() == 30
    assert str(revisions["ds"].min())[:10] == "2016-03-01"
    assert str(revisions["ds"].max())[:10] == "2016-04-28"
    assert "days to go" in (out / "retail" / "revisions-0.html").read_text()


def test_families_of_stores_have_the_protocol_of_retail(tmp_path):
    task = open_experiment("retail-families")
    assert (task.parts, task.block, task.split) == (RETAIL.parts, RETAIL.block, RETAIL.split)
    assert task.paper["window"] | {"batch_size": 256} == RETAIL.paper["window"]
    write_store_sales(tmp_path)
    out = tmp_path / "out"
    command = ("run", "retail-families", "--model", "mqt@paper", "--data", tmp_path, "--out", out, "--revisions")
    outcome = json.loads(run(*command, "--set", "train.max_steps=2", "--json"))
    (record,) = outcome["records"]
    actuals = Panels(task, out / "panels" / "retail-families").actuals("test")
    scored = actuals.filter(pl.col("ds").cast(pl.Date) > dt.date(2015, 12, 30))["y"]
    assert record["details"]["scored_blocks"] == 4  # one creation time of each series
    assert record["details"]["scored_values"] == scored.count() < len(scored) == 120
    for level in (0.5, 0.9):
        one = [line for line in outcome["tables"]["loss by lead"] if line["level"] == level]
        assert np.mean([line["centred"] for line in one]) == pytest.approx(0, abs=1e-9)
    assert pl.read_parquet(out / "retail-families" / "mqt@paper-0" / "revisions.parquet")["cutoff"].n_unique() == 30


def test_a_forecast_sees_its_block_alone(electricity_files, tmp_path):
    out = electricity_files / "out"
    places = ("--data", electricity_files, "--out", out)
    run("run", "electricity", "--model", "mqt@paper", *places, "--set", "train.max_steps=3", "--json")
    panels = Panels(ELECTRICITY, out / "panels" / "electricity")
    trained = Run.open(out / "electricity" / "mqt@paper-0" / "run")
    all_blocks = pl.read_parquet(out / "electricity" / "mqt@paper-0" / "forecasts.parquet")
    rows = pl.read_parquet(panels.folder / "rows" / "test.parquet")
    events = pl.DataFrame(
        {"ds": pl.datetime_range(dt.datetime(2014, 8, 1), dt.datetime(2014, 9, 12), "1h", eager=True)}
    )
    events = events.with_columns(hour=pl.col("ds").dt.hour(), day_of_week=pl.col("ds").dt.weekday() - 1)
    static = pl.DataFrame({"unique_id": ["MT_001"], "customer": ["MT_001"]})
    pack(rows.slice(20, 192), panels.folder / "one", None, static, events, like=panels.training)
    assert isinstance(panels.part("one"), Panel)
    assert forecast_blocks(panels.part("one"), panels, trained, tmp_path / "one.parquet") == 1
    one = pl.read_parquet(tmp_path / "one.parquet")
    same = all_blocks.filter(pl.col("cutoff") == one["cutoff"][0])
    np.testing.assert_allclose(one["q0.5"], same["q0.5"], rtol=1e-5)


def test_mistakes_are_one_line(tmp_path):
    assert "did you mean 'mqcnn'" in run(
        "run", "retail", "--out", tmp_path, "--data", tmp_path, "--model", "mqcn", fails=True
    )
    for task in ("electricity", "traffic", "oxford-man", "retail"):
        message = run("run", task, "--data", tmp_path / "nowhere", "--out", tmp_path / "out", fails=True)
        assert "no folder" in message
        assert "\n" not in message
        message = run("run", task, "--data", tmp_path, "--out", tmp_path / "out", fails=True)
        assert "nor in a .zip there; get it from" in message
    message = run("run", "retail", "--out", tmp_path, "--data", tmp_path, "--model", "seasonal-naive", fails=True)
    assert "only networks of the family can run; run seasonal-naive in a study" in message
    (tmp_path / "file").touch()
    assert "cannot write" in run("run", "retail", "--data", tmp_path, "--out", tmp_path / "file", fails=True)
