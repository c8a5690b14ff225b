"""What is drawn is what is stored: numbers read back from the artists."""

import numpy as np
import pytest
import torch
from spectra_models import TinyLM, batch, train

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


def test_the_heat_map_has_a_row_per_layer_and_a_column_per_step(run):
    axes = plots.heat_map(run, "stable_rank").axes[0]
    drawn = axes.collections[0].get_array()
    assert drawn.shape == (5, 5)
    expected = run.gradients().pivot(index="layer", columns="step", values="stable_rank")
    names = ["wte.weight", "wpe.weight", "block.c_attn.weight", "block.mlp_in.weight", "block.mlp_out.weight"]
    np.testing.assert_allclose(np.ma.filled(drawn, np.nan), expected.loc[names])
    assert [label.get_text() for label in axes.get_yticklabels()] == [name.removesuffix(".weight") for name in names]


@pytest.fixture(scope="module")
def everything():
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with spectra.GradientRecorder(model, optimizer, every=2, split_half=2, also=["kronecker", "lags"]) as rec:
        for step in range(5):
            optimizer.zero_grad()
            for half in range(2):
                (model.loss(batch(2 * step + half)) / 2).backward()
                rec.micro_batch(tokens=48)
            optimizer.step()
    return rec.run


def test_the_scree_shows_gradient_noise_cross_values_and_chance(everything):
    layer = "block.mlp_in.weight"
    axes = plots.scree(everything, layer, 2).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    np.testing.assert_allclose(lines["gradient"].get_ydata(), everything.values(2, layer))
    np.testing.assert_allclose(lines["half-difference (noise)"].get_ydata(), everything.noise_values(2, layer))
    cross, drawn = everything.cross_values(2, layer), lines["cross-validated, if positive"].get_ydata()
    np.testing.assert_allclose(drawn[cross > 0], cross[cross > 0])
    chance = lines["Gaussian, same norm"].get_ydata()
    assert np.linalg.norm(chance) == pytest.approx(np.linalg.norm(everything.values(2, layer)))
    top = axes.get_ylim()[1]
    assert everything.values(2, layer)[0] < top < 3 * max(chance[0], everything.values(2, layer)[0])


def test_kronecker_against_plain_has_a_point_per_layer(everything):
    axes = plots.kronecker_against_plain(everything).axes[0]
    drawn = np.concatenate([line.get_xydata() for line in axes.lines if line.get_marker() != "None"])
    frame = everything.frame.query("step == 4 and part == ''")
    for quantity, column in (("gradient", 0), ("kronecker", 1)):
        expected = frame.loc[frame["quantity"] == quantity, "participation_ratio"]
        np.testing.assert_allclose(np.sort(drawn[:, column]), np.sort(expected))


def test_lags_draw_the_mean_and_its_chance_line(everything):
    axes = plots.over_lags(everything).axes[1]
    mlp = next(line for line in axes.lines if line.get_label() == "mlp")
    lags = everything.lags
    expected = lags[lags["layer"].str.contains("mlp")].groupby("lag")["captured"].mean()
    np.testing.assert_allclose(mlp.get_ydata(), expected)
    assert any(line.get_linestyle() == "--" and line.get_ydata()[0] == 0.5 for line in axes.lines)


def test_the_gallery_holds_what_the_run_holds(run, everything):
    assert set(plots.gallery(run, layer="wte.weight")) == {"spectra", "ranks", "heatmap", "scree"}
    names = {"spectra", "ranks", "heatmap", "scree-embedding", "scree-attention", "scree-mlp", "kronecker", "lags"}
    assert set(plots.gallery(everything)) == names
    with pytest.raises(InputError, match="kronecker"):
        plots.kronecker_against_plain(run)
    with pytest.raises(InputError, match="lags"):
        plots.over_lags(run)


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


def test_a_glob_draws_a_scree_for_each_layer_it_matches(everything):
    drawn = plots.gallery(everything, layer="block.mlp_*")
    assert {name for name in drawn if name.startswith("scree")} == {"scree-block.mlp_in", "scree-block.mlp_out"}
    assert "scree" in plots.gallery(everything, layer="wte")
    with pytest.raises(InputError, match="did you mean"):
        plots.gallery(everything, layer="wtee*")
