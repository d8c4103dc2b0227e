"""The page docs/reference/settings.md shows defaults as a user writes them."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from penstock import config

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text("utf-8")
DEFAULTS = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", PAGE, re.M))
SETTINGS = {setting.metadata["variable"]: setting for setting in fields(config.Settings)}


@pytest.mark.parametrize("variable", sorted(DEFAULTS))
def test_default_of_a_setting_on_the_page_is_a_valid_value(variable: str) -> None:
    setting = SETTINGS[variable]
    value = config.load_settings({variable: DEFAULTS[variable]})
    assert str(getattr(value, setting.name)) == str(setting.default)
