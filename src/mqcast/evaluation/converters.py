"""Forecasts of other libraries → forecast frames: `unique_id, cutoff, ds, horizon, q0.5, q0.9, …`, one row per date.

Frames of Nixtla's libraries, AutoGluon and Chronos are returned as frames of the same library, pandas or polars;
objects of Darts and GluonTS as pandas frames. A missing horizon is counted as in `mqcast.evaluation.horizons`; give
`freq` if the dates do not show the frequency. If there is no 0.5 level, a point forecast is used as such. Quantiles
that cross are not changed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import narwhals as nw
import numpy as np
import pyarrow as pa
from narwhals.typing import IntoDataFrameT

from mqcast.data.values import as_text
from mqcast.errors import ColumnTypeError, ConfigError, DataError, EmptyFrameError, MissingColumnError, SchemaError
from mqcast.evaluation.horizons import check_keys, forecast_frame, in_order
from mqcast.levels import quantile_column
from mqcast.settings import nearest

if TYPE_CHECKING:
    import pandas as pd

Predictions: TypeAlias = IntoDataFrameT | Sequence[IntoDataFrameT] | Mapping[Any, IntoDataFrameT]
_OF_A_LEVEL = re.compile(
    r"(?P<model>.+?)(?:-(?P<median>median)|-(?P<side>lo|hi)-(?P<width>[\d.]+)"
    r"|_ql?(?P<level>[\d.]+)(?:_d[\d.]+)?|-q-(?P<percent>[\d.]+))"
)
_OF_A_PARAMETER = re.compile(r"(.+)-(?:loc|scale|df|logits|total_count|(?:lambda|mu|std|total_count|probs|weight)-\d+)")
_OF_A_DARTS_LEVEL = re.compile(r"(.*)_q(\d*\.\d+)")


# -- frames of Nixtla's libraries, AutoGluon and Chronos --------------------------------------------------------------


def from_neuralforecast(
    frame: IntoDataFrameT,
    model: str | None = None,
    *,
    id: str = "unique_id",
    time: str = "ds",
    cutoff: Any = "cutoff",
    freq: str | None = None,
) -> IntoDataFrameT:
    """Convert the result of `cross_validation` of NeuralForecast, StatsForecast, MLForecast or TimeGPT.

    `model` may be left out if there is only one. The result of `predict` has no cutoffs: give `cutoff` as a date.
    """
    rows = _open(frame, (id, time))
    is_column = isinstance(cutoff, str) and cutoff in rows.columns
    if isinstance(cutoff, str) and not is_column and not cutoff[:1].isdigit():
        raise MissingColumnError(
            f"the frame has no cutoff column {cutoff!r}{nearest(cutoff, rows.columns)}; give its name or, for the "
            "result of predict, the last date of the history: cutoff='2024-01-07'"
        )
    keys = {id: "unique_id", time: "ds"} | ({cutoff: "cutoff"} if is_column else {})
    levels = _levels_of(model, [name for name in rows.columns if name not in keys and rows[name].dtype.is_numeric()])
    return forecast_frame(_named(rows, keys, levels), freq, None if is_column else [cutoff])


def from_autogluon(
    predictions: Predictions[IntoDataFrameT], *, cutoff: Any = None, freq: str | None = None
) -> IntoDataFrameT:
    """Convert the result of AutoGluon's `TimeSeriesPredictor.predict`, a list of results, or a dictionary by cutoff.

    The default cutoff is one step before the first date of each series.
    """
    return from_chronos(predictions, cutoff=cutoff, freq=freq)


def from_chronos(
    predictions: Predictions[IntoDataFrameT],
    *,
    cutoff: Any = None,
    id: str = "item_id",
    time: str = "timestamp",
    freq: str | None = None,
) -> IntoDataFrameT:
    """Convert the result of Chronos' `predict_df`, a list of results, or a dictionary by cutoff.

    The default cutoff is one step before the first date of each series. With several targets, each becomes a series
    "<id>/<target>".
    """
    dates = list(predictions) if isinstance(predictions, Mapping) else None if cutoff is None else [cutoff]
    frames: Any = predictions.values() if isinstance(predictions, Mapping) else predictions
    frames = frames if isinstance(predictions, Mapping | list | tuple) else [predictions]
    parts = []
    for i, frame in enumerate(frames):
        rows = _open(frame, (id, time))
        parts.append(_named(rows, {id: "unique_id", time: "ds"}, _levels_in(rows)).with_columns(window=nw.lit(i)))
    if len({tuple(part.columns) for part in parts}) != 1:
        problem = "the frames have different quantile levels; convert only frames with the same levels together"
        raise SchemaError(problem if parts else "there are no frames; give one or more")
    if dates is not None and len(dates) != len(parts):
        raise ConfigError(f"there is one cutoff= for {len(parts)} frames; give a dictionary, {{cutoff: frame}}")
    return forecast_frame(nw.concat(parts), freq, dates)


def _open(frame: Any, keys: Sequence[str]) -> nw.DataFrame[Any]:
    """The frame with its keys as columns, even if they were in a pandas index."""
    if nw.dependencies.is_pandas_dataframe(frame):
        import pandas as pd

        in_index = [name for name in frame.index.names if name is not None and name not in frame.columns]
        frame = pd.DataFrame(frame).reset_index(level=in_index).reset_index(drop=True)
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    try:
        opened: Any = nw.from_native(frame)
    except TypeError:
        kind = type(frame).__name__
        remedy = "give a pandas, polars or Arrow frame, of one model at a time"
        raise ColumnTypeError(f"the forecasts are a {kind}; {remedy}") from None
    opened = opened.collect() if isinstance(opened, nw.LazyFrame) else opened
    for key in keys:
        if key not in opened.columns:
            hint = nearest(key, opened.columns)
            raise MissingColumnError(f"the frame has no column {key!r}{hint}; name one of {opened.columns}")
    return opened


def _levels_of(model: str | None, columns: list[str]) -> dict[float, str]:
    """The column of each level of a model, by Nixtla's naming scheme."""
    models: dict[str, dict[float, str]] = {}
    for name in columns:
        match = _OF_A_LEVEL.fullmatch(name)
        if match is not None:
            models.setdefault(match["model"], {}).setdefault(_level(match), name)
        elif name != "y" and name != "index":
            models.setdefault(name, {})
    for name in list(models):
        if (match := _OF_A_PARAMETER.fullmatch(name)) and models.get(match[1]):
            del models[name]
    if not models:
        raise MissingColumnError("the frame has no column of a model; give the result of cross_validation")
    if model is None and len(models) > 1:
        raise SchemaError(
            f"the frame has several models, {_listed(models)}; choose one, such as model={next(iter(models))!r}"
        )
    model = next(iter(models)) if model is None else model
    if model not in models:
        hint = nearest(model, list(models))
        raise MissingColumnError(f"the frame has no model {model!r}{hint}; there are {_listed(models)}")
    return models[model] if 0.5 in models[model] or model not in columns else models[model] | {0.5: model}


