"""Studies: systems trained alike, judged on the same windows, in the paper's tables."""

import dataclasses
import datetime as dt
import json
import re
import warnings

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from lab.__main__ import app
from lab.datasets import Dataset
from lab.experiments.experiment import RunSpec, TrainOptions, experiment_names, open_experiment
from lab.experiments.study import Study, StudyData, reaching, run_system
from lab.experiments.study_report import records_of, write_judgement
from lab.experiments.systems import System, import_models
from mqcast import models
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, EventReachWarning

SMALL = {
    "window": {"history": 8, "num_fcts": 8, "batch_size": 8},
    "model": {"hidden_dim": 4, "lookback": 8, "encoder_dilations": [1, 2], "position_dilations": [1]},
    "train": {"max_steps": 3, "micro_batch": 8},
}


@pytest.fixture(scope="module")
def study() -> Study:
    study = open_experiment("private")
    weeks = dt.timedelta(weeks=7)
    return study.replace(options={"num_items": 12}, last_cutoff=study.train_until + weeks, horizon=6, short=2)


@pytest.fixture(scope="module")
def data(study) -> StudyData:
    return study.load(None)


@pytest.fixture(scope="module")
def spec(study, tmp_path_factory) -> RunSpec:
    return RunSpec(study, "mqt", 0, tmp_path_factory.mktemp("out"), TrainOptions(SMALL, device="cpu"))


def with_options(spec: RunSpec, **options) -> RunSpec:
    return spec.replace(options=dataclasses.replace(spec.options, **options))


@pytest.fixture(scope="module")
def judged(study, data, spec):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EventReachWarning)
        names = ("mqcnn", "mqt", "mqcnn-unforked", "seasonal-naive")
        paths = {name: run_system(data, spec.replace(model=name)) for name in names}
    frames = {name: pl.read_parquet(path) for name, path in paths.items()}
    return study.judge_frames(data.dataset, frames)


def test_a_model_may_have_settings_of_its_own_and_the_user_has_the_last_word(study):
    study = study.replace(models={"mqcnn": {"window": {"num_fcts": 7}, "train": {"micro_batch": 5}}})

    def sizes(model: str, tables: dict) -> tuple[int, int | None]:
        config = study.config(model, 0, tables)
        return config.window.num_fcts, config.train.micro_batch

    given = {"window": {"num_fcts": 3, "history": 9}, "train": {"micro_batch": 2}}
    study = study.replace(network=given)
    assert sizes("mqt", {}) == (3, 2)
    assert sizes("mqcnn", {}) == (7, 5)
    assert sizes("mqcnn", {"window": {"num_fcts": 4}}) == (4, 5)
    assert study.config("mqcnn", 0, {"window": {"history": 9}}).window.history == 9
    whole = study.config("mqt", 0, {})
    assert whole.window.history == whole.model.context(study.horizon) > 9


def test_every_system_is_judged_on_the_same_rows_beside_mqcnn(judged):
    assert judged.accuracy["model"].to_list() == ["mqcnn", "mqt", "mqcnn-unforked", "seasonal-naive"]
    assert judged.accuracy["rows"].n_unique() == 1
    relative = judged.comparison.table
    assert relative["mqcnn P50"].drop_nulls().unique().to_list() == [1.0]
    assert {"Overall", "Peaks", "Post-peak ramp-down", "promo_display", "promo_coupon", "Leads 1-2"} == set(
        relative["dimension"]
    )


def test_volatility_has_both_weights_and_paired_reductions(judged):
    tables = judged.tables()
    assert {"volatility, equal weights", "volatility, demand weights", "reduction, equal weights"} <= tables.keys()
    reductions = tables["reduction, demand weights"]
    pairs = [("mqt", "mqcnn"), ("mqcnn-unforked", "mqcnn"), ("seasonal-naive", "mqcnn")]
    pairs += [("mqt", "mqcnn-unforked"), ("mqt", "seasonal-naive")]
    assert list(dict.fromkeys((row["model"], row["against"]) for row in reductions)) == pairs


def test_the_page_and_the_records_say_what_it_cost(judged, spec):
    page = write_judgement(judged, spec, "private")
    assert "minutes an epoch" in page.read_text()
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


