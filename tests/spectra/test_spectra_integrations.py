"""Smoke tests against the real transformers Trainer and the real Lightning."""

import numpy as np
import pytest
import torch

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
    with pytest.raises(InputError, match="split_half in a Trainer"):
        integrations.trainer_callback(split_half=2)
    callback = integrations.trainer_callback(every=1)
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