def _level(match: re.Match[str]) -> float:
    if match["median"]:
        return 0.5
    if match["width"]:
        half = float(match["width"]) / 200
        return round(0.5 - half if match["side"] == "lo" else 0.5 + half, 8)
    return float(match["level"]) if match["level"] else round(float(match["percent"]) / 100, 8)


def _levels_in(rows: nw.DataFrame[Any]) -> dict[float, str]:
    """The columns named by quantile levels, as in AutoGluon and Chronos."""
    levels = {float(name): name for name in rows.columns if re.fullmatch(r"0?\.\d+", name)}
    point = next((name for name in ("mean", "predictions") if name in rows.columns), None)
    if not levels and point is None:
        raise MissingColumnError(f"the frame has no column of a quantile ('0.5'); there are {_listed(rows.columns)}")
    return levels if 0.5 in levels or point is None else levels | {0.5: point}


def _named(rows: nw.DataFrame[Any], keys: dict[str, str], levels: dict[float, str]) -> nw.DataFrame[Any]:
    """Only the keys and quantiles, renamed as in a forecast frame."""
    ids = next(old for old, new in keys.items() if new == "unique_id")
    if "target_name" in rows.columns and rows["target_name"].n_unique() > 1:
        rows = rows.with_columns(nw.concat_str(nw.col(ids).cast(nw.String), "target_name", separator="/").alias(ids))
    columns = [nw.col(old).alias(new) for old, new in keys.items()]
    return rows.select(*columns, *(nw.col(levels[level]).alias(quantile_column(level)) for level in sorted(levels)))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


