"""`python -m lab benchmark`, `campaign` and `pictures` show what can be run."""

import re

import pytest
from typer.testing import CliRunner

from lab.__main__ import app
from mqcast.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "script", "helper"),
    [
        (["campaign"], "frames: Random frames", "damages"),
        (["benchmark", "--help"], "pack: Time and peak memory", "harness"),
        (["pictures"], "evidence: Draw", "__init__"),
    ],
)
def test_without_a_name_scripts_are_listed_and_helper_modules_are_not(arguments, script, helper):
    listing = CliRunner().invoke(app, arguments)
    assert listing.exit_code == 0
    assert re.search(f"^{script}", listing.stdout, re.MULTILINE)
    assert not re.search(f"^{helper}:", listing.stdout, re.MULTILINE)


def test_an_unknown_script_is_refused_with_the_nearest_name():
    refused = CliRunner().invoke(app, ["campaign", "framez"])
    assert isinstance(refused.exception, ConfigError)
    assert "no campaign 'framez' (did you mean 'frames'?); there are battery" in str(refused.exception)
