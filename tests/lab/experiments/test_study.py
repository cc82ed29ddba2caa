"""Studies: systems trained alike, judged on the same windows, in the paper's tables."""

import dataclasses
import datetime as dt
import json
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from lab.__main__ import app
from lab.datasets import Dataset
from lab.experiments.experiment import RunSpec, TrainOptions, experiment_names, open_experiment
from lab.experiments.study import Study, StudyData, reaching
from lab.experiments.study_report import records_of, write_judgement
from lab.experiments.systems import System, import_models
from mqcast import models
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, EventReachWarning, MqcastWarning
from mqcast.forecaster import Forecaster

SMALL = {
    "window": {"history": 8, "num_fcts": 8, "batch_size": 8},
    "model": {"hidden_dim": 4, "lookback": 8, "encoder_dilations": [1, 2], "members": 1},
    "train": {"max_steps": 3, "micro_batch": 8, "warmup_steps": 0},
}


@pytest.fixture(scope="module")
def study() -> Study:
    study = open_experiment("private")
    weeks = dt.timedelta(weeks=7)
    peaks = {"Winter": [study.train_until + dt.timedelta(weeks=4)]}
    changes = {"options": {"num_items": 12}, "last_cutoff": study.train_until + weeks, "peaks": peaks}
    return study.replace(**changes, horizon=6, short=2)


@pytest.fixture(scope="module")
def data(study) -> StudyData:
    return study.load(None)


@pytest.fixture(scope="module")
def spec(study, tmp_path_factory) -> RunSpec:
    return RunSpec(study, "mqt", 0, tmp_path_factory.mktemp("out"), TrainOptions(SMALL, device="cpu"))


def with_options(spec: RunSpec, **options) -> RunSpec:
    return spec.replace(options=dataclasses.replace(spec.options, **options))


def run_system(data, spec) -> Path:
    spec.experiment.train(data, spec)
    return spec.folder / "forecasts.parquet"


@pytest.fixture(scope="module")
def judged(study, data, spec):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EventReachWarning)
        names = ("mqcnn", "mqt", "mqt@paper", "seasonal-naive")
        paths = {name: run_system(data, spec.replace(model=name)) for name in names}
    frames = {name: pl.read_parquet(path) for name, path in paths.items()}
    return study.judge_frames(data.dataset, frames)


def test_every_system_is_judged_on_the_same_rows_beside_mqcnn(judged):
    assert judged.accuracy["model"].to_list() == ["mqcnn", "mqt", "mqt@paper", "seasonal-naive"]
    assert judged.accuracy["rows"].n_unique() == 1
    relative = judged.comparison.table
    assert relative["mqcnn P50"].drop_nulls().unique().to_list() == [1.0]
    assert {"Overall", "Winter", "Post-peak ramp-down", "promo_display", "promo_coupon", "Leads 1-2"} == set(
        relative["dimension"]
    )


def test_volatility_has_both_weights_and_paired_reductions(judged):
    tables = judged.tables()
    assert {"volatility, equal weights", "volatility, demand weights", "reduction, equal weights"} <= tables.keys()
    reductions = tables["reduction, demand weights"]
    pairs = [("mqt", "mqcnn"), ("mqt@paper", "mqcnn"), ("seasonal-naive", "mqcnn")]
    pairs += [("mqt", "mqt@paper"), ("mqt", "seasonal-naive")]
    assert list(dict.fromkeys((row["model"], row["against"]) for row in reductions)) == pairs


def test_the_page_and_the_records_say_what_it_cost(judged, spec):
    page = write_judgement(judged, spec, "private")
    assert "CPU-seconds" in page.read_text()
    assert json.loads((page.parent / "tables.json").read_text()).keys() == judged.tables().keys()
    records = {record.model: record for record in records_of(judged, spec, "private")}
    assert records["mqt"].metrics.keys() == {"P50", "P90"}
    assert records["mqt"].cpu_seconds > 0
    assert records["mqt"].config["train"]["max_steps"] == 3
    assert records["seasonal-naive"].cpu_seconds > 0
    assert records["seasonal-naive"].config["model"] == {"model": "seasonal-naive", "quantiles": [0.5, 0.9]}


def test_another_system_leaves_its_series_alone_under_a_label_with_what_it_took(judged, study, data, spec):
    item = data.dataset.schema.id
    whole = {name: pl.read_parquet(spec.replace(model=name).folder / "forecasts.parquet") for name in ("mqcnn", "mqt")}
    first = whole["mqt"].filter(pl.col(item) == pl.col(item).first())
    some = study.judge_frames(data.dataset, whole | {"peer": first})
    assert some.num_series == 1 < judged.num_series
    folder = spec.replace(model="peer").folder
    folder.mkdir()
    took = {"config": {"minutes": 3}, "facts": {"wall_seconds": 181.0, "cpu_seconds": 180.0}}
    (folder / "peer.json").write_text(json.dumps(took))
    records = {record.model: record for record in records_of(some, spec, "some")}
    assert {record.task for record in records.values()} == {"some"}
    assert records["peer"].cpu_seconds == 180.0
    assert records["peer"].config["minutes"] == 3
    assert records["mqt"].details["series"] == 1
    assert records["mqt"].details["forecasts"] == some.accuracy["rows"][0]
    assert write_judgement(some, spec, "some").parent.name == "judged-some-0"


