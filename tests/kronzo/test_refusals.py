"""What cannot work is refused with one sentence that names it, at construction or at the call."""

import inspect
import math

import numpy as np
import pytest
import torch
from torch import nn

import kronzo
from kronzo import InputError


def weight(*shape, **kw):
    return nn.Parameter(torch.ones(*shape or (6, 4), **kw))


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"lr": "0.1"}, "lr"),
        ({"lr": torch.tensor([0.1, 0.1])}, "lr"),
        ({"eps": 0.0}, "eps"),
        ({"eps": -1e-3}, "eps"),
        ({"eps": math.nan}, "eps"),
        ({"directions": 0}, "directions"),
        ({"directions": 1.5}, "directions"),
        ({"refresh_every": -1}, "refresh_every"),
        ({"window": 0}, "window"),
        ({"window_rule": "slide"}, "window_rule"),
        ({"rule": "best"}, "rule"),
        ({"data": "shards"}, "data"),
        ({"restore": "copy"}, "restore"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": 0.5, "rule": "directional"}, "momentum"),
        ({"data": "split", "rule": "directional"}, "split"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"lr": 1.0, "weight_decay": 1.0}, "weight_decay"),
        ({"seed": -1}, "seed"),
        ({"factors": "round"}, "factors"),
    ],
)
def test_keywords(keywords, words):
    with pytest.raises(InputError, match=words):
        kronzo.KronZO([weight()], **keywords)


@pytest.mark.parametrize("flag", ["foreach", "fused", "capturable", "differentiable"])
def test_flags_of_other_optimizers(flag):
    with pytest.raises(InputError, match=flag):
        kronzo.KronZO([{"params": [weight()], flag: True}])
    with pytest.raises(TypeError, match=flag):
        kronzo.KronZO([weight()], **{flag: True})
    for method in kronzo.METHODS.values():
        with pytest.raises(InputError, match=f"{flag}= is for torch's own optimizers.*leave it out"):
            method([weight()], lr=1e-3, **{flag: False})
    with pytest.raises(InputError, match="leave it out"):
        kronzo.ZeroOrder([weight()], kronzo.spaces.Kronecker(), **{flag: True})


def test_a_misspelt_keyword_names_the_nearest():
    with pytest.raises(
        InputError, match=r"LOZO has no keyword momentun; did you mean momentum\? It takes params, lr, "
    ):
        kronzo.LOZO([weight()], momentun=0.9)
    with pytest.raises(TypeError, match="did you mean directions"):
        kronzo.ZeroOrder([weight()], kronzo.spaces.Kronecker(), direction=2)


def test_signatures_are_those_of_the_constructors():
    assert list(inspect.signature(kronzo.LOZO).parameters)[:4] == ["params", "lr", "eps", "directions"]
    assert list(inspect.signature(kronzo.ZeroOrder).parameters)[:3] == ["params", "space", "lr"]


def test_a_subclass_may_take_keywords_of_its_own():
    class Mine(kronzo.KronZO):
        def __init__(self, params, *, halves=False, **rest):
            super().__init__(params, **rest)
            self.halves = halves

    assert Mine([weight()], halves=True, lr=0.1).halves
    with pytest.raises(TypeError):
        Mine([weight()], momentun=0.1)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (lambda: torch.zeros(3, 3, dtype=torch.complex64), "complex"),
        (lambda: torch.zeros(3, 3, dtype=torch.int64), "int64"),
        (lambda: torch.zeros(3, 3, device="meta"), "meta"),
        (lambda: torch.zeros(3, 3).to_sparse(), "sparse"),
        (lambda: torch.zeros(3, 1).expand(3, 3), "expanded"),
    ],
)
def test_tensors(tensor, words):
    with pytest.raises(InputError, match=words):
        kronzo.KronZO([tensor()])


def test_sharded_parameters_by_name():
    p = weight()
    p.ds_id = 3
    with pytest.raises(InputError, match="sharded"):
        kronzo.KronZO([p])


