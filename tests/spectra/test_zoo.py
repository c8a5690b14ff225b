"""Captured gradients equal autograd.grad from scratch on real models, and under DistributedDataParallel."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import spectra


def check(model, loss, every_matrix=True, turned=()):
    """One recorded step of SGD against autograd from scratch, for every matrix that requires a gradient."""
    named = [(name, p) for name, p in model.named_parameters() if p.ndim > 1 and p.requires_grad]
    gradients = torch.autograd.grad(loss(), [p for _, p in named], allow_unused=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        loss().backward()
        optimizer.step()
    run = rec.run
    for (name, _), gradient in zip(named, gradients, strict=True):
        if gradient is not None:
            reference = np.linalg.svd(gradient.flatten(1).double().numpy(), compute_uv=False)
            np.testing.assert_allclose(
                run.values(0, name), reference, rtol=1e-5, atol=1e-6 * reference[0], err_msg=name
            )
    listed = {entry["layer"] for entry in run.manifest["inventory"]}
    assert listed == {name for name, _ in model.named_parameters()}
    return run


def test_our_gpt2():
    gpt2 = pytest.importorskip("kronzo.pretrain.gpt2")
    torch.manual_seed(0)
    model = gpt2.GPT2(gpt2.config("gpt2", vocab_size=64, context=16, layers=2, heads=2, width=16))
    x = torch.randint(0, 64, (2, 17))
    run = check(model, lambda: model.loss(x[:, :-1], x[:, 1:]))
    kinds = run.frame.groupby("kind")["layer"].nunique()
    assert kinds["embedding"] == 2 and kinds["attention"] == 2 * (2 + 3) and kinds["mlp"] == 4


def test_a_convolutional_network_with_batch_norm():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 5)
    )
    x, y = torch.randn(6, 3, 8, 8), torch.randint(0, 5, (6,))
    run = check(model, lambda: nn.functional.cross_entropy(model(x), y))
    assert run.frame.set_index("layer").loc["0.weight", ["rows", "cols"]].tolist() == [8, 27]


def test_an_lstm():
    torch.manual_seed(0)
    model = nn.ModuleDict({"lstm": nn.LSTM(6, 10, num_layers=2, batch_first=True), "head": nn.Linear(10, 3)})
    x = torch.randn(4, 7, 6)
    check(model, lambda: model["head"](model["lstm"](x)[0]).square().mean())


def test_torchs_own_transformer_layer():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 16)
    run = check(model, lambda: model(x).square().mean())
    frame = run.frame.set_index("layer")
    assert frame.loc["self_attn.in_proj_weight[q]", "rows"] == 16
    assert (
        frame.loc["self_attn.out_proj.weight", "kind"] == "attention" and frame.loc["linear1.weight", "kind"] == "mlp"
    )


@pytest.mark.extra
def test_transformers_gpt2_with_its_transposed_weights():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0)
    config.embd_pdrop = config.attn_pdrop = 0.0
    model = transformers.GPT2LMHeadModel(config)
    x = torch.randint(0, 50, (2, 12))
    run = check(model, lambda: model(x, labels=x).loss)
    frame = run.frame.set_index("layer")
    fused = frame.loc["transformer.h.0.attn.c_attn.weight"]
    assert (fused["rows"], fused["cols"], fused["orientation"]) == (48, 16, "transposed")
    assert frame.loc["transformer.h.0.attn.c_attn.weight[k]", "rows"] == 16
    assert frame.loc["transformer.h.1.mlp.c_fc.weight", ["kind", "rows"]].tolist() == ["mlp", 64]
    assert "lm_head.weight" not in frame.index


@pytest.mark.extra
def test_lora_by_peft():
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0)
    config.embd_pdrop = config.attn_pdrop = 0.0
    lora = peft.LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.0, fan_in_fan_out=True)
    model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
    x = torch.randint(0, 50, (2, 12))
    run = check(model, lambda: model(x, labels=x).loss)
    status = run.frame.set_index("layer")["status"]
    assert len(status) == 2 and status.filter(like="lora_A").tolist() == ["zero"]
    assert status.filter(like="lora_B").tolist() == ["ok"]


@pytest.mark.extra
def test_accelerates_optimizer_wrapper():
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True)
    plain = nn.Linear(6, 4)
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters()))
    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        accelerator.backward(model(torch.randn(3, 6)).square().mean())
        expected = np.linalg.svd(plain.weight.grad.double().numpy(), compute_uv=False)
        optimizer.step()
    np.testing.assert_allclose(rec.run.values(0, "weight"), expected, rtol=1e-5, atol=1e-6)


WORKER = """
import contextlib, os, sys, torch, spectra
import torch.distributed as dist
from spectra_models import TinyLM, batch
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(TinyLM())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with spectra.GradientRecorder(model, optimizer, every=1, store=f"{folder}/store", split_half=2) as rec:
    for step, synchronise in enumerate((True, False)):
        optimizer.zero_grad()
        for half in range(2):
            x = batch(4 * step + 2 * half + rank)
            with contextlib.nullcontext() if synchronise or half == 1 else model.no_sync():
                loss = torch.nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
                (loss / 2).backward()
            rec.micro_batch(tokens=48)
        optimizer.step()
dist.destroy_process_group()
os._exit(0)  # torch's DistributedDataParallel keeps gloo's threads alive, and python's own end can abort on them
"""


def test_distributed_data_parallel_records_the_reduced_gradient_once_with_halves_of_all_processes(tmp_path):
    from spectra_models import TinyLM, batch

    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", WORKER]
    workers = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for worker in workers:
        _, printed = worker.communicate(timeout=300)
        assert worker.returncode == 0, printed
    run = spectra.open(tmp_path / "store")
    assert run.steps == [0, 1] and "block.mlp_in.weight" in run.layers
    assert set(run.frame["tokens"]) == {2 * 2 * 48} and set(run.frame["micro_batches"]) == {2}
    model = TinyLM()
    for step in range(2):
        grads = [torch.autograd.grad(model.loss(batch(4 * step + i)), list(model.parameters())) for i in range(4)]
        for index, (name, weight) in enumerate(model.named_parameters()):
            if weight.ndim < 2:
                continue
            first, second = ((grads[i][index] + grads[i + 1][index]).double() / 2 for i in (0, 2))
            for read, matrix in ((run.values, (first + second) / 2), (run.noise_values, (first - second) / 2)):
                expected = np.linalg.svd(matrix.numpy(), compute_uv=False)
                np.testing.assert_allclose(read(step, name), expected, rtol=1e-3, atol=1e-5 * expected[0], err_msg=name)
        with torch.no_grad():
            for index, weight in enumerate(model.parameters()):
                weight -= 0.1 * sum(grads[i][index] for i in range(4)) / 4


SHARDED = """
import os, sys, torch, spectra
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/rendezvous", rank=0, world_size=1)
model = torch.nn.Linear(4, 4)
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
try:
    spectra.GradientRecorder(model)
except spectra.InputError as error:
    print(error, flush=True)
dist.destroy_process_group()
os._exit(0)
"""


def test_fsdp2_is_refused_by_name(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", SHARDED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "weight is a DTensor (FSDP2 or tensor parallel)" in done.stdout, done.stderr