def test_without_forking_a_step_has_as_many_trajectories_drawn_one_by_one(study):
    forked, drawn = (study.config(name, 0, SMALL).window for name in ("mqcnn", "mqcnn-unforked"))
    assert forked.batch_size * forked.num_fcts == drawn.batch_size * drawn.num_fcts
    assert drawn.num_fcts == 1
    assert forked.num_steps == drawn.num_steps


def test_what_is_done_is_found_again(data, spec, judged, monkeypatch):
    monkeypatch.setattr("lab.experiments.study.train", None)
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
    with pytest.raises(ConfigError, match=r"other settings .model.*hidden_dim"):
        run_system(data, wider)
    other = study.replace(options={"num_items": 13}).load(None)
    with pytest.raises(ConfigError, match="other data"):
        run_system(other, spec)
    timed = with_options(spec.replace(model="mqcnn", out=tmp_path), minutes=2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lab.experiments.training.steps_within", lambda *_: 1)
        run_system(data, timed)
    run_system(data, timed)
    with pytest.raises(ConfigError, match=r"minutes: 2\.0, now 3\.0"):
        run_system(data, with_options(timed, minutes=3.0))


def test_the_mean_of_several_networks_shares_the_time_and_averages_their_quantiles(study, data, spec, tmp_path):
    spec = with_options(spec.replace(out=tmp_path, seed=3), tables=SMALL | {"train": {"max_steps": 2}})
    path = run_system(data, spec.replace(model="mqt-mean-of-2"))
    members = [tmp_path / "private" / "mqt-mean-of-2-3" / "members" / "private" / f"mqt-{seed}" for seed in (3, 1003)]
    mean, *parts = (pl.read_parquet(file) for file in (path, *(folder / "forecasts.parquet" for folder in members)))
    assert mean.columns == parts[0].columns
    assert not parts[0].equals(parts[1])
    for level in ("q0.5", "q0.9"):
        np.testing.assert_allclose(mean[level], (parts[0][level] + parts[1][level]) / 2, rtol=1e-6)
    facts, *of_members = (json.loads((folder / "done.json").read_text()) for folder in (path.parent, *members))
    assert (facts["members"], facts["steps"]) == (2, 2)
    assert facts["cpu_seconds"] == pytest.approx(sum(fact["cpu_seconds"] for fact in of_members))
    allowed: list[float] = []
    timed = with_options(spec.replace(model="mqcnn-mean-of-3", out=tmp_path / "timed"), minutes=3.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lab.experiments.training.steps_within", lambda minutes, *_: allowed.append(minutes) or 1)
        run_system(data, timed)
    assert allowed == [1.0, 1.0, 1.0]
    frames = {"mqcnn": pl.read_parquet(run_system(data, spec.replace(model="mqcnn"))), "mqt-mean-of-2": mean}
    judged = study.judge_frames(data.dataset, frames)
    records = {record.model: record for record in records_of(judged, spec, "private")}
    assert records["mqt-mean-of-2"].config["model"]["model"] == "mqt"
    page = write_judgement(judged, spec, "private").read_text()
    ids = re.findall(r'\sid="([^"]+)"', page.partition('<script type="application/json"')[0])
    assert {"data-figures", "data-items"}.isdisjoint(ids), "figures are drawn from the scripts of these names"
    assert len(ids) == len(set(ids))


def test_names_of_systems_say_what_is_trained():
    assert System.parse("mqt") == System("mqt", "mqt")
    assert System.parse("mqcnn-unforked-mean-of-3") == System("mqcnn-unforked-mean-of-3", "mqcnn", False, 3)
    with pytest.raises(ConfigError, match="mqt-mean-of-3"):
        System.parse("mqt-mean-of-one")
    with pytest.raises(ConfigError, match=r"model is 'mqx' .did you mean 'mqt'"):
        System.parse("mqx")


def test_every_experiment_of_the_lab_has_its_files_name_and_possible_networks():
    for name in experiment_names():
        experiment = open_experiment(name)
        assert name in (experiment.name, "rossmann_all", "rossmann_monthday")
        for model in ("mqt", "mqrnn-unforked"):
            experiment.config(model, 0, {})


def test_the_command_trains_judges_and_records(tmp_path):
    few = [f"--set={name}" for name in ("train.max_steps=2", "model.hidden_dim=4", "model.head_dim=2")]
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
