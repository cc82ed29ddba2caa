"""Figures say what the records say, also of runs that have hardly begun."""

from mqcast.report.figures import learning_curve
from mqcast.report.page import POLICY, figure_page


def step_line(step: int, loss: float) -> dict:
    numbers = {"rate": 1e-3, "gradient_norm": 1.0, "trajectories": 8 * step, "seconds": step / 10}
    return {"record": "step", "step": step, "epoch": (step - 1) // 4, "loss": loss} | numbers


def epoch_line(epoch: int, train: float, valid: float | None, is_best: bool) -> dict:
    by_level = {} if valid is None else {"P50": 2 * valid, "P90": valid / 2}
    facts = {"valid_quantile_loss": by_level, "is_best": is_best, "trajectories": 32, "seconds": 1.0}
    return {"record": "epoch", "step": 4 * epoch + 4, "epoch": epoch, "train_loss": train, "valid_loss": valid} | facts


def run_lines(valid: list[float | None], best: int | None = None) -> list[dict]:
    lines = []
    for epoch, loss in enumerate(valid):
        lines += [step_line(4 * epoch + i + 1, 1 / (4 * epoch + i + 1)) for i in range(4)]
        lines.append(epoch_line(epoch, 0.5 - epoch / 10, loss, best is not None and epoch <= best))
    return lines


def traces(figure) -> dict:
    """Name and, of several runs, group → the points."""
    return {(t.name, t.legendgroup or ""): list(zip(t.x, t.y, strict=True)) for t in figure.data}


def texts(figure) -> list[str]:
    return [note.text for note in figure.layout.annotations]


def test_all_that_was_recorded_is_drawn_by_step():
    figure = learning_curve({"first": run_lines([0.6, 0.4, 0.45], best=1)})
    found = traces(figure)
    assert found["step", ""] == [(i, 1 / i) for i in range(1, 13)]
    assert found["training", ""] == [(4, 0.5), (8, 0.4), (12, 0.3)]
    assert found["validation", ""] == [(4, 0.6), (8, 0.4), (12, 0.45)]
    assert found["P50", ""] == [(4, 1.2), (8, 0.8), (12, 0.9)]
    assert found["P90", ""] == [(4, 0.3), (8, 0.2), (12, 0.225)]
    assert texts(figure) == []


def test_the_last_epoch_that_was_the_best_is_marked():
    figure = learning_curve({"first": run_lines([0.6, 0.4, 0.45], best=1)})
    assert traces(figure)["best validation", ""] == [(8, 0.4)]


def test_axes_say_what_they_show():
    layout = learning_curve({"first": run_lines([0.6], best=0)}).layout
    assert layout.xaxis2.title.text == "step"
    assert "loss" in layout.yaxis.title.text
    assert "validation" in layout.yaxis2.title.text
    assert "first" in layout.title.text


def test_runs_are_told_apart_by_name_and_colour():
    figure = learning_curve({"a": run_lines([0.6, 0.5], best=1), "b": run_lines([0.7], best=0)})
    assert {group for _, group in traces(figure)} == {"a", "b"}
    colours = {t.legendgroup: t.line.color for t in figure.data if t.name == "validation"}
    assert colours["a"] != colours["b"]
    many = {str(i): run_lines([0.6], best=0) for i in range(30)}
    assert len(learning_curve(many).data) == 30 * 6


def test_a_run_without_validation_has_its_training_loss():
    figure = learning_curve({"first": run_lines([None, None])})
    assert {name for name, _ in traces(figure)} == {"step", "training"}
    assert texts(figure) == ["nothing was validated"]


def test_one_epoch_is_enough():
    assert traces(learning_curve({"first": run_lines([0.6], best=0)}))["validation", ""] == [(4, 0.6)]


def test_a_run_without_an_epoch_says_so_and_shows_its_steps():
    figure = learning_curve({"first": [step_line(1, 0.9)]})
    assert traces(figure) == {("step", ""): [(1, 0.9)]}
    assert texts(figure) == ["no epoch has ended yet: first", "nothing was validated"]
    assert "no epoch has ended yet: first" in texts(learning_curve({"first": []}))
    assert "no run" in texts(learning_curve({}))


def test_the_page_of_a_figure_may_load_nothing():
    text = figure_page(learning_curve({"</script><img src=x>": run_lines([0.6], best=0)}))
    policy = text.index(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">')
    assert text.index("<head>") < policy < text.index("<script")
    assert "default-src 'none'" in POLICY
    assert "<img" not in text
