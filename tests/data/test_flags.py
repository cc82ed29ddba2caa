"""Texts that say yes and no are flags wherever kinds are guessed, and one that is neither is told."""

import polars as pl
import pytest

from mqcast import Forecaster, Panel, Schema, errors
from mqcast.data.source import open_source
from mqcast.starter import look_at, starter_toml

KNOWN = Schema(known=["promo"])
WORDS = [("ja", "nein"), ("Yes", "No"), ("OUI", "NON"), ("true", "false"), ("y", "n"), ("t", "f"), (" ja ", "nein")]


def in_words(sales: pl.DataFrame, yes: str = "ja", no: str = "nein") -> pl.DataFrame:
    """The same sales, with their promotions as words."""
    return sales.with_columns(promo=pl.when(pl.col("promo").cast(pl.Boolean)).then(pl.lit(yes)).otherwise(pl.lit(no)))


def as_flag(sales: pl.DataFrame) -> pl.DataFrame:
    return sales.with_columns(pl.col("promo").cast(pl.Boolean))


@pytest.mark.parametrize(("yes", "no"), WORDS)
@pytest.mark.parametrize("role", ["known", "past"])
def test_words_for_yes_and_no_are_read_as_true_and_false(sales, same_arrays, yes, no, role):
    schema = Schema(**{role: ["promo"]})
    found = Panel.from_frame(in_words(sales, yes, no), schema)
    assert found.schema.kinds == {"promo": "flag"}
    same_arrays(found, Panel.from_frame(as_flag(sales), schema))


def test_a_file_is_read_like_its_frame(sales, tmp_path, same_arrays):
    in_words(sales).write_csv(tmp_path / "sales.csv")
    same_arrays(Panel.from_frame(tmp_path / "sales.csv", KNOWN), Panel.from_frame(as_flag(sales), KNOWN))


def test_other_texts_static_ones_and_those_that_were_said_stay_categories(sales):
    words = in_words(sales)
    assert Panel.from_frame(words, KNOWN.replace(kinds={"promo": "category"})).schema.kinds == {"promo": "category"}
    third = words.with_columns(promo=pl.when(pl.int_range(pl.len()) == 3).then(pl.lit("maybe")).otherwise("promo"))
    assert Panel.from_frame(third, KNOWN).schema.kinds == {"promo": "category"}
    assert Panel.from_frame(words.with_columns(promo=pl.lit("ja")), KNOWN).schema.kinds == {"promo": "category"}
    organic = words.with_columns(
        organic=pl.when(pl.col("unique_id") == "a").then(pl.lit("yes")).otherwise(pl.lit("no"))
    )
    assert Panel.from_frame(organic, Schema(static=["organic"])).schema.kinds == {"organic": "category"}


@pytest.mark.parametrize("fill", [0, "nein"])
def test_a_missing_word_may_mean_no(sales, same_arrays, fill):
    gaps = sales.with_columns(promo=pl.when(pl.col("promo").cast(pl.Boolean)).then(pl.lit("ja")))
    schema = KNOWN.replace(fill={"promo": fill})
    found = Panel.from_frame(gaps, schema)
    wanted = as_flag(sales).with_columns(promo=pl.when("promo").then("promo"))
    same_arrays(found, Panel.from_frame(wanted, KNOWN.replace(fill={"promo": 0})))
    assert found.schema.fill == {"promo": 0}


def test_what_to_fill_in_is_said_by_kind(sales):
    rows = sales.with_columns(promo=pl.when(pl.int_range(pl.len()) != 3).then(pl.lit("flyer")))
    with pytest.raises(errors.KnownValuesError, match=r"Schema\(fill=\{'promo': 'none'\}\)"):
        Panel.from_frame(rows, KNOWN)


def test_a_plan_and_a_new_history_may_say_it_in_words(sales):
    last = sales["ds"].unique().sort()[-3]
    past, plan = sales.filter(pl.col("ds") <= last), sales.filter(pl.col("ds") > last).drop("y")
    options = {"horizon": 2, "schema": KNOWN}
    with pytest.warns(errors.FutureMissingWarning):
        made = Forecaster("seasonal-naive", **options).fit(as_flag(past))
    wanted = made.predict(future=as_flag(plan))
    assert made.predict(future=in_words(plan)).equals(wanted)
    assert made.predict(in_words(past), future=as_flag(plan).with_columns(promo=pl.lit("nein"))).height == wanted.height
    whole = as_flag(plan).with_columns(y=pl.lit(None, pl.Float64)).select(sales.columns)
    base = Forecaster("seasonal-naive", **options).fit(pl.concat([as_flag(past), whole]))
    assert base.what_if(in_words(plan)).equals(base.what_if(as_flag(plan)))
    with pytest.raises(
        errors.FlagValuesError, match=r"column 'promo': a flag holds .maybe. .*; use 0 and 1, or yes and no"
    ):
        made.predict(future=plan.with_columns(promo=pl.lit("maybe")))


def test_the_first_look_tells_which_word_is_which(sales):
    look = look_at(open_source(in_words(sales, "Ja", "Nein")), None, None, None)
    assert "promo" in look.schema.known
    assert look.words_of("promo") == "'Ja' is 1, 'Nein' is 0"
    assert "# Flags: promo: 'Ja' is 1, 'Nein' is 0." in starter_toml(look, 2, "sales.csv")[0]
    assert look.words_of("y") == ""


def test_stock_outs_may_be_said_in_words(sales, same_arrays):
    rows = sales.with_columns(here=pl.int_range(pl.len()) % 5 != 0)
    words = rows.with_columns(here=pl.when("here").then(pl.lit("yes")).otherwise(pl.lit("no")))
    same_arrays(*(Panel.from_frame(frame, Schema(observed="here")) for frame in (words, rows)))