def test_what_is_done_is_found_again(data, spec, judged, monkeypatch):
    monkeypatch.setattr("lab.experiments.fits.fit", None)
    assert run_system(data, spec).is_file()


def test_series_that_end_get_a_plan_without_promotions():
    weeks = pl.datetime_range(dt.datetime(2024, 1, 3), dt.datetime(2024, 3, 6), "1w", eager=True)
    schema = Schema(freq="W-WED", known=("promo", "price"), kinds={"promo": "flag"})
    whole = pl.DataFrame({"unique_id": "a", "ds": weeks, "y": 1.0, "promo": 1, "price": np.arange(10.0)})
    rows = pl.concat([whole, whole.head(4).with_columns(unique_id=pl.lit("b"))])
    study = Study(name="s", dataset="frat", horizon=2, train_until=weeks[5], last_cutoff=weeks[6])
    extended = reaching(rows, Dataset(rows.lazy(), schema), study).filter(unique_id="b")
    assert extended["ds"].max() == weeks[8]
    assert extended["promo"].to_list() == [1] * 4 + [0] * 5
    assert extended["price"].to_list() == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert extended["y"].null_count() == 5


def test_what_is_done_is_not_taken_for_what_other_settings_or_data_would_give(study, data, spec, judged, tmp_path):
    wider = with_options(spec, tables=SMALL | {"model": {"hidden_dim": 8}})
    with pytest.raises(ConfigError, match=r"begun with other settings .*hidden_dim"):
        run_system(data, wider)
    with pytest.raises(ConfigError, match=r"minutes: None, now 3\.0"):
        run_system(data, with_options(spec, minutes=3.0))
    other = study.replace(options={"num_items": 13}).load(None)
    with pytest.raises(ConfigError, match=r"begun with other settings .data"):
        run_system(other, spec)


def test_names_of_systems_say_how_they_are_trained():
    assert System.parse("mqt") == System("mqt", "mqt")
    assert System.parse("mqcnn@paper") == System("mqcnn@paper", "mqcnn", "paper")
    assert System.parse("mqcnn-unforked@paper") == System("mqcnn-unforked@paper", "mqcnn", "paper", False)
    assert System.parse("mean_of(mqt, 2)").model == "mean_of(mqt, 2)"
    for name, message in {
        "mqx": r"model is 'mqx' .did you mean 'mqt'",
        "mqt@papr": r"preset is 'papr' .did you mean 'paper'",
        "mqcnn-unforked": "the recipe decides how mqcnn is trained; write mqcnn-unforked@paper, or mqcnn",
        "seasonal-naive@paper": "only networks have presets",
    }.items():
        with pytest.raises(ConfigError, match=message):
            System.parse(name)


