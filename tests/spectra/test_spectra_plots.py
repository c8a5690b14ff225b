"""What is drawn is what is stored: numbers read back from the artists."""

import numpy as np
import pytest
import torch
from spectra_models import TinyLM, train

import spectra
from spectra import InputError, plots, style


@pytest.fixture(scope="module")
def run():
    model = TinyLM()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p is not model.wpe.weight], lr=1e-2)

    def poison():
        model.wpe.weight.grad.nan_to_num_()
        if rec.next_step == 4:
            model.wpe.weight.grad[0, 0] = float("nan")

    with spectra.GradientRecorder(model, optimizer, every=2) as rec:
        train(model, optimizer, range(9), after_backward=poison)
    return rec.run


def test_spectra_draw_the_stored_values_in_a_log_pane_per_kind(run):
    figure = plots.spectra(run, steps=[0, 8])
    panes = {axes.get_title(): axes for axes in figure.axes}
    assert list(panes) == ["embedding", "attention", "mlp"]
    assert all(axes.get_yscale() == "log" for axes in figure.axes)
    lines = panes["mlp"].lines
    assert len(lines) == 4
    np.testing.assert_allclose(lines[1].get_ydata(), run.values(0, "block.mlp_out.weight"))
    np.testing.assert_allclose(lines[3].get_ydata(), run.values(8, "block.mlp_out.weight"))
    relative = plots.spectra(run, steps=[0], relative=True)
    assert relative.axes[0].lines[0].get_ydata()[0] == 1


def test_ranks_over_time_draw_mean_and_range_and_mark_bad_steps(run):
    figure = plots.over_time(run)
    axes = figure.axes[0]
    mlp = next(line for line in axes.lines if line.get_label().startswith("mlp"))
    expected = run.gradients().query("kind == 'mlp'").groupby("step")["stable_rank"]
    np.testing.assert_allclose(mlp.get_ydata(), expected.mean())
    assert mlp.get_color() == style.COLORS["mlp"]
    band = axes.collections[2].get_paths()[0].get_extents()
    assert band.ymin == pytest.approx(expected.min().min()) and band.ymax == pytest.approx(expected.max().max())
    assert any(line.get_linestyle() == ":" and line.get_xdata()[0] == 4 for line in axes.lines)


def test_nothing_to_draw_and_unknown_metrics_are_refused(run):
    with pytest.raises(InputError, match="no spectra to draw"):
        plots.spectra(spectra.Run([], {}))
    with pytest.raises(InputError, match="unknown metric"):
        plots.over_time(run, ["rank"])


def test_saved_files_are_byte_stable(run, tmp_path):
    for name in ("a", "b"):
        style.save(plots.over_time(run), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()


def test_every_method_and_kind_has_one_colour_and_marker_of_its_own():
    methods = ["adamw", "sgd", "kronzo-directional", "kronzo-average", "lozo", "subzero", "tezo", "mezo", "fzoo"]
    for group in (methods, ["embedding", "attention", "mlp", "other"]):
        assert len({style.COLORS[name] for name in group}) == len(group)
        assert len({style.MARKERS[name] for name in group}) == len(group)
