"""Known columns with gaps: a declared fill, and a flag that tells the network what was missing."""

import numpy as np
import polars as pl
import pytest

from mqcast import Forecaster, Panel, Schema, errors, pack
from mqcast.data.batch import Assembler
from mqcast.data.export import frames_of
from mqcast.settings import ScalingConfig, WindowConfig

SCHEMA = Schema(known=("promo", "price"), fill={"price": 0})


@pytest.fixture
def gaps(sales) -> pl.DataFrame:
    """Prices that are missing in the past and in the plan."""
    return sales.with_columns(price=pl.when(pl.int_range(pl.len()) % 8 < 5).then("price"))


def test_a_fill_is_the_column_filled_and_a_flag_of_what_was_missing(gaps, tmp_path, same_arrays):
    by_hand = gaps.with_columns(pl.col("price").fill_null(0), flag=pl.col("price").is_null())
    wanted = Panel.from_frame(by_hand, Schema(known=("promo", "price", "flag")))
    found = Panel.from_frame(gaps, SCHEMA)
    for name, array in wanted.arrays.items():
        assert array.tobytes() == found.arrays[name].tobytes(), name
    assert found.schema.kinds["price (missing)"] == "flag"
    same_arrays(pack(gaps, tmp_path / "panel", SCHEMA), found)
    assert Panel.open(tmp_path / "panel")._digest() == found.fingerprint


def test_a_network_sees_the_flag_in_the_past_and_in_the_plan(gaps):
    panel = Panel.from_frame(gaps, SCHEMA)
    assemble = Assembler.fit(panel, WindowConfig(horizon=2, history=1, num_fcts=1), ScalingConfig())
    assert assemble.inputs.known_numbers == 3
    assert assemble.inputs.known_flags == (0, 2)


def test_a_category_and_a_flag_may_have_a_fill(gaps):
    frame = gaps.with_columns(
        pl.when("promo").then("promo"), kind=pl.when(pl.col("price").is_not_null()).then(pl.lit("coupon"))
    )
    schema = Schema(known=("promo", "kind"), fill={"promo": False, "kind": "none"})
    panel = Panel.from_frame(frame, schema)
    assert panel.vocabularies["kind"] == ("coupon", "none")
    assert panel.schema.numbers("known") == ("promo", "promo (missing)", "kind (missing)")
    missing = frame["kind"].is_null().to_numpy()
    np.testing.assert_array_equal(panel.arrays["known_category"][:, 0], np.where(missing, 2, 1))
    np.testing.assert_array_equal(panel.arrays["known_number"][:, 0] == 0, frame["promo"].is_null())


def test_rows_of_a_panel_have_the_gaps_again(gaps, same_arrays):
    panel = Panel.from_frame(gaps, SCHEMA)
    rows = frames_of(panel).rows
    assert rows["price"].null_count() == gaps["price"].null_count()
    same_arrays(Panel.from_frame(rows, like=panel), panel)


def test_a_fill_is_part_of_the_layout_and_its_absence_is_not(sales):
    plain, filled = Panel.from_frame(sales, SCHEMA.replace(fill={})), Panel.from_frame(sales, SCHEMA)
    assert "fill" not in plain.layout.description["schema"]
    assert filled.layout.description["schema"]["fill"] == {"price": 0}
    other = Panel.from_frame(sales, SCHEMA.replace(fill={"price": 1}))
    assert len({plain.fingerprint, filled.fingerprint, other.fingerprint}) == 3


def test_a_fill_may_be_in_a_toml_file(tmp_path):
    (tmp_path / "mqcast.toml").write_text('[schema]\nknown = ["promo", "price"]\n[schema.fill]\nprice = 0\n')
    assert Schema.from_toml(tmp_path / "mqcast.toml", table="schema") == SCHEMA
    (tmp_path / "again.toml").write_text(SCHEMA.to_toml())
    assert Schema.from_toml(tmp_path / "again.toml") == SCHEMA


def test_mistakes_say_what_to_give(gaps):
    with pytest.raises(errors.SchemaError, match=r"fill names 'prise' \(did you mean 'price'\?\), which is not known"):
        Schema(known=("price",), fill={"prise": 0})
    with pytest.raises(errors.SchemaError, match="'price' is a number, but its fill is 'none'; give a number"):
        Panel.from_frame(gaps, SCHEMA.replace(fill={"price": "none"}))
    with pytest.raises(errors.SchemaError, match=r"'promo' is a flag, but its fill is 2\.0; give 0 or 1"):
        Panel.from_frame(gaps, SCHEMA.replace(fill={"promo": 2, "price": 0}))
    with pytest.raises(errors.KnownValuesError, match=r"column 'price'.*Schema\(fill=\{'price': 0\}\)"):
        Panel.from_frame(gaps, Schema(known=("promo", "price")))


def test_later_gaps_never_change_earlier_forecasts(gaps):
    def backtest(frame: pl.DataFrame) -> pl.DataFrame:
        made = Forecaster("mqcnn", 1, schema=SCHEMA, max_steps=2, members=1, verbose=False)
        return made.backtest(frame, "2024-01-28", "2024-01-28")

    later = pl.col("ds") > pl.datetime(2024, 2, 4)
    changed = gaps.with_columns(price=pl.when(later).then(7.0).otherwise("price"))
    assert changed["price"].null_count() < gaps["price"].null_count()
    assert backtest(changed).equals(backtest(gaps))
    sooner = gaps.with_columns(price=pl.when(pl.col("ds") < pl.datetime(2024, 2, 11)).then(None).otherwise("price"))
    assert not backtest(sooner).equals(backtest(gaps))
