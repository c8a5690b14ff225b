"""The recorder sees the final gradient of a step, whatever the training does, and never changes the training."""

import copy

import numpy as np
import pytest
import torch
from spectra_models import CONTEXT, TinyLM, assert_captured, batch, make, matrices, reference, train
from torch import nn

import spectra
from spectra import InputError
from spectra.layers import inventory
from spectra.record import analyse


@pytest.mark.parametrize("tied", [True, False])
def test_every_captured_gradient_equals_autograd_from_scratch(tied):
    model, optimizer = make(tied)
    with spectra.GradientRecorder(model, optimizer, every=2) as rec:
        for step in range(4):
            expected = matrices(model, batch(step))
            train(model, optimizer, range(step, step + 1))
            if step % 2 == 0:
                assert_captured(rec.run, step, expected)
    assert rec.run.steps == [0, 2]
    names = set(rec.run.frame["layer"])
    assert ("head.weight" in names) is not tied


def test_training_is_bitwise_the_same_with_and_without():
    plain, optimizer = make()
    train(plain, optimizer, range(6))
    state = torch.random.get_rng_state()
    recorded, optimizer = make()
    with spectra.GradientRecorder(recorded, optimizer, every=1):
        train(recorded, optimizer, range(6))
    assert torch.equal(state, torch.random.get_rng_state())
    for a, b in zip(plain.state_dict().values(), recorded.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_accumulation_tokens_and_clipping_are_seen():
    model, optimizer = make()
    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        for part in range(3):
            (model.loss(batch(part)) / 3).backward()
            rec.micro_batch(tokens=4 * CONTEXT)
        whole = {name: p.grad.clone() for name, p in model.named_parameters() if p.ndim > 1}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    frame = rec.run.frame
    assert set(frame["tokens"]) == {12 * CONTEXT} and set(frame["micro_batches"]) == {3}
    np.testing.assert_allclose(frame["clip_factor"], 0.1 / float(norm), rtol=1e-4)
    assert_captured(rec.run, 0, [(name, g * (0.1 / (norm + 1e-6))) for name, g in whole.items()])


def test_fused_qkv_is_analysed_whole_and_split():
    model, optimizer = make()
    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        train(
            model,
            optimizer,
            range(1),
            after_backward=lambda: setattr(model, "kept", model.block.c_attn.weight.grad.clone()),
        )
    for part, block in zip("qkv", model.kept.chunk(3), strict=True):
        np.testing.assert_allclose(
            rec.run.values(0, f"block.c_attn.weight[{part}]"), reference(block), atol=1e-6 * float(block.abs().max())
        )
    frame = rec.run.frame.set_index("layer")
    assert frame.loc["block.c_attn.weight[k]", "part"] == "k" and frame.loc["block.c_attn.weight[k]", "rows"] == 16


def test_a_fused_optimizer_under_grad_scaler_is_unscaled_and_skips_overflow():
    def run(overflow_at):
        model = TinyLM()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with spectra.GradientRecorder(model, optimizer, every=1) as rec:
            expected = []
            for step in range(3):
                expected.append(matrices(model, batch(step)))
                optimizer.zero_grad()
                loss = model.loss(batch(step)) * (float("inf") if step == overflow_at else 1.0)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        return rec.run, expected

    found, expected = run(overflow_at=None)
    assert set(found.frame["scale"]) == {1024.0}
    assert_captured(found, 2, expected[2])
    found, _ = run(overflow_at=1)
    assert found.steps == [0, 1] and set(found.frame["status"]) == {"ok"}


def test_an_unfused_optimizer_under_grad_scaler():
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        expected = matrices(model, batch(0))
        scaler.scale(model.loss(batch(0))).backward()
        scaler.step(optimizer)
    assert_captured(rec.run, 0, expected)


def test_a_step_with_a_closure_is_read_after_its_first_evaluation():
    model = TinyLM()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        for step in range(2):
            expected = matrices(model, batch(step))

            def closure(step=step):
                optimizer.zero_grad()
                loss = model.loss(batch(step))
                loss.backward()
                return loss

            if step == 0:
                optimizer.step(closure)
            else:
                optimizer.step(closure=closure)
            assert_captured(rec.run, step, expected)


def test_micro_batches_inside_a_closure_count_for_its_own_step():
    model = TinyLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with spectra.GradientRecorder(model, optimizer, every=[1], split_half=2) as rec:
        for step in range(3):

            def closure(step=step):
                optimizer.zero_grad()
                for half in range(2):
                    (model.loss(batch(2 * step + half)) / 2).backward()
                    rec.micro_batch(tokens=5)

            if step == 1:
                shot = spectra.snapshot(model, lambda m, x: m.loss(x), [batch(2), batch(3)])
            optimizer.step(closure)
    assert rec.run.steps == [1] and rec.next_step == 3 and set(rec.run.frame["tokens"]) == {10}
    for layer in rec.run.layers:
        expected = shot.noise_values(0, layer)
        np.testing.assert_allclose(rec.run.noise_values(1, layer), expected, rtol=1e-3, atol=1e-5 * expected[0])


def test_an_optimizer_inside_the_backward_is_read_as_gradients_are_accumulated():
    model = TinyLM()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    plain = copy.deepcopy(model)
    with spectra.GradientRecorder(model, every=2, streaming=1) as rec:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        for step in range(3):
            expected = matrices(model, batch(step))
            model.loss(batch(step)).backward()
            rec.step()
            if step % 2 == 0:
                assert_captured(rec.run, step, expected)
    assert rec.run.steps == [0, 2] and all(p.grad is None for p in model.parameters())
    assert len(model.wte.weight._post_accumulate_grad_hooks) == 1
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    train(plain, optimizer, range(3))
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    with (
        pytest.raises(InputError, match=r"start the recorder before the optimizer is put into the backward"),
        spectra.GradientRecorder(model, every=1, streaming=1),
    ):
        model.loss(batch(0)).backward()


def test_streaming_reads_the_sum_of_all_passes_of_a_step_and_nothing_before(monkeypatch):
    model, read = TinyLM(), []
    monkeypatch.setattr("spectra.hooks.analyse", lambda *given: read.append(given[0].name) or analyse(*given))
    with spectra.GradientRecorder(model, every=1, streaming=2, layers="*c_attn*") as rec:
        for _ in range(2):
            model.zero_grad()
            for part in range(2):
                model.loss(batch(part)).backward()
            expected = [("block.c_attn.weight", model.block.c_attn.weight.grad.clone())]
            rec.step()
    for step in range(2):
        assert_captured(rec.run, step, expected)
    assert read == ["block.c_attn.weight"] * 2
    with pytest.raises(InputError, match="streaming=0"):
        spectra.GradientRecorder(model, streaming=0)
    with pytest.raises(InputError, match="leave optimizer, also and split_half out"):
        spectra.GradientRecorder(model, streaming=1, split_half=2)


def test_frozen_late_unfrozen_and_replaced_parameters():
    model, optimizer = make()
    model.block.c_attn.weight.requires_grad_(False)
    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        train(model, optimizer, range(1))
        status = {entry["layer"]: entry["reason"] for entry in rec.run.manifest["inventory"]}
        assert status["block.c_attn.weight"] == "frozen" and status["block.ln.weight"] == "1-D"
        model.block.c_attn.weight.requires_grad_(True)
        train(model, optimizer, range(1, 2))
        assert "block.c_attn.weight" in set(rec.run.frame.query("step == 1")["layer"])
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
        for group in optimizer.param_groups:
            group["params"] = list(model.parameters())
        expected = matrices(model, batch(2))
        train(model, optimizer, range(2, 3))
        assert_captured(rec.run, 2, expected)
    assert {entry["layer"]: entry["status"] for entry in rec.run.manifest["inventory"]}[
        "block.c_attn.weight"
    ] == "captured"


def test_a_layer_without_a_gradient_gets_a_row_and_all_of_them_an_error():
    model, optimizer = make()
    model.unused = nn.Linear(4, 4)
    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        train(model, optimizer, range(1))
    frame = rec.run.frame.set_index("layer")
    assert frame.loc["unused.weight", "status"] == "no gradient" and frame.loc["wte.weight", "status"] == "ok"
    with (
        pytest.raises(InputError, match=r"none of the 6 selected parameters.*before zero_grad"),
        spectra.GradientRecorder(model, optimizer, every=1),
    ):
        optimizer.zero_grad()
        optimizer.step()


def test_non_finite_gradients_leave_a_counted_row_and_training_goes_on():
    model, optimizer = make()

    def poison():
        model.wpe.weight.grad[0, :3] = float("nan")
        model.block.mlp_in.weight.grad[1, 1] = float("inf")

    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        train(model, optimizer, range(1), after_backward=poison)
    frame = rec.run.frame.set_index("layer")
    assert frame.loc["wpe.weight", ["status", "nonfinite"]].tolist() == ["non-finite", 3]
    assert frame.loc["block.mlp_in.weight", "nonfinite"] == 1
    assert frame.loc["wte.weight", "status"] == "ok"
    with pytest.raises(InputError, match="non-finite"):
        rec.run.values(0, "wpe.weight")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("mended", [False, True])
def test_a_non_finite_micro_batch_costs_the_noise_null_of_its_step_only(value, mended):
    model, _ = make()
    with spectra.GradientRecorder(model, every=1, split_half=2) as rec:
        for step in range(3):
            model.zero_grad()
            for half in range(2):
                (model.loss(batch(2 * step + half)) / 2).backward()
                if step == 1:
                    model.wpe.weight.grad[0, 0] = value
                rec.micro_batch(tokens=4)
            if mended:
                model.wpe.weight.grad.nan_to_num_(0.0, 0.0, 0.0)
            rec.step()
    frame = rec.run.frame.set_index(["step", "layer"])
    assert rec.error is None and rec.run.steps == [0, 1, 2]
    assert frame.loc[(1, "wpe.weight"), "status"] == ("ok" if mended else "non-finite")
    assert frame.loc[(1, "wte.weight"), "status"] == "ok"
    assert frame.loc[1, "weyl_rank"].isna().all()
    assert frame.loc[[(0, "wte.weight"), (2, "wte.weight")], "weyl_rank"].notna().all()


def test_halves_of_a_skipped_step_are_forgotten():
    runs = []
    for skipped in (0, 1):
        model, _ = make()
        with spectra.GradientRecorder(model, every=1, split_half=2) as rec:
            for step in range(1 - skipped, 2):
                model.zero_grad()
                for half in range(2):
                    model.loss(batch(2 * step + half)).backward()
                    rec.micro_batch(tokens=4)
            rec.step()
        runs.append(rec.run)
    assert set(runs[1].frame["micro_batches"]) == {2} and set(runs[1].frame["tokens"]) == {8}
    np.testing.assert_array_equal(runs[0].noise_values(0, "wte.weight"), runs[1].noise_values(0, "wte.weight"))


def test_a_loss_scale_is_divided_out_of_every_null():
    model, _ = make()
    layer = next(layer for layer, _ in inventory(model, "*") if layer.name == "wte.weight")
    first, second = torch.randn(2, *model.wte.weight.shape)
    (plain,) = analyse(layer, first + second, first)
    (scaled,) = analyse(layer, 8 * (first + second), 8 * first, scale=8.0)
    for name in ("values", "noise_values", "cross_values"):
        np.testing.assert_allclose(scaled[name], plain[name], rtol=1e-12)
    assert scaled["weyl_rank"] == plain["weyl_rank"] and scaled["signal_energy"] == pytest.approx(
        plain["signal_energy"]
    )


def test_sparse_embeddings_and_conv_and_a_layer_used_twice():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 9, sparse=True)
            self.conv = nn.Conv1d(1, 3, 2)
            self.twice = nn.Linear(8, 8)

        def loss(self, x):
            h = self.conv(self.embed(x)[:, None]).mean(1)
            return self.twice(torch.relu(self.twice(h))).square().sum()

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.tensor([1, 1, 5, 7])
    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        model.loss(x).backward()
        expected = [(n, p.grad.clone()) for n, p in model.named_parameters() if p.ndim > 1]
        optimizer.step()
    assert_captured(rec.run, 0, [(n, g.to_dense() if g.is_sparse else g) for n, g in expected])
    frame = rec.run.frame.set_index("layer")
    assert frame.loc["embed.weight", "zero_rows"] == 17
    assert frame.loc["conv.weight", ["rows", "cols", "orientation"]].tolist() == [3, 2, "folded"]


