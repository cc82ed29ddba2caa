"""Findings → what stands above everything: who is best, what was judged, and which quantiles are off."""

from collections.abc import Sequence

from mqcast.evaluation.implausible_forecasts import REMEDY_OF_LEVELS
from mqcast.levels import percentile
from mqcast.report.page import digits
from mqcast.report.sources import headline_levels
from mqcast.report.style import shortened
from mqcast.report.summary import Findings, Score

MANY_TIMES = 10  # the baseline's loss: beyond it no percentage is given
MOST_TOLD = 6  # forecasters


def lead_of(findings: Findings) -> list[str]:
    """The answer, for all forecasters, and what was judged."""
    return [*_compared(findings), _judged(findings)]


def _compared(findings: Findings) -> list[str]:
    """Who is best against the baseline; then the others, and the bound if there is one."""
    scores, base = {score.model: score for score in findings.scores}, name_of(findings.baseline)
    rivals = [score for score in findings.scores if score.model != findings.oracle] or list(findings.scores)
    others = [score for score in rivals if score.model != findings.baseline]
    levels = headline_levels(findings.levels)
    if not others:
        risks = " and ".join(f"{digits(rivals[0].risk[level])} at {percentile(level)}" for level in levels)
        texts = [f"{name_of(rivals[0].model)} has a quantile risk of {risks}."]
    elif len(others) == 1:
        texts = [f"{name_of(others[0].model)} has {_losses(others[0], levels)} than {base}."]
    else:
        best = {level: min(rivals, key=lambda score: known(score.risk[level])).model for level in levels}
        at = [f"{name_of(name)} at {percentile(level)}" for level, name in best.items()]
        named = name_of(best[levels[0]]) if len(set(best.values())) == 1 else " and ".join(at)
        told = [f"{name_of(score.model)} has {_losses(score, levels)}" for score in others]
        more = f"; {len(told) - MOST_TOLD:,} more are in the table below" if len(told) > MOST_TOLD else ""
        texts = [
            f"Of {len(rivals):,} forecasters, {named} {'is' if len(set(best.values())) == 1 else 'are'} best.",
            f"Compared with {base}: {'; '.join(told[:MOST_TOLD])}{more}.",
        ]
    if findings.oracle in scores and len(scores) > 1 and findings.oracle != findings.baseline:
        bound = _losses(scores[findings.oracle], levels)
        texts.append(f"{name_of(findings.oracle)}, the best that is possible, has {bound} than {base}.")
    return texts


def _judged(findings: Findings) -> str:
    counts = findings.counts
    judged = (
        f"{counts.rows:,} forecasts of {counts.items:,} item{'s' if counts.items != 1 else ''} from {counts.cutoffs:,} "
        f"cutoff{'s' if counts.cutoffs != 1 else ''} ({counts.first_cutoff} to {counts.last_cutoff}), up to "
        f"{counts.horizon} step{'s' if counts.horizon != 1 else ''} ahead."
    )
    if counts.without_actual:
        judged += f" {counts.without_actual:,} more have no actual yet and are not judged."
    if counts.left_out:
        judged += f" {counts.left_out:,} are left out because not every forecaster has them."
    if counts.is_sampled:
        judged += (
            " Risks, coverage and the largest losses cover all items; volatility and all other sections cover a "
            f"random sample of {counts.sampled:,} items."
        )
    return judged


def _losses(score: Score, levels: Sequence[float]) -> str:
    return " and ".join(_against(score.relative[level], level) for level in levels)


def known(value: float) -> float:
    return value if value == value else float("inf")


def _against(relative: float, level: float) -> str:
    if relative != relative:
        return f"a {percentile(level)} loss that cannot be compared"
    if relative >= MANY_TIMES:
        return f"a {digits(relative)} times higher {percentile(level)} loss"
    change = abs(relative - 1)
    return f"{change:.1%} {'lower' if relative < 1 else 'higher'} {percentile(level)} loss"


def coverage_notices(findings: Findings) -> list[str]:
    """Levels whose coverage is wrong, a text for each forecaster but the oracle."""
    notices = []
    for model, levels in findings.off.items():
        told = "; ".join(_coverage(one.level, one.coverage) for one in levels)
        if model != findings.oracle:
            notices.append(f"{name_of(model)}: {told}. {REMEDY_OF_LEVELS}")
    return notices


def _coverage(level: float, covered: float) -> str:
    named = percentile(level)
    return f"{covered:.1%} of actuals are at or below {named}, instead of {named[1:]}%"


def name_of(model: str | None) -> str:
    return shortened(model or "")
