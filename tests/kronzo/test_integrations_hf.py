"""GPT-2 weights both ways, exported folders and ZeroOrderTrainer against the real transformers, accelerate and peft."""

import copy
import json
from pathlib import Path

import pytest
import torch

import kronzo
from kronzo.errors import InputError
from kronzo.pretrain import checkpoint, gpt2, launch
from kronzo.pretrain.config import from_dict
from kronzo.pretrain.loop import pretrain

pytestmark = pytest.mark.extra
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")

from kronzo.integrations import hf, hf_weights  # noqa: E402  (needs transformers)

SHAPE = {"vocab_size": 41, "context": 8, "layers": 2, "heads": 2, "width": 16}


def scattered(model):
    """The model with every parameter away from its initial value, so that a mix-up shows."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


# ---------------------------------------------------------------------- weights


@pytest.mark.parametrize("bias", [True, False])
def test_logits_equal_those_of_transformers_and_the_way_back_gives_the_weights(bias):
    ours = scattered(gpt2.GPT2(gpt2.GPT2Config(**SHAPE, bias=bias))).eval()
    theirs = hf.to_transformers(ours)
    x = torch.randint(0, 41, (3, 8))
    torch.testing.assert_close(theirs(x).logits, ours(x), rtol=0, atol=1e-4)
    assert theirs.num_parameters() >= ours.num_parameters
    assert theirs.config.eos_token_id is theirs.config.bos_token_id is theirs.generation_config.eos_token_id is None
    back = dict(hf.from_transformers(theirs).named_parameters())
    for name, parameter in ours.named_parameters():
        assert torch.equal(back[name], parameter) and back[name].data_ptr() != parameter.data_ptr()
    assert all(bool(back[name].any()) is bias for name in back if name.endswith("c_fc.bias"))


def test_the_end_of_text_of_gpt2_goes_where_the_vocabulary_has_it():
    theirs = hf.to_transformers(gpt2.GPT2(gpt2.GPT2Config(**SHAPE | {"vocab_size": 50304})))
    assert theirs.config.eos_token_id == theirs.config.bos_token_id == 50256


def test_the_released_shape_maps_to_ours():
    ours = hf_weights.shape_of(transformers.GPT2Config())
    assert ours == gpt2.config("gpt2", vocab_size=50257, dropout=0.1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_function", "relu"),
        ("layer_norm_epsilon", 1e-6),
        ("scale_attn_by_inverse_layer_idx", True),
        ("tie_word_embeddings", False),
        ("n_inner", 20),
        ("attn_pdrop", 0.3),
    ],
)
def test_what_ours_does_not_have_is_refused_by_name(key, value):
    with pytest.raises(InputError, match=key):
        hf_weights.shape_of(transformers.GPT2Config(**{key: value}))


# ---------------------------------------------------------------------- folders


def trained(tmp_path, text, tokenizer):
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    given = {
        "model": {"name": "nano", "context": 16, "layers": 1, "width": 16, "heads": 2},
        "data": {"source": str(tmp_path / "text.txt"), "tokenizer": tokenizer},
        "optimizer": {"method": "kronzo"},
        "budget": {"steps": 2, "batch_size": 2},
    }
    return pretrain(from_dict(given), tmp_path / "run", progress=False).folder


TEXT = "\n\n".join(f"Café {i}, naïve\t {i * i}  words." for i in range(400))


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300", "gpt2"])
def test_an_exported_run_opens_with_its_weights_and_its_ids(tmp_path, tokenizer):
    run = trained(tmp_path, TEXT, tokenizer)
    written = hf.export(run, tmp_path / "out")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in written}
    from kronzo.pretrain.runs import open_model

    ours, ids = open_model(run)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "Café 12  naïve\n\t it's <3 \u2028 𝄞  end "
    coded = words(text)["input_ids"]
    assert coded == ids.encode(text).tolist() and words.decode(coded, clean_up_tokenization_spaces=False) == text
    assert words.eos_token_id == theirs.config.eos_token_id == ids.end_of_text
    x = torch.tensor([coded[:16]])
    torch.testing.assert_close(theirs(x).logits, ours(x), rtol=0, atol=1e-4)
    assert theirs.generation_config.suppress_tokens == list(range(ids.num_ids, ids.vocab_size))
    with pytest.raises(InputError, match="is not empty"):
        hf.export(run, tmp_path / "out")


def test_pretraining_starts_from_a_folder_of_transformers(tmp_path):
    run = trained(tmp_path, TEXT, "bpe:300")
    hf.export(run, tmp_path / "out")
    weights = checkpoint.initial_weights(tmp_path / "out")
    ours = checkpoint.initial_weights(run)
    assert weights.keys() == ours.keys() and all(torch.equal(weights[name], ours[name]) for name in ours)
    config = launch.compose(init=str(tmp_path / "out"), data=str(tmp_path / "text.txt"), method="kronzo")
    assert (config.model.width, config.model.context, config.model.bias) == (16, 16, True)
    assert config.data.tokenizer == str(tmp_path / "out" / "tokenizer.json")
    with pytest.raises(InputError, match="transformers cannot open it"):
        (tmp_path / "out" / "model.safetensors").write_bytes(b"torn")
        hf.load(tmp_path / "out")


# ---------------------------------------------------------------------- Trainer

ROWS = torch.randint(0, 41, (24, 8), generator=torch.Generator().manual_seed(7)).tolist()
DATA = [{"input_ids": row, "labels": row} for row in ROWS]
WITHOUT_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def model_of(**config):
    torch.manual_seed(0)
    shape = {"vocab_size": 41, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **config))


def trainer(folder, model, optimizer, cls=hf.ZeroOrderTrainer, **arguments):
    settings = {
        "max_steps": 4, "per_device_train_batch_size": 2, "use_cpu": True, "report_to": [], "save_strategy": "no",
        "disable_tqdm": True, "logging_steps": 1, "lr_scheduler_type": "linear",
    }  # fmt: skip
    return cls(
        model=model,
        args=transformers.TrainingArguments(output_dir=str(folder), **(settings | arguments)),
        train_dataset=DATA,
        data_collator=transformers.default_data_collator,
        optimizers=(optimizer, None),
    )


def weights_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("rule", ["average", "directional"])
def test_accumulated_batches_move_the_weights_as_the_optimizer_alone_does(tmp_path, rule):
    keywords = {"lr": 1e-2, "directions": 2, "rule": rule, "seed": 5}
    model, plain = model_of(**WITHOUT_DROPOUT), model_of(**WITHOUT_DROPOUT)
    optimizer = kronzo.KronZO(model.named_parameters(), **keywords)
    run = trainer(tmp_path, model, optimizer, max_steps=3, gradient_accumulation_steps=2, seed=1)
    seen = []
    original = run._prepare_inputs
    run._prepare_inputs = lambda inputs: seen.append(original(inputs)) or seen[-1]
    run.train()
    alone = kronzo.KronZO(plain.named_parameters(), **keywords)
    for step in range(3):
        alone.param_groups[0]["lr"] = 1e-2 * (1 - step / 3)
        for batch in seen[2 * step : 2 * step + 2]:
            # Trainer divides by the number of labels, of which the first of every 8 has no prediction
            alone.estimate(lambda batch=batch: plain(**batch).loss * 7 / 8)
        alone.step()
    assert run.args.max_grad_norm == 0 and optimizer.last.forwards == alone.last.forwards
    assert not same(weights_of(model), weights_of(model_of()))
    for name, weight in weights_of(model).items():
        torch.testing.assert_close(weight, dict(plain.named_parameters())[name], rtol=0, atol=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_logged_losses_are_of_the_whole_batch(tmp_path):
    def logged(cls, optimizer_of):
        model = model_of(**WITHOUT_DROPOUT)
        run = trainer(tmp_path, model, optimizer_of(model), cls, gradient_accumulation_steps=2, max_steps=2)
        run.train()
        return [entry["loss"] for entry in run.state.log_history if "loss" in entry]

    still = logged(hf.ZeroOrderTrainer, lambda model: kronzo.MeZO(model.parameters(), lr=0.0, eps=1e-4))
    first = logged(transformers.Trainer, lambda model: torch.optim.SGD(model.parameters(), lr=0.0))
    assert still == pytest.approx(first, abs=2e-3)


def test_a_resumed_training_ends_with_the_same_weights(tmp_path):
    def train(folder, resume=None, **arguments):
        model = model_of()
        optimizer = kronzo.LOZO(model.named_parameters(), lr=1e-2, rank=1, refresh_every=3, seed=2)
        run = trainer(folder, model, optimizer, max_steps=5, save_strategy="steps", save_steps=2, **arguments)
        run.train(resume_from_checkpoint=resume)
        return weights_of(model)

    whole = train(tmp_path / "one")
    assert same(train(tmp_path / "two", resume=str(tmp_path / "one" / "checkpoint-2")), whole)


def test_what_cannot_work_is_refused(tmp_path):
    model = model_of()
    with pytest.raises(InputError, match=r"pass optimizers=\(kronzo.KronZO"):
        trainer(tmp_path, model, torch.optim.SGD(model.parameters(), lr=0.1)).train()
    with pytest.raises(InputError, match='data="split" in a Trainer'):
        trainer(tmp_path, model, kronzo.KronZO(model.parameters(), directions=2, data="split")).train()


# ---------------------------------------------------------------------- LoRA


def lora(**config):
    return peft.get_peft_model(model_of(), peft.LoraConfig(r=2, target_modules=["c_attn"], **config))


def test_lora_trains_only_its_adapters_and_says_what_b_equal_zero_means(tmp_path):
    model = lora()
    before = weights_of(model)
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    assert trainable and all("lora_" in name for name, _ in trainable)
    with pytest.warns(UserWarning, match=r"lora_B.* is zero.*move lora_A by noise alone"):
        trainer(tmp_path, model, kronzo.MeZO(trainable, lr=1e-2)).train()
    after = weights_of(model)
    assert {name for name in before if not torch.equal(before[name], after[name])} == {name for name, _ in trainable}
    assert hf.lora_remark(model) is None and hf.lora_remark(model_of()) is None
    assert hf.lora_remark(lora(init_lora_weights=False)) is None


def test_with_b_zero_a_direction_of_a_changes_no_loss():
    model = lora().eval()
    batch = {key: torch.tensor([row[key] for row in DATA[:4]]) for key in DATA[0]}
    loss = model(**batch).loss
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert all(bool(gradient.any()) is ("lora_B" in name) for name, gradient in gradients.items())
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in moved.named_parameters():
            if "lora_A" in name:
                parameter.add_(torch.randn_like(parameter))
    assert moved(**batch).loss.item() == loss.item()


def test_spectra_of_lora_record_the_zero_gradient_of_a_and_say_why():
    import spectra

    model = lora().eval()
    batch = {key: torch.tensor([row[key] for row in DATA[:4]]) for key in DATA[0]}
    run = spectra.snapshot(model, lambda m, b: m(**b).loss, [batch, batch], tokens=32)
    status = dict(zip(run.frame["layer"], run.frame["status"], strict=True))
    assert {name for name, value in status.items() if value == "zero"} == {n for n in status if "lora_A" in n}
    from spectra.report import render

    assert "while lora_B is zero" in render(run, "table")


def test_the_command_exports(tmp_path, monkeypatch, capsys):
    from kronzo import cli

    run = trained(tmp_path, TEXT, "bytes")
    monkeypatch.setattr("sys.argv", ["kronzo", "export", str(run), "--to", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert "from_pretrained" in capsys.readouterr().out
    assert json.loads((Path(tmp_path) / "out" / "config.json").read_text())["model_type"] == "gpt2"
