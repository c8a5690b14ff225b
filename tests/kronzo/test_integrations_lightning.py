"""ZeroOrderTraining against the real Lightning."""

import pytest
import torch

import kronzo
from kronzo.errors import InputError

pytestmark = pytest.mark.extra
lightning = pytest.importorskip("lightning.pytorch")

from kronzo.integrations.lightning import ZeroOrderTraining  # noqa: E402  (needs lightning)

ROWS = torch.randn(14, 5, generator=torch.Generator().manual_seed(7))
BATCHES = [rows.clone() for rows in ROWS.split(2)]
"""Aligned in memory as those of a loader are: products of rows that lie otherwise may round otherwise."""


class Module(lightning.LightningModule):
    """Remembers in which mode and format its forwards ran."""

    def __init__(self, make, dropout=0.0, **scheduler):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Dropout(dropout), torch.nn.Linear(4, 3))
        self.make, self.scheduler, self.seen = make, scheduler, set()

    def training_step(self, batch, batch_idx):
        outputs = self.net(batch[0])
        self.seen.add((torch.is_grad_enabled(), outputs.dtype))
        loss = outputs.float().square().mean()
        self.log("loss", loss)
        return {"loss": loss}

    def configure_optimizers(self):
        self.optimizer = self.make(self.named_parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Frugal(ZeroOrderTraining, Module):
    pass


def fit(module, folder, epochs=1, resume=None, **arguments):
    settings = {
        "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
        "enable_checkpointing": False,
    }  # fmt: skip
    trainer = lightning.Trainer(max_epochs=epochs, default_root_dir=folder, **(settings | arguments))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ROWS), batch_size=2)
    trainer.fit(module, loader, ckpt_path=resume)
    return trainer


def weights_of(module):
    return [parameter.detach().clone() for parameter in module.net.parameters()]


@pytest.mark.parametrize("rule", ["average", "directional"])
def test_accumulated_batches_move_the_weights_as_the_optimizer_alone_does(tmp_path, rule):
    def make(named):
        return kronzo.KronZO(named, lr=1e-2, directions=2, rule=rule, seed=5)

    module, plain = Frugal(make), Module(make)
    trainer = fit(module, tmp_path, accumulate_grad_batches=3, gradient_clip_val=1e-6)
    alone, start = make(plain.named_parameters()), weights_of(plain)
    for step, batches in enumerate([BATCHES[:3], BATCHES[3:6], BATCHES[6:]]):
        alone.param_groups[0]["lr"] = 1e-2 * (1 / (1 + step))
        for batch in batches:
            alone.estimate(lambda batch=batch: plain.net(batch).square().mean().detach())
        alone.step()
    assert trainer.global_step == module.optimizer.param_groups[0]["step"] == 3
    assert module.optimizer.last == alone.last and module.seen == {(False, torch.float32)}
    assert all(torch.equal(a, b) for a, b in zip(weights_of(module), weights_of(plain), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(weights_of(module), start, strict=True))
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_resumed_fit_ends_with_the_same_weights(tmp_path):
    def make(named):
        return kronzo.LOZO(named, lr=1e-2, rank=1, refresh_every=3, seed=2)

    uncut, begun, resumed = (Frugal(make, dropout=0.3) for _ in range(3))
    lightning.seed_everything(3, verbose=False)
    fit(uncut, tmp_path, epochs=2)
    lightning.seed_everything(3, verbose=False)
    fit(begun, tmp_path, epochs=1).save_checkpoint(tmp_path / "one.ckpt")
    stream = torch.get_rng_state()
    half = weights_of(begun)
    torch.set_rng_state(stream)
    fit(resumed, tmp_path, epochs=2, resume=tmp_path / "one.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(weights_of(resumed), weights_of(uncut), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(weights_of(resumed), half, strict=True))


def test_mixed_precision_measures_in_bfloat16(tmp_path):
    module = Frugal(lambda named: kronzo.MeZO(named, lr=1e-3))
    fit(module, tmp_path, precision="bf16-mixed", limit_train_batches=2)
    assert module.optimizer.last is not None and module.seen == {(False, torch.bfloat16)}


def test_what_cannot_work_is_refused(tmp_path):
    class Manual(Frugal):
        def __init__(self, make):
            super().__init__(make)
            self.automatic_optimization = False

    def split(named):
        return kronzo.KronZO(named, directions=2, data="split")

    for cls, make, message in (
        (Frugal, lambda named: torch.optim.SGD(dict(named).values(), lr=0.1), "SGD: return one kronzo.KronZO"),
        (Frugal, split, 'data="split" in Lightning'),
        (Manual, lambda named: kronzo.MeZO(named), "automatic_optimization=False: leave it on"),
    ):
        with pytest.raises(InputError, match=message):
            fit(cls(make), tmp_path)
