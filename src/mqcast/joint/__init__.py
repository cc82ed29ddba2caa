"""Joint forecasts of all steps ahead, and of totals over spans of them, from any forecaster's quantiles; no torch."""
# pyright: strict

from mqcast.joint.dependence import Dependence
from mqcast.joint.learning import fit_dependence
from mqcast.joint.paths import Paths, paths_of
from mqcast.joint.spans import span_quantiles

__all__ = ["Dependence", "Paths", "fit_dependence", "paths_of", "span_quantiles"]