# -- Darts and GluonTS ------------------------------------------------------------------------------------------------


def from_darts(
    forecasts: Any,
    *,
    ids: Sequence[str] | str | None = None,
    quantiles: Sequence[float] | None = None,
    forecast_horizon: int | None = None,
    stride: int | None = None,
) -> "pd.DataFrame":
    """Convert the result of Darts' `historical_forecasts`: a list of forecasts, or one such list per series.

    With `last_points_only`, give the same `forecast_horizon` and `stride` as to `historical_forecasts`. Wrap the
    forecasts of `predict` for several series as `[[forecast] for forecast in forecasts]`.

    `ids` are the names of the series. The default is a static covariate `unique_id`, `item_id` or `id`, or else the
    component (Darts drops static covariates when a torch model predicts quantiles). Each component of a multivariate
    series becomes a series "<id>/<component>". Quantiles are computed from samples, by default 0.1, 0.5 and 0.9;
    components such as "y_q0.10" are quantiles; a deterministic forecast is used as the 0.5 level. The cutoff is taken
    to be one step before the first date, which is too late for models with an `output_chunk_shift`.
    """
    lasts = forecast_horizon is not None
    if _is_darts(forecasts) and not lasts:
        raise ConfigError(
            "one Darts series may be a forecast or the last points of many; give forecast_horizon= if it is from "
            "historical_forecasts(last_points_only=True), or [series] if it is from predict"
        )
    given = [forecasts] if _is_darts(forecasts) else list(forecasts)
    groups = [given] if given and _is_darts(given[0]) and not lasts else [[x] if _is_darts(x) else x for x in given]
    names = [ids] if isinstance(ids, str) else [None] * len(groups) if ids is None else list(ids)
    if len(names) != len(groups):
        raise ConfigError(f"there are {len(names)} ids for {len(groups)} series; give one id per series")
    parts, owner = [], {}
    for i, (name, group) in enumerate(zip(names, groups, strict=True)):
        for one in group:
            cutoffs, horizons = _darts_cutoffs(one, forecast_horizon, stride)
            for series, values in _darts_levels(one, name, quantiles):
                if owner.setdefault(series, i) != i:
                    raise ConfigError(f"two series are named {series!r}; give different names with ids=")
                parts.append((series, cutoffs, one.time_index, horizons, values))
    return _joined(parts)


def _is_darts(forecast: Any) -> bool:
    return hasattr(forecast, "all_values")


