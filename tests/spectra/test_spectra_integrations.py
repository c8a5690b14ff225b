"""Smoke tests against the real transformers Trainer and the real Lightning."""

import numpy as np
import pytest
import torch

import spectra
from spectra import InputError, integrations

pytestmark = pytest.mark.extra


def test_transformers_trainer_with_accumulation(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 40, (16, 8)).tolist()]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    callback = integrations.SpectraCallback(every=1)
    assert isinstance(callback, transformers.TrainerCallback)
    assert type(integrations.trainer_callback()) is integrations.SpectraCallback
    transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        data_collator=transformers.default_data_collator,
        callbacks=[callback],
    ).train()
    run = callback.recorder.run
    assert run.steps == [0, 1, 2] and set(run.frame["status"]) == {"ok"}
    assert not callback.recorder._live
    with pytest.raises(AttributeError, match="SpectraCallbak"):
        integrations.SpectraCallbak  # noqa: B018


@pytest.mark.parametrize("norm", [0.05, 0.0])
def test_the_trainers_accumulation_makes_the_halves(tmp_path, norm):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=8, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = transformers.GPT2LMHeadModel(config)
    rows = torch.randint(0, 40, (16, 8))
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=4,
        use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no",
        max_grad_norm=norm, learning_rate=0.0,
    )  # fmt: skip
    seen = []

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(rows)

        def training_step(self, model, inputs, *rest):
            seen.append(inputs["input_ids"].clone())
            return super().training_step(model, inputs, *rest)

    callback = integrations.trainer_callback(every=[1], split_half=4, tokens=16)
    InOrder(
        model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows.tolist()],
        data_collator=transformers.default_data_collator, callbacks=[callback],
    ).train()  # fmt: skip
    run = callback.recorder.run
    shot = spectra.snapshot(model, lambda m, x: m(input_ids=x, labels=x).loss, [seen[i] for i in (4, 6, 5, 7)])
    assert set(run.frame["tokens"]) == {64} and set(run.frame["micro_batches"]) == {4}
    factor = run.frame["clip_factor"].iloc[0]
    assert factor < 0.9 if norm else factor == pytest.approx(1)
    # A snapshot takes alternate batches as halves, a recorder the first and the last ones: hence the order above. Both
    # relative to s_1, since the Trainer divides by the number of labels and the model by that of predictions.
    for layer in ("transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight"):
        for read in (spectra.Run.values, spectra.Run.noise_values):
            found = read(run, 1, layer) / run.values(1, layer)[0]
            np.testing.assert_allclose(found, read(shot, 0, layer) / shot.values(0, layer)[0], rtol=1e-3, atol=1e-5)
    assert not model.transformer.wte.weight._post_accumulate_grad_hooks


def test_split_half_in_a_trainer_of_several_processes_is_refused(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(integrations, "in_process_group", lambda: True)
    with pytest.raises(InputError, match="split_half in a Trainer of several processes"):
        integrations.trainer_callback(split_half=2).on_train_begin(None, None, None)


def test_lightnings_accumulation_makes_the_halves(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    torch.manual_seed(0)
    data = torch.randn(16, 5)
    target = torch.randn(3)

    def loss(layer, x):
        return (layer(x) - target).square().mean()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(5, 3)

        def training_step(self, batch, _):
            return loss(self.layer, batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    module = Module()
    callback = integrations.lightning_callback(every=[1], split_half=2, tokens=4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4)
    lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback], default_root_dir=tmp_path, accumulate_grad_batches=2,
        gradient_clip_val=0.05,
    ).fit(module, loader)  # fmt: skip
    run = callback.recorder.run
    shot = spectra.snapshot(module.layer, loss, [data[8:12], data[12:]])
    factor = run.frame["clip_factor"].iloc[0]
    assert run.steps == [1] and factor < 0.9 and set(run.frame["tokens"]) == {8}
    for read in (spectra.Run.values, spectra.Run.noise_values):
        np.testing.assert_allclose(read(run, 1, "layer.weight"), read(shot, 0, "weight") * factor, rtol=1e-4)


def test_lightning_fit_reads_the_gradient_of_its_own_step(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    torch.manual_seed(0)
    seen = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(5, 3)

        def training_step(self, batch, _):
            return self.layer(batch[0]).square().mean()

        def on_after_backward(self):
            seen.append(self.layer.weight.grad.clone())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = integrations.lightning_callback(every=1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 5)), batch_size=4)
    lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback], default_root_dir=tmp_path,
    ).fit(Module(), loader)  # fmt: skip
    run = callback.recorder.run
    assert run.steps == [0, 1, 2]
    for step, gradient in enumerate(seen):
        expected = np.linalg.svd(gradient.double().numpy(), compute_uv=False)
        np.testing.assert_allclose(run.values(step, "layer.weight"), expected, rtol=1e-5, atol=1e-6)