@pytest.mark.parametrize(
    ("models", "tables", "message"),
    [
        (["mqt-unforked@paper"], {}, "leave mqt-unforked@paper out of private"),
        (["mqt"], {"model": {"hiden_dim": 4}}, "no setting 'hiden_dim'"),
        (["mqt@paper"], {"window": {"horizon": 3}}, "horizon is 6; remove it from the config"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(study, models, tables, message):
    with pytest.raises(ConfigError, match=message):
        study.check_models(models, tables)


@pytest.mark.parametrize(("name", "preset"), [("mqt", None), ("mqt@paper", "paper")])
def test_a_study_is_trained_as_a_forecaster_is(study, data, spec, judged, name, preset):
    """The settings of the recipe or of the preset, with nothing of the study's own but dates, horizon and levels."""
    dataset = data.dataset
    known = dataset.frame.filter(pl.col("ds") <= study.train_until)
    forecaster = Forecaster("mqt", study.horizon, study.levels, dataset.schema, config=SMALL, preset=preset, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MqcastWarning)
        wanted = forecaster.fit(known, **dataset.tables).config_.model_dump(mode="json")
    config = json.loads((spec.replace(model=name).folder / "done.json").read_text())["config"]
    for table in ("model", "scaling", "window", "train"):
        assert config[table] == wanted[table]


def test_a_search_takes_the_point_of_the_grid_with_the_least_validation_loss(data, spec, tmp_path):
    tables = SMALL | {"train": {"warmup_steps": 0}, "search": {"space": {"train.learning_rate": [1e-3, 1e-2]}}}
    options = {"tables": tables, "search": True, "minutes": 0.02}
    spec = with_options(spec.replace(out=tmp_path, model="mqt-nods"), **options)
    run_system(data, spec)
    facts = json.loads((spec.folder / "done.json").read_text())
    losses, found = facts["search"]["losses"], facts["search"]["settings"]["train.learning_rate"]
    assert len(losses) == 2
    assert min(losses, key=lambda name: losses[name]) == f"learning_rate={found}"
    assert facts["config"]["train"]["learning_rate"] == found
    trials = tmp_path / "private" / "mqt-nods-grid" / "trials"
    assert {path.name for path in trials.iterdir()} == losses.keys()


def test_every_experiment_of_the_lab_has_its_files_name_and_possible_networks():
    for name in experiment_names():
        experiment = open_experiment(name)
        assert name == experiment.name
        experiment.check_models(["mqt", "mqcnn@paper"], {})


def test_the_command_trains_judges_and_records(tmp_path):
    few = [f"--set={name}" for name in ("train.max_steps=2", "model.hidden_dim=4", "model.members=1")]
    options = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), "--set=dataset.num_items=10"]
    ran = CliRunner().invoke(app, ["run", "private", *options, "--model", "mqt", "--processes", "1", *few])
    assert ran.exit_code == 0, (ran.output, ran.exception)
    assert "all tables" in ran.stdout
    names = {path.name for path in (tmp_path / "results" / "private").iterdir()}
    assert names == {f"{what}-0.json" for what in ("mqt", "mqcnn", "seasonal-naive", "oracle", "tables")}
    network, best = (
        json.loads((tmp_path / "results" / "private" / f"{name}-0.json").read_text()) for name in ("mqt", "oracle")
    )
    assert network["metrics"]["regret P50, Overall"] == pytest.approx(
        network["metrics"]["P50"] / best["metrics"]["P50"] - 1
    )
    assert network["metrics"]["regret P50, Overall"] > 0


def test_what_happens_after_train_until_changes_no_forecast_made_at_it(study, data, spec, tmp_path):
    late = pl.col("ds") > study.train_until
    rows = data.dataset.frame.with_columns(y=pl.when(late).then(-3.0 * pl.col("y")).otherwise("y"))
    changed = dataclasses.replace(data.dataset, rows=rows.lazy())
    forecasts = []
    for name, one in (("same", data), ("other", StudyData(changed, changed.panel()))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            specs = [spec.replace(out=tmp_path / name, model=model) for model in ("mqt", "seasonal-naive")]
            frames = [pl.read_parquet(run_system(one, spec)) for spec in specs]
        forecasts.append([frame.filter(pl.col("cutoff") == study.train_until) for frame in frames])
    for one, two in zip(*forecasts, strict=True):
        assert one.height > 0
        assert one.equals(two)


OWN_MODEL = """
import numpy as np
from mqcast import models


@models.register("last-value")
class LastValue:
    def fit(self, panel, options):
        self.options = options
        assert np.nanmax(panel.target) < 1e6, "a target after the cutoff was shown"

    def forecast(self, panel, first=None, last=None):
        shape = self.options.horizon, len(self.options.quantiles)
        return models.forecast_each(panel, self.options, lambda y: np.full(shape, y[~np.isnan(y)][-1]), first, last)
"""


@pytest.fixture
def own_model(tmp_path):
    (tmp_path / "my_models.py").write_text(OWN_MODEL)
    import_models(str(tmp_path / "my_models.py"))
    yield "last-value"
    models.unregister("last-value")


def test_a_registered_model_is_fitted_at_the_cutoff_judged_and_recorded(own_model, study, data, spec, judged):
    spec = spec.replace(model=own_model)
    late = pl.col("ds") > study.train_until
    rows = data.dataset.frame.with_columns(y=pl.when(late).then(pl.col("y") + 1e7).otherwise("y"))
    hidden = dataclasses.replace(data.dataset, rows=rows.lazy())
    run_system(StudyData(hidden, hidden.panel()), spec.replace(out=spec.out / "hidden"))
    forecasts = pl.read_parquet(run_system(data, spec))
    rows = data.dataset.frame.select("unique_id", pl.col("ds").alias("cutoff"), pl.col("y").cast(pl.Float32))
    first = forecasts.filter(cutoff=study.train_until).join(rows, on=["unique_id", "cutoff"])
    assert first.height == 12 * study.horizon
    assert (first["q0.5"] == first["y"]).all()
    mqcnn = pl.read_parquet(spec.replace(model="mqcnn").folder / "forecasts.parquet")
    some = study.judge_frames(data.dataset, {"mqcnn": mqcnn, own_model: forecasts})
    record = {record.model: record for record in records_of(some, spec, "private")}[own_model]
    assert min(record.wall_seconds, record.cpu_seconds) > 0
    assert record.config["model"]["model"] == own_model
    assert write_judgement(some, spec, "with-own").is_file()
    with pytest.raises(ConfigError, match=r"minutes: None, now 2\.0"):
        run_system(data, with_options(spec, minutes=2.0))


def test_the_mean_of_unlike_models_is_a_system(own_model, data, spec):
    names = ("mean_of(last-value, seasonal-naive)", own_model, "seasonal-naive")
    mean, *parts = (pl.read_parquet(run_system(data, spec.replace(model=name)))["q0.9"] for name in names)
    np.testing.assert_allclose(mean, (parts[0] + parts[1]) / 2, rtol=1e-6)


def test_a_module_that_cannot_be_imported_is_named():
    with pytest.raises(ConfigError, match=r"--module nobodys\.models: No module named 'nobodys'"):
        import_models("nobodys.models")
    with pytest.raises(ConfigError, match=r"--module missing\.py: there is no such file"):
        import_models("missing.py")