def test_weights_stored_in_out_are_turned():
    class Conv1D(nn.Module):
        """As transformers stores its weights: (in, out), with the width of the output in nf."""

        def __init__(self):
            super().__init__()
            self.nf = 9
            self.weight = nn.Parameter(torch.randn(3, 9))

    model = nn.ModuleDict({"c_attn": Conv1D()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        gradient = torch.randn(3, 9)
        model["c_attn"].weight.grad = gradient
        optimizer.step()
    frame = rec.run.frame.set_index("layer")
    assert frame.loc["c_attn.weight", ["rows", "cols", "orientation"]].tolist() == [9, 3, "transposed"]
    np.testing.assert_allclose(rec.run.values(0, "c_attn.weight[v]"), reference(gradient.T[6:]), rtol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    class Checkpointed(TinyLM):
        def forward(self, x):
            h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
            return self.head(torch.utils.checkpoint.checkpoint(self.block, h, use_reentrant=reentrant))

    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = matrices(TinyLM(), batch(0))
    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        train(model, optimizer, range(1))
    assert_captured(rec.run, 0, expected)


@pytest.mark.parametrize("when", ["before", "after"])
def test_compiled_models_without_a_graph_break_or_recompile(when):
    model, optimizer = make()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    if when == "after":
        compiled(batch(0)[:, :-1])
    with spectra.GradientRecorder(compiled, optimizer, every=1) as rec:
        expected = matrices(model, batch(0))
        for step in range(2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(
                compiled(batch(0)[:, :-1]).flatten(0, 1), batch(0)[:, 1:].flatten()
            ).backward()
            if step == 0:
                optimizer.step()
                assert_captured(rec.run, 0, expected)
            else:
                with torch.compiler.set_stance("fail_on_recompile"):
                    compiled(batch(0)[:, :-1])
                optimizer.step()
    assert "wte.weight" in rec.run.layers