def _darts_cutoffs(one: Any, lead: int | None, stride: int | None) -> tuple[list[Any], np.ndarray]:
    """The cutoff and horizon of each date; the last points of many forecasts are `stride` steps apart."""
    n, step = len(one.time_index), one.freq
    if lead is None:
        return [one.time_index[0] - step] * n, np.arange(1, n + 1)
    count = getattr(step, "n", step)
    if count % (stride or count) or (stride is None and count > 1):
        apart = getattr(step, "freqstr", step)
        raise ConfigError(f"the last points are {apart} apart; give the number of steps between them: stride=")
    step = step.base * (count // (stride or 1)) if hasattr(step, "base") else count // (stride or 1)
    return [date - lead * step for date in one.time_index], np.full(n, lead)


def _darts_levels(
    one: Any, name: str | None, quantiles: Sequence[float] | None
) -> list[tuple[str, dict[float, np.ndarray]]]:
    """The id of each component and its quantiles, as arrays over dates."""
    values, components = one.all_values(copy=False), [str(component) for component in one.components]
    static = one.static_covariates
    if name is None and static is not None:
        key = next((key for key in ("unique_id", "item_id", "id") if key in static.columns), None)
        name = None if key is None else as_text(pa.array([static[key].iloc[0]]))[0]
    by_component: dict[str, dict[float, np.ndarray]] = {}
    for i, component in enumerate(components):
        if match := _OF_A_DARTS_LEVEL.fullmatch(component):
            by_component.setdefault(match[1], {})[float(match[2])] = values[:, i, 0]
        elif values.shape[2] > 1:
            levels = (0.1, 0.5, 0.9) if quantiles is None else quantiles
            by_component[component] = dict(zip(levels, np.quantile(values[:, i], levels, axis=1), strict=True))
        else:
            by_component[component] = {0.5: values[:, i, 0]}
    if quantiles is not None:
        for component, levels in by_component.items():
            if missing := [level for level in quantiles if level not in levels]:
                has, remedy = (
                    _listed(map(str, levels)),
                    "choose other levels, or forecast with samples or with these quantiles",
                )
                raise DataError(f"there is no level {missing[0]:g}, only {has}", remedy, series=name or component)
            by_component[component] = {level: levels[level] for level in quantiles}
    if len(by_component) == 1:
        return [(name or next(iter(by_component)), next(iter(by_component.values())))]
    return [(one if name is None else f"{name}/{one}", levels) for one, levels in by_component.items()]


def from_gluonts(
    forecasts: Iterable[Any],
    *,
    quantiles: Sequence[float] = (0.1, 0.5, 0.9),
    stamp: Literal["start", "end"] | None = None,
) -> "pd.DataFrame":
    """Convert GluonTS `Forecast` objects of any kind; the cutoff is one step before their start date.

    GluonTS has periods instead of dates: `stamp` tells whether your data label a week, month, quarter or year by its
    first or its last day. The default is the last day for weeks (as in pandas' "W-SUN") and the first for longer
    periods. Each dimension of a multivariate forecast becomes a series "<id>/<number>". A `QuantileForecast`
    interpolates levels that it does not have, so choose only levels that it has.
    """
    parts = []
    for i, forecast in enumerate(forecasts):
        if forecast.item_id is None:
            remedy = "give each entry of the dataset an item_id, or set forecast.item_id"
            raise DataError(f"forecast {i}, from {forecast.start_date}, has no item_id", remedy)
        n, dates = forecast.prediction_length, _dates_of(forecast, stamp)
        values = {level: np.asarray(forecast.quantile(level), float).reshape(n, -1) for level in quantiles}
        for level in (level for level, value in values.items() if np.isnan(value).all()):
            raise DataError(f"there is no level {level:g}", "choose others: quantiles=", series=str(forecast.item_id))
        dims = next(iter(values.values())).shape[1]
        for k in range(dims):
            name = f"{forecast.item_id}/{k}" if dims > 1 else str(forecast.item_id)
            of_dim = {level: value[:, k] for level, value in values.items()}
            parts.append((name, [dates[0]] * n, dates[1:], np.arange(1, n + 1), of_dim))
    return _joined(parts)


def _dates_of(forecast: Any, stamp: str | None) -> Any:
    """The cutoff, then the dates of a GluonTS forecast."""
    import pandas as pd

    start = forecast.start_date
    unit = start.freqstr.lstrip("0123456789")[0]
    periods = pd.period_range(start - 1, periods=forecast.prediction_length + 1, freq=start.freq)
    if unit in "WMQYA" and (stamp or ("end" if unit == "W" else "start")) == "end":
        return periods.to_timestamp(how="end").normalize()
    return periods.to_timestamp()


def _joined(parts: list[tuple[str, list[Any], Any, np.ndarray, dict[float, np.ndarray]]]) -> Any:
    """A pandas forecast frame of (id, cutoffs, dates, horizons, quantiles by level)."""
    import pandas as pd

    if not parts:
        raise EmptyFrameError("there is no forecast", "give one or more")
    ids, cutoffs, dates, horizons, values = zip(*parts, strict=True)
    if len({tuple(sorted(levels)) for levels in values}) > 1:
        raise SchemaError(
            "the forecasts have different quantile levels; choose those that all of them have: quantiles="
        )
    frame = pd.DataFrame(
        {
            "unique_id": np.repeat(np.array(ids, object), [len(part) for part in dates]),
            "cutoff": [cutoff for part in cutoffs for cutoff in part],
            "ds": np.concatenate([part.to_numpy() for part in dates]),
            "horizon": np.concatenate(horizons).astype(np.int32),
        }
        | {quantile_column(level): np.concatenate([levels[level] for levels in values]) for level in sorted(values[0])}
    )
    rows = nw.from_native(frame, eager_only=True)
    check_keys(rows)
    return in_order(rows)
