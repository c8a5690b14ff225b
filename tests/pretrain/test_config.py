from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import small_config

import kronzo
from kronzo.errors import InputError
from kronzo.pretrain import config as configs
from kronzo.pretrain import optimizers, steps
from kronzo.pretrain.config import (
    Config,
    OptimizerConfig,
    differences,
    from_dict,
    from_toml,
    override,
    to_dict,
    to_toml,
)
from kronzo.pretrain.gpt2 import GPT2, GPT2Config

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
POSITIVE = st.floats(1e-12, 1e6)


@given(
    seed=st.integers(0, 2**63),
    init=TEXT,
    source=TEXT,
    lr=st.none() | POSITIVE,
    betas=st.none() | st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
    factors=st.sampled_from([None, "square", ("max", 32)]),
    scale=st.dictionaries(TEXT.filter(bool), POSITIVE, max_size=3),
    extra=st.dictionaries(TEXT.filter(bool), st.booleans() | st.integers(-9, 9) | POSITIVE | TEXT, max_size=3),
    stages=st.lists(st.floats(0, 0.99), max_size=4).map(tuple),
)
@settings(max_examples=100, deadline=None)
def test_toml_round_trip(
    seed: int, init: str, source: str, lr: float | None, betas: Any, factors: Any, scale: Any, extra: Any, stages: Any
) -> None:
    config = Config(
        seed=seed,
        init=init,
        data=configs.DataConfig(source=source),
        optimizer=OptimizerConfig(lr=lr, betas=betas, factors=factors, scale=scale, extra=extra),
        spectra=configs.SpectraConfig(stages=stages),
    )
    assert from_dict(tomllib.loads(to_toml(config))) == config
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["optimizer.lrr=1"], "optimizer.lrr: unknown key, did you mean optimizer.lr?"),
        (["lr=1"], "lr: unknown key, did you mean optimizer.lr?"),
        (["modle.width=4"], "modle: unknown key, did you mean model?"),
        (["model.width=4.5"], "model.width = 4.5: a whole number is needed"),
        (["model.bias=1"], "model.bias = 1: true or false is needed"),
        (["seed=true"], "seed = True: a whole number is needed"),
        (["optimizer.lr=fast"], "optimizer.lr = 'fast': a number is needed"),
        (["optimizer.lr=nan"], "optimizer.lr = nan"),
        (["optimizer.lr=-1"], "optimizer.lr = -1.0: a finite number of at least 0"),
        (["optimizer.betas=0.9"], r"optimizer.betas = 0.9: a list of \(a number\)"),
        (["optimizer.factors=[1.5]"], "a string or a list of"),
        (["optimizer.schedule=cosin"], "did you mean 'cosine'"),
        (["optimizer.warmup=2"], "optimizer.warmup = 2.0: a fraction"),
        (["device=gpu"], "device = 'gpu': one of cpu, cuda, auto"),
        (["budget=3"], r"a table \[budget\] is needed"),
        (["budget.batch_size=6", "budget.accumulate=4"], "not a multiple of budget.accumulate = 4"),
        (["spectra.stages=[1.0]"], r"fractions of the run in \[0, 1\)"),
        (["optimizer.lr"], "section.key=value is needed"),
        (["seed.x=1"], "seed = {'x': 1}"),
        (["seed=1", "seed.x=1"], "seed is a value and not a table"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(settings: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_dict(override({}, settings))


def test_two_budgets_are_refused_and_a_setting_replaces_the_others() -> None:
    with pytest.raises(InputError, match=r"budget.steps = 3 and budget.tokens = 4: exactly one"):
        from_dict({"budget": {"steps": 3, "tokens": 4}})
    budget = from_dict(override({"budget": {"steps": 3, "batch_size": 2}}, ["budget.tokens=4000"])).budget
    assert (budget.steps, budget.tokens, budget.batch_size) == (None, 4000, 2)


def test_override_reads_toml_values_strings_and_dotted_keys_and_leaves_its_input() -> None:
    given = {"optimizer": {"lr": 1.0}}
    result = override(
        given, ["optimizer.lr=1e-3", "data.source=pydocs:numpy,scipy", "optimizer.scale.wte.weight=2", "seed=7"]
    )
    assert given == {"optimizer": {"lr": 1.0}}
    config = from_dict(result)
    assert config.optimizer.lr == 1e-3 and config.data.source == "pydocs:numpy,scipy" and config.seed == 7
    assert config.optimizer.scale == {"wte.weight": 2.0}


def test_files_that_are_no_config_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        from_toml(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(InputError, match="not valid TOML"):
        from_toml(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b'a = "\xff"')
    with pytest.raises(InputError, match="not UTF-8 at byte 5"):
        from_toml(tmp_path / "bytes.toml")
    (tmp_path / "empty.toml").write_text("# nothing\n")
    with pytest.raises(InputError, match=r"empty\.toml: holds no setting"):
        from_toml(tmp_path / "empty.toml")


def test_differences_name_what_changes_a_result_and_nothing_else() -> None:
    left = small_config()
    assert differences(left, small_config("checkpoint.keep=9")) == []
    assert differences(left, small_config("optimizer.lr=0.5")) == ["optimizer.lr is 0.5 there and None here"]


def test_every_dataclass_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 3  # type: ignore[misc]


# ---------------------------------------------------------------- optimizers


def test_resolving_writes_out_the_class_defaults_and_is_idempotent() -> None:
    for method in (*kronzo.METHODS, "adamw", "sgd"):
        resolved = optimizers.resolve(OptimizerConfig(method=method))
        assert resolved.lr is not None and resolved.weight_decay is not None
        assert optimizers.resolve(resolved) == resolved
        assert from_dict(tomllib.loads(to_toml(Config(optimizer=resolved)))).optimizer == resolved


def test_published_takes_the_papers_settings_and_given_keys_win() -> None:
    resolved = optimizers.resolve(OptimizerConfig(method="kronzo", published=True, directions=5))
    paper = kronzo.published("kronzo")
    assert resolved.directions == 5 and not resolved.published
    assert {key: getattr(resolved, key) for key in paper if key != "directions"} == {
        key: value for key, value in paper.items() if key != "directions"
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (OptimizerConfig(method="kronz"), "did you mean 'kronzo'"),
        (OptimizerConfig(method="kronzo", rank=2), "optimizer.rank: kronzo takes no rank"),
        (OptimizerConfig(method="kronzo", clip=1.0), "optimizer.clip: kronzo takes no clip"),
        (OptimizerConfig(method="adamw", eps=1e-3), "optimizer.eps: adamw takes no eps"),
        (OptimizerConfig(method="kronzo", extra={"nois": "device"}), "optimizer.extra.nois: kronzo takes no nois"),
        (OptimizerConfig(method="sgd", published=True), "sgd has no published settings"),
    ],
)
def test_keywords_of_another_method_are_refused(given: OptimizerConfig, words: str) -> None:
    with pytest.raises(InputError, match=words):
        optimizers.resolve(given)


def model() -> GPT2:
    return GPT2(GPT2Config(vocab_size=64, context=16, layers=1, heads=2, width=16))


def test_weight_decay_acts_on_matrices_only() -> None:
    network = model()
    built = optimizers.build(network, optimizers.resolve(OptimizerConfig(weight_decay=0.3)), seed=0)
    decays = {id(p): group["weight_decay"] for group in built.param_groups for p in group["params"]}
    assert decays == {id(p): 0.3 if p.dim() >= 2 else 0.0 for p in network.parameters()}


def test_scale_reaches_the_groups_by_glob_and_keeps_every_parameter_once() -> None:
    network = model()
    config = optimizers.resolve(OptimizerConfig(method="kronzo", scale={"*.weight": 0.5, "wte.*": 2.0}))
    built = optimizers.build(network, config, seed=3)
    scales = {id(p): group["scale"] for group in built.param_groups for p in group["params"]}
    for name, parameter in network.named_parameters():
        assert scales.pop(id(parameter)) == (2.0 if name == "wte.weight" else 0.5 if name.endswith("weight") else 1.0)
    assert not scales and built.param_groups[0]["seed"] == 3
    with pytest.raises(InputError, match=r"'wte.weigth' matches no parameter; did you mean 'wte.weight'"):
        optimizers.build(network, dataclasses.replace(config, scale={"wte.weigth": 2.0}), seed=0)
    with pytest.raises(InputError, match="adamw has no search to scale"):
        optimizers.build(network, optimizers.resolve(OptimizerConfig(scale={"*": 2.0})), seed=0)


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_the_schedule_rises_to_one_and_ends_at_its_minimum(schedule: str, warmup: float) -> None:
    config = OptimizerConfig(schedule=schedule, warmup=warmup, min_lr_ratio=0.2)
    values = [optimizers.lr_factor(config, 50)(step) for step in range(50)]
    rise = round(50 * warmup)
    assert values[:rise] == pytest.approx([(i + 1) / rise for i in range(rise)])
    if schedule == "constant":
        assert values[rise:] == [1.0] * (50 - rise)
    else:
        middle = rise + (49 - rise) / 2
        assert values[rise] == 1.0 and values[-1] == pytest.approx(0.2)
        assert optimizers.lr_factor(config, 50)(math.floor(middle)) == pytest.approx(0.6, abs=0.02)
        assert all(a > b for a, b in zip(values[rise:], values[rise + 1 :]))


# ---------------------------------------------------------------- budgets

SHARED = 4 * 16


@pytest.mark.parametrize(
    ("optimizer", "budget", "expected"),
    [
        ({"method": "adamw"}, {"token_forwards": 10 * 3 * SHARED}, 10),
        ({"method": "adamw"}, {"token_forwards": 10 * 3 * SHARED + 3 * SHARED - 1}, 10),
        ({"method": "kronzo"}, {"tokens": 10 * SHARED}, 10),
        ({"method": "kronzo", "directions": 2}, {"token_forwards": 12 * 4 * SHARED}, 12),
        ({"method": "kronzo", "directions": 2, "rule": "directional"}, {"token_forwards": 5 * 7 * SHARED}, 5),
        ({"method": "kronzo", "directions": 2, "data": "split"}, {"token_forwards": 5 * 2 * SHARED}, 5),
        ({"method": "kronzo"}, {}, 1000),
    ],
)
def test_budgets_in_the_words_of_the_design(optimizer: dict[str, Any], budget: dict[str, Any], expected: int) -> None:
    section = optimizers.resolve(OptimizerConfig(**optimizer))
    built = optimizers.build(model(), section, seed=0)
    given = configs.BudgetConfig(batch_size=4, **budget)
    assert steps.num_steps(given, section, built, context=16) == expected


def test_a_budget_below_one_step_and_an_indivisible_batch_are_refused() -> None:
    section = optimizers.resolve(OptimizerConfig(method="kronzo", directions=3, data="split"))
    built = optimizers.build(model(), section, seed=0)
    with pytest.raises(InputError, match="batch_size = 4 is not a multiple of 3 slices"):
        steps.num_steps(configs.BudgetConfig(batch_size=4), section, built, 16)
    with pytest.raises(InputError, match=r"budget.tokens = 10 is less than one step: kronzo needs 96 a step"):
        steps.num_steps(configs.BudgetConfig(batch_size=6, tokens=10), section, built, 16)


def test_the_random_stream_of_the_caller_is_not_used() -> None:
    before = torch.get_rng_state()
    optimizers.build(model(), optimizers.resolve(OptimizerConfig(method="kronzo")), seed=0)
    assert torch.equal(torch.get_rng_state(), before)
