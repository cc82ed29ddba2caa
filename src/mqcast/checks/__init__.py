"""A battery that any forecaster can be put through: ours, an object with fit and predict, a function of a frame.

    from mqcast.checks import check_forecaster
    check_forecaster(thing).raise_if_failed()

Each check is importable by its name, and called with a forecaster it raises `CheckError` if its promise does not hold.
"""

from mqcast.checks.battery import Check, all_checks, check_forecaster
from mqcast.checks.candidate import Candidate
from mqcast.checks.results import CheckResult, CheckResults
from mqcast.checks.sample import sample_frame

# The battery's order: what comes back, what it may know, unusual data, manners.
from mqcast.checks.forecasts import (  # isort: skip
    forecasts_are_finite,
    forecasts_are_not_negative,
    forecasts_are_of_sane_size,
    output_has_the_right_shape,
    quantiles_do_not_cross,
    same_input_gives_the_same_forecasts,
)
from mqcast.checks.knowledge import (  # isort: skip
    a_series_alone_is_forecast_as_in_company,
    later_rows_change_no_backtest,
    later_rows_change_no_forecast,
    later_rows_change_no_revision,
    order_of_rows_and_columns_does_not_matter,
)
from mqcast.checks.oddities import (  # isort: skip
    constant_series_are_forecast,
    missing_values_are_forecast_or_refused,
    newcomers_are_forecast_or_refused,
)
from mqcast.checks.manners import (  # isort: skip
    the_frame_is_left_as_it_was,
    the_random_state_is_left_as_it_was,
    what_is_loaded_forecasts_as_what_was_saved,
    what_is_on_disk_is_whole,
)

__all__ = [
    "Candidate",
    "Check",
    "CheckResult",
    "CheckResults",
    "a_series_alone_is_forecast_as_in_company",
    "all_checks",
    "check_forecaster",
    "constant_series_are_forecast",
    "forecasts_are_finite",
    "forecasts_are_not_negative",
    "forecasts_are_of_sane_size",
    "later_rows_change_no_backtest",
    "later_rows_change_no_forecast",
    "later_rows_change_no_revision",
    "missing_values_are_forecast_or_refused",
    "newcomers_are_forecast_or_refused",
    "order_of_rows_and_columns_does_not_matter",
    "output_has_the_right_shape",
    "quantiles_do_not_cross",
    "same_input_gives_the_same_forecasts",
    "sample_frame",
    "the_frame_is_left_as_it_was",
    "the_random_state_is_left_as_it_was",
    "what_is_loaded_forecasts_as_what_was_saved",
    "what_is_on_disk_is_whole",
]
