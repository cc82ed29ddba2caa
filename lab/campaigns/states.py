"""Any order of a Forecaster's verbs, by the state machine of tests/forecaster_machine.py. Rules that ran are counted.

python -m lab campaign states [--count 2000] [--seed 0] [--minutes M] [--record]
"""

import contextlib
import io
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from forecaster_machine import ForecasterMachine
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from lab.campaigns.campaign import Campaign

GUARANTEE = (
    "Forecasts change by fitting alone, are the same to the bit once saved and loaded, a plan that is the same changes "
    "nothing, errors are typed, and no folder is left behind, in whatever order a Forecaster's verbs are called."
)
EXAMPLES, STEPS = 4, 25  # of one trial: the first example of a seed is a short one


def main() -> None:
    campaign = Campaign(GUARANTEE, count=2000)

    class Counted(ForecasterMachine):
        def done(self, what: str) -> None:
            campaign.check(True, what)
            if campaign.tried > campaign.options.count:
                raise KeyboardInterrupt  # enough

    several = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    with contextlib.suppress(KeyboardInterrupt):
        for number, rng in campaign.trials():
            machine = seed(int(rng.integers(2**32)))(Counted)
            output = io.StringIO()
            try:
                with contextlib.redirect_stdout(output):
                    run_state_machine_as_test(machine, settings=several)
            except Exception as error:
                rules = "\n".join(getattr(error, "__notes__", [])).splitlines()
                rules = [rule for rule in rules if "_as_they_were" not in rule and "no_draft" not in rule]
                campaign.check(False, "order of verbs", f"trial {number}: {error!r} {' '.join(rules)}")
    campaign.finish()


if __name__ == "__main__":
    main()
