"""The report's numbers are those of the evaluation, whatever is sampled, shared or missing."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from report_samples import FIRST, HORIZON, LEVELS, forecasts, sources, world

from mqcast import Panel, Schema, evaluate, volatility
from mqcast.errors import ConfigError
from mqcast.report import summary
from mqcast.report.headline import lead_of
from mqcast.report.sections import _answer
from mqcast.report.sources import Sources
from mqcast.report.summary import Excess, Findings, findings_of
from mqcast.report.write import write_report


def test_the_headline_is_what_evaluate_finds():
    found = findings_of(sources())
    expected = evaluate(forecasts(), world().actuals)
    for score, row in zip(found.scores, expected.iter_rows(named=True), strict=True):
        assert score.model == row["model"]
        for level in LEVELS:
            assert score.risk[level] == pytest.approx(row[f"qrisk_pooled_q{level:g}"])
            assert score.coverage[level] == pytest.approx(row[f"coverage_q{level:g}"])
    good, high = found.scores
    assert found.baseline == "high"
    assert good.relative[0.9] == pytest.approx(good.risk[0.9] / high.risk[0.9])
    assert high.relative[0.9] == 1


def test_the_excess_is_what_volatility_finds():
    found = findings_of(sources())
    expected = volatility(forecasts()["good"], world().actuals).summary
    mine = [one for one in found.excess if one.model == "good"]
    assert [one.excess for one in mine] == expected["excess"].to_list()
    assert [one.reading for one in mine] == expected["reading"].to_list()


def test_the_first_on_the_list_has_the_largest_loss_by_a_plain_sum():
    found, losses = findings_of(sources()).worst, {}
    sold = {(id, ds): y for id, ds, y in world().actuals.iter_rows()}
    for row in forecasts()["good"].iter_rows(named=True):
        away = [(level, sold[row["unique_id"], row["ds"]] - row[f"q{level:g}"]) for level in LEVELS]
        losses.setdefault(row["unique_id"], []).append(np.mean([max(q * e, (q - 1) * e) for q, e in away]))
    worst = max(losses, key=lambda id: np.mean(losses[id]))
    assert found[0].id == worst
    assert found[0].value == pytest.approx(np.mean(losses[worst]))
    assert len(found) == 12


def test_slices_are_peaks_promotions_ramp_down_and_short_horizons():
    names = set(findings_of(sources()).slices["slice"])
    assert {"Overall", "Peaks: all events", "Ramp-down: 2 steps after", "Short horizons: 1 to 1"} <= names
    assert {"Promotion: promo_display", "Promotion: promo_coupon"} <= names
    assert any(name.startswith("Peak: holiday_") for name in names)
    bare = findings_of(Sources.of(forecasts(), world().actuals))
    assert "Peaks: the 5 % of dates that sold most" in set(bare.slices["slice"])


def test_of_a_flag_that_is_usual_the_days_without_it_are_told():
    schema = world().schema.replace(known=(*world().schema.known, "open"))
    week = pl.col("ds").dt.week()
    frame = world().frame.with_columns(open=(week % 4 != 0).cast(pl.Int8))
    found = sources(panel=Panel.from_frame(frame, schema, world().static, world().events))
    slices = findings_of(found).slices
    assert "Promotion: open" not in set(slices["slice"])
    closed = forecasts()["good"].filter(week % 4 == 0).height
    assert slices.filter(slice="Without: open", model="good")["rows"].to_list() == [closed]


def test_of_many_items_a_sample_is_judged_and_the_headline_is_of_all(monkeypatch):
    whole = findings_of(sources())
    monkeypatch.setattr(summary, "MOST_ROWS", 5 * HORIZON * 12)
    found = findings_of(sources())
    assert (found.counts.sampled, found.counts.items) == (5, 12)
    assert found.scores == whole.scores
    assert found.worst == whole.worst
    assert found.slices.filter(slice="Overall")["rows"].to_list() == [5 * HORIZON * 12] * 2
    assert "random sample of 5 items" in " ".join(lead_of(found))
    assert "sample" not in " ".join(lead_of(whole))


def test_rows_that_one_forecaster_lacks_are_left_out_and_counted():
    fewer = forecasts()["high"].filter(pl.col("unique_id") != "item_000003").sample(fraction=1, shuffle=True, seed=1)
    made = Sources.of({"good": forecasts()["good"], "high": fewer}, world().actuals)
    found = findings_of(made)
    assert found.counts.items == 11
    assert made.left_out == 12 * HORIZON
    assert "48 are left out" in " ".join(lead_of(found))
    without = forecasts()["good"].filter(pl.col("unique_id") != "item_000003")
    assert found.scores[0].risk[0.5] == pytest.approx(evaluate(without, world().actuals)["qrisk_pooled_q0.5"][0])


def test_only_levels_that_all_have_are_compared():
    made = Sources.of({"a": forecasts()["good"], "b": forecasts()["high"].drop("q0.1")}, world().actuals)
    assert made.levels == (0.5, 0.9)
    with pytest.raises(ConfigError, match="share no quantile level"):
        Sources.of(
            {"a": forecasts()["good"].drop("q0.5", "q0.9"), "b": forecasts()["high"].drop("q0.1")}, world().actuals
        )


def test_one_item_one_cutoff_and_one_level_leave_parts_out():
    one = forecasts()["good"].filter(unique_id="item_000001")
    alone = findings_of(Sources.of({"good": one}, world().actuals))
    assert {reading.reading for reading in alone.excess} == {"one item: no interval"}
    assert alone.deciles is None
    once = findings_of(Sources.of({"good": one.filter(cutoff=one["cutoff"].min())}, world().actuals))
    assert (once.process, once.leads, once.unstable) == (None, None, ())
    level = findings_of(Sources.of({"good": one.drop("q0.1", "q0.9")}, world().actuals))
    assert level.process is None
    assert level.levels == (0.5,)


def test_targets_without_an_actual_are_counted_and_not_judged():
    known = world().actuals.filter(pl.col("ds") <= world().frame["ds"].unique().sort()[FIRST + 6])
    found = findings_of(Sources.of(forecasts(), known))
    assert found.counts.rows + found.counts.without_actual == 12 * 12 * HORIZON
    assert found.counts.without_actual > 0
    assert "no actual yet" in " ".join(lead_of(found))


def test_frames_of_other_names_types_and_libraries_say_the_same():
    expected = findings_of(Sources.of(forecasts(), world().actuals)).scores
    number = pl.col("unique_id").str.tail(6).cast(pl.Int64).alias("sku")
    renamed = {
        name: frame.with_columns(number, day=pl.col("ds").cast(pl.Date), cutoff=pl.col("cutoff").cast(pl.Date))
        .drop("unique_id", "ds", "horizon")
        .to_pandas()
        for name, frame in forecasts().items()
    }
    actuals = world().actuals.select(number, day=pl.col("ds").cast(pl.Date), sold="y")
    found = findings_of(Sources.of(renamed, actuals, schema=Schema(id="sku", time="day", target="sold")))
    assert [score.risk for score in found.scores] == [pytest.approx(score.risk) for score in expected]
    assert [score.coverage for score in found.scores] == [score.coverage for score in expected]
    zoned = pl.col("ds", "cutoff").dt.replace_time_zone("Europe/Berlin")
    in_zone = {name: frame.with_columns(zoned) for name, frame in forecasts().items()}
    sold = world().actuals.with_columns(pl.col("ds").dt.replace_time_zone("Europe/Berlin"))
    assert findings_of(Sources.of(in_zone, sold)).scores == expected


def test_mistakes_are_told_with_the_nearest_name():
    with pytest.raises(ConfigError, match="nothing to report"):
        Sources.of({}, world().actuals)
    with pytest.raises(ConfigError, match="give actuals, or a panel"):
        Sources.of(forecasts())
    with pytest.raises(ConfigError, match=r"no model 'hgh'.*'high'"):
        sources(baseline="hgh")


def test_a_report_reads_each_frame_once(monkeypatch, tmp_path: Path):
    calls: Counter[str] = Counter()

    def counted(name: str, function):
        def call(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    for name in ("read_forecasts", "read_actuals", "open_source"):
        modules = [module for key, module in sys.modules.items() if key.startswith("mqcast") and hasattr(module, name)]
        assert modules
        function = counted(name, getattr(modules[0], name))
        for module in modules:
            monkeypatch.setattr(module, name, function)
    write_report(tmp_path / "report.html", forecasts(), world().actuals)
    assert calls == {"read_forecasts": 2, "read_actuals": 1, "open_source": 4}  # one is opened for its names alone


def uniform(coverage: float) -> tuple[dict[str, pl.DataFrame], pl.DataFrame]:
    """Demand that is spread evenly between 0 and 1, and a P90 with this coverage."""
    days = pl.DataFrame({"ds": pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 1, 25), eager=True), "j": range(25)})
    ids = pl.DataFrame({"unique_id": [f"i{i:02}" for i in range(20)], "i": range(20)})
    spread = ((pl.col("i") * 5 + pl.col("j") * 37) % 100 + 0.5) / 100
    actuals = ids.join(days, how="cross").select("unique_id", "ds", y=spread)
    rows = actuals.select("unique_id", pl.col("ds").dt.offset_by("-1d").alias("cutoff"), "ds")
    return {"mine": rows.with_columns(pl.lit(coverage).alias("q0.9"))}, actuals


@pytest.mark.parametrize(("coverage", "is_off"), [(0.83, True), (0.97, True), (0.9, False), (0.87, False)])
def test_a_level_whose_coverage_is_off_is_told_above_everything(coverage, is_off, tmp_path):
    frames, actuals = uniform(coverage)
    text = write_report(tmp_path / "r.html", frames, actuals).read_text().split("<main>")[0]
    told = f"mine: {coverage:.1%} of actuals are at or below P90, instead of 90%."
    assert (told in text) == is_off
    assert ('class="warning"' in text) == is_off


def test_an_oracle_is_not_accused_nor_anyone_who_reacts_as_it_does():
    def judged(model: str, lo: float, hi: float, reading: str) -> Excess:
        return Excess(model, 0.5, (lo + hi) / 2, lo, hi, reading, direction_changes=2.0, targets=9)

    oracle = judged("oracle", -0.012, -0.004, "under-reaction")
    alike = judged("alike", -0.009, -0.001, "under-reaction")
    slow = judged("slow", -0.05, -0.02, "under-reaction")
    hasty = judged("hasty", 0.004, 0.009, "over-reaction")
    everyone = [oracle, alike, slow, hasty]
    assert [summary._beside_oracle(one, everyone, "oracle").reading for one in everyone] == [
        *(summary.AS_ORACLE, summary.AS_ORACLE, "under-reaction", "over-reaction")
    ]
    assert [summary._beside_oracle(one, everyone, None) for one in everyone] == everyone


def test_no_star_for_a_small_v_without_accuracy_and_a_note_says_why():
    def of(times: float) -> Findings:
        found = findings_of(sources())
        good, high = (replace(score, risk=dict.fromkeys(LEVELS, 0.1)) for score in found.scores)
        v = {"good": 0.02, "high": 0.001}
        excess = [Excess(model, level, v[model], 0.0, 0.1, "", 2.0, 9) for model in v for level in (0.5, 0.9)]
        poor = replace(high, risk=dict.fromkeys(LEVELS, 0.1 * times))
        return replace(found, scores=(good, poor), excess=tuple(excess))

    def starred(found: Findings) -> list[bool]:
        return [row[5].best for row in _answer(found).tables[0].rows]  # V at P50

    assert starred(of(1.05)) == [False, True]
    assert not _answer(of(1.05)).notes
    assert starred(of(1.4)) == [False, False]
    note = "high's V at P50 is closest to 0, but its loss is 40% higher than that of good"
    assert _answer(of(1.4)).notes[0].startswith(note)


def test_a_headline_of_several_names_the_best_and_the_bound():
    three = forecasts() | {"low": forecasts()["good"].with_columns(pl.col("^q.*$") * 0.7)}
    best, others, bound, _ = lead_of(
        findings_of(Sources.of(three | {"best": three["good"]}, world().actuals, oracle="best"))
    )
    assert best == "Of 3 forecasters, good is best."
    assert others.startswith("Compared with low: good has ")
    assert "high has " in others
    assert bound.startswith("best, the best that is possible, has ")