def test_modules_groups_without_tensors_and_closures_that_are_none():
    with pytest.raises(InputError, match=r"Linear.*\.parameters\(\)"):
        kronzo.KronZO(nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"'param'.*\"params\""):
        kronzo.KronZO([{"param": [weight()]}])
    opt = kronzo.KronZO([w := weight()])
    for call in (opt.step, opt.estimate):
        with pytest.raises(InputError, match="the closure is a float"):
            call(1.0)
    assert torch.equal(w, weight()) and opt.param_groups[0]["step"] == 0
    opt.step(lambda: w.sum())


def test_params_that_are_no_parameters():
    for params in ([], weight(), [3], iter(())):
        with pytest.raises(InputError, match="params"):
            kronzo.KronZO(params)
    w = weight(4, 4)
    with pytest.raises(InputError, match="one memory"):
        kronzo.KronZO([w, nn.Parameter(w.data.t()[:, :3])])


def test_low_precision_what_would_do_nothing_or_drift():
    with pytest.raises(InputError, match="weight_decay"):
        kronzo.KronZO([weight(dtype=torch.bfloat16)], weight_decay=0.1)
    with pytest.raises(InputError, match="arithmetic"):
        kronzo.KronZO([weight(dtype=torch.bfloat16)], restore="arithmetic")


def test_a_refused_group_is_not_added():
    opt = kronzo.KronZO([weight()])
    with pytest.raises(InputError, match="lr"):
        opt.add_param_group({"params": [weight(2, 2)], "lr": -1.0})
    assert len(opt.param_groups) == 1
    opt.step(lambda: 1.0)


def test_fzoo_takes_no_split_data_and_no_directional_rule():
    with pytest.raises(TypeError, match="data"):
        kronzo.FZOO([weight()], data="split")
    with pytest.raises(InputError, match="directional"):
        kronzo.FZOO([weight()], rule="directional")


@pytest.mark.parametrize("method", [kronzo.LOZO, kronzo.SubZero, kronzo.TeZO])
def test_a_rank_that_no_matrix_exceeds(method):
    with pytest.raises(InputError, match="rank=4"):
        method([weight(6, 4), weight(5)], rank=4)
    method([weight(6, 4), weight(9, 9)], rank=4)


@pytest.mark.parametrize(
    "value",
    [torch.ones(3), torch.ones(1), None, "1.0", torch.tensor(1j), 1j, [1.0], np.ones(2)],
)
def test_losses_that_are_not_one_number(value):
    with pytest.raises(InputError, match="closure"):
        kronzo.KronZO([weight()]).step(lambda: value)


@pytest.mark.parametrize("value", [1, True, np.float32(1.0), np.int64(1), torch.tensor(1), torch.tensor(True)])
def test_numbers_of_any_kind_are_losses(value):
    assert kronzo.KronZO([weight()]).step(lambda: value).item() == 1.0


def test_closures_that_call_backward():
    w = weight()
    opt = kronzo.KronZO([w])

    def plain():
        loss = w.square().sum()
        loss.backward()
        return loss

    def enabled():
        with torch.enable_grad():
            return plain()

    def enabled_number():
        return enabled().item()

    for closure in (plain, enabled, enabled_number):
        w.grad = None
        with pytest.raises(InputError, match="backward"):
            opt.step(closure)
        torch.testing.assert_close(w.detach(), torch.ones(6, 4), rtol=0, atol=1e-6)


def test_steps_with_nothing_or_too_much_pending():
    opt = kronzo.KronZO([weight()])
    with pytest.raises(InputError, match="nothing pending"):
        opt.step()
    opt.estimate(lambda: 1.0)
    for call in (
        lambda: opt.step(lambda: 1.0),
        opt.state_dict,
        lambda: opt.load_state_dict({}),
        lambda: opt.add_param_group({"params": [weight(2, 2)]}),
    ):
        with pytest.raises(InputError, match="estimate"):
            call()
    opt.step()


def test_nothing_to_train():
    opt = kronzo.KronZO([weight().requires_grad_(False)])
    with pytest.raises(InputError, match="requires grad"):
        opt.step(lambda: 1.0)


