"""Any order of a Forecaster's verbs: forecasts change by fitting alone, errors are typed, nothing is left behind."""

import pytest
from forecaster_machine import ForecasterMachine
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
QUICK = settings(
    max_examples=6,
    stateful_step_count=8,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=CHECKS,
)


def test_any_order_of_verbs_keeps_what_was_fitted():
    run_state_machine_as_test(ForecasterMachine, settings=QUICK)


@pytest.mark.slow
def test_many_orders_of_verbs_keep_what_was_fitted():
    run_state_machine_as_test(ForecasterMachine, settings=settings(QUICK, max_examples=60, stateful_step_count=20))