def test_states_of_other_optimizers():
    w = weight(8, 8)
    saved = kronzo.KronZO([w]).state_dict()
    for other, words in [
        (kronzo.LOZO([w]), "another"),
        (kronzo.KronZO([w], momentum=0.5), "momentum"),
        (kronzo.KronZO([w], window=3), "window"),
        (kronzo.KronZO([w, weight(2, 2)]), "groups"),
    ]:
        with pytest.raises(InputError, match=words):
            other.load_state_dict(saved)
    with pytest.raises(InputError, match="zeroth-order"):
        kronzo.KronZO([w]).load_state_dict(torch.optim.AdamW([w]).state_dict())
    with pytest.raises(InputError, match="no state and no param_groups"):
        kronzo.KronZO([w]).load_state_dict({})


def test_replicas(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    with pytest.raises(InputError, match="2 processes"):
        kronzo.KronZO([weight()], parallel="directions")
    with pytest.raises(InputError, match="2 processes do not divide"):
        kronzo.KronZO([weight()], directions=3, parallel=3)
    with pytest.raises(InputError, match="arithmetic"):
        kronzo.KronZO([weight()], directions=3, parallel="directions", restore="arithmetic")
    for wrong in ("batch", 0, True):
        with pytest.raises(InputError, match="parallel"):
            kronzo.KronZO([weight()], directions=4, parallel=wrong)


def test_directions_and_spaces_of_strangers():
    opt = kronzo.KronZO([w := weight()])
    with pytest.raises(InputError, match="space_of"):
        opt.space_of(weight())
    with pytest.raises(InputError, match="direction"):
        opt.direction(w, 0)
    opt.step(lambda: 1.0)
    for p, i in ((w, 1), (w, -1), (weight(), 0)):
        with pytest.raises(InputError, match="direction"):
            opt.direction(p, i)


def test_published_replay_needs_a_rule_that_allows_it():
    with pytest.raises(InputError, match="replay"):
        kronzo.LOZO([weight(6, 4)], replay="published", rule="directional")
    with pytest.raises(InputError, match="replay"):
        kronzo.LOZO([weight(6, 4)], replay="paper")
    with pytest.raises(InputError, match="kronzo"):
        kronzo.published("kronso")


def test_collapse_in_the_first_steps_aborts_and_leaves_the_weights():
    w = weight(8, 8)
    opt = kronzo.KronZO([w], lr=1e-3, eps=30.0, rule="directional", restore="snapshot")
    with pytest.raises(InputError, match="eps"):
        opt.step(lambda: w.square().sum())
    assert torch.equal(w, torch.ones(8, 8))
    calm = kronzo.KronZO([w], lr=1e-3, eps=1e-3, rule="directional")
    calm.step(lambda: w.square().sum())


def test_coarse_losses_are_said_once():
    w = weight(8, 8)
    opt = kronzo.KronZO([w], lr=1e-4, eps=1e-4)
    with pytest.warns(UserWarning, match="resolution") as caught:
        for _ in range(5):
            opt.step(lambda: (10 + w.mean()).to(torch.bfloat16))
    assert len(caught) == 1
    assert opt.last.resolution == pytest.approx(2**-7 * 8 / 2e-4)


def test_updates_that_low_precision_weights_cannot_take_are_said_once():
    w = weight(8, 8, dtype=torch.bfloat16)
    opt = kronzo.KronZO([("wte.weight", w)], lr=1e-9)
    with pytest.warns(UserWarning, match="wte.weight") as caught:
        for _ in range(5):
            opt.step(lambda: w.double().square().sum())
    assert sum("wte.weight" in str(w.message) for w in caught) == 1


def test_badly_factored_sides_are_said_once_with_the_padding_that_helps():
    with pytest.warns(UserWarning, match=r"wte.weight \(50257, 8\).*50304") as caught:
        kronzo.KronZO([("wte.weight", weight(50257, 8)), ("b", weight(257, 8))])
    assert len(caught) == 1
    kronzo.KronZO([weight(50304, 8)], factors=("max", 512))
