"""docs/RESULTS.md: the committed page is that of the data, and its sentences turn with the numbers."""

import json

import matplotlib.pyplot
import pandas as pd
import pytest
from made_data import ABOUT, comparison

from figures import answers, claims, collect, fig_glue, glue_answers, gpt2_answers, questions, readback, results
from figures.answers import Difference
from figures.claims import FAILS, HOLDS, MIXED, OPEN
from kronzo.errors import InputError
from kronzo.pretrain import memory
from kronzo.pretrain.config import from_dict
from kronzo.pretrain.loop import pretrain

RULES = [
    {"row": f"{method}-{rule}", "method": method, "rule": rule}
    for method in ("kronzo", "lozo", "subzero", "mezo")
    for rule in ("average", "directional")
]
PANE = {"model": "nano", "corpus": "synthetic"}
FIRST = [{"row": name, "method": "adamw", "rule": None} for name in ("adamw", "adamw-tokens")]


def with_losses(rows, losses):
    """A comparison whose rows end at given losses, the seeds 0.01 apart."""
    frame = comparison(rows)
    frame.attrs = ABOUT | {"trials": [[PANE | {"method": row["row"], "lr": 0.01} for row in rows]]}
    ends = frame["row"].map(losses) + 0.01 * frame["seed"]
    return frame.assign(lr=0.01, val_loss=frame["val_loss"].where(frame["step"] < 100, ends))


def frames(directional=0.0, adamw=-1.0):
    losses = {row["row"]: 4.0 + directional * (row["rule"] == "directional") for row in RULES}
    q1 = with_losses(RULES, losses)
    q6 = with_losses([*FIRST, RULES[0], RULES[1]], losses | dict.fromkeys(("adamw", "adamw-tokens"), 4.0 + adamw))
    return {"q1": q1, "q6": q6}


def verdicts(found):
    return {claim.statement: claim.verdict for claim in claims.claims(found["q1"], found["q6"])}


def test_the_committed_page_is_that_of_the_data():
    assert results.PAGE.read_text(encoding="utf-8") == results.page(results.read())


def test_a_difference_counts_when_its_interval_leaves_zero_out():
    assert Difference(-0.5, 0.2).sign == -1 and Difference(0.5, 0.2).sign == 1
    assert Difference(0.5, 0.6).sign == 0
    assert Difference(0.01, 0.001).sign == 0, "a tie"


def test_claims_turn_with_the_losses():
    statement = "KronZO directional ends below KronZO average"
    assert verdicts(frames(directional=-0.3))[statement] == HOLDS
    assert verdicts(frames(directional=0.3))[statement] == FAILS
    assert verdicts(frames())[statement] == OPEN
    assert verdicts(frames())["KronZO average ends level with MeZO average"] == HOLDS
    assert verdicts(frames(adamw=3.0))["AdamW ends below KronZO directional"] == FAILS


def test_a_second_corpus_that_says_the_opposite_leaves_a_claim_mixed():
    found, other = frames(directional=-0.3), frames(directional=0.3)
    about = found["q1"].attrs
    found["q1"] = pd.concat([found["q1"], other["q1"].assign(corpus="another")], ignore_index=True)
    found["q1"].attrs = about
    assert verdicts(found)["KronZO directional ends below KronZO average"] == MIXED


def test_level_needs_the_whole_interval():
    found = frames()
    q1 = found["q1"]
    mezo = q1["row"] == "mezo-average"
    found["q1"] = q1.assign(val_loss=q1["val_loss"] + mezo * 0.5 * (q1["seed"] - 1))
    assert verdicts(found)["KronZO average ends level with MeZO average"] == OPEN


def test_sentences_count_pairs_and_say_what_only_learns_frequencies():
    assert "worse in 4 of 4 pairs" in " ".join(answers.rules(frames(directional=0.3)["q1"]))
    assert "better in 4" in " ".join(answers.rules(frames(directional=-0.3)["q1"]))
    assert "token frequencies at most" in answers.orders(frames()["q6"])[1]
    assert "mezo" not in answers.orders(frames(directional=-0.8)["q6"])[1]
    assert "kronzo-directional" in answers.orders(frames(directional=-0.8)["q6"])[1]


def test_a_row_that_diverged_on_a_seed_has_no_mean():
    q1 = frames()["q1"]
    diverged = (q1["row"] == "mezo-average") & (q1["seed"] == 1)
    last = answers.finals(q1.assign(state=q1["state"].mask(diverged, "diverged")))
    assert "mezo-average" not in set(last["row"]) and len(last) == 3 * (len(RULES) - 1)


def test_what_has_no_data_is_said_to_be_not_measured():
    page = results.page(frames())
    assert page.count("Not measured.") == 8, "six questions, GPT-2 small and GLUE"
    assert all(f"## {number}. " in page for number in range(1, 9))
    assert "not measured" in results.page({})


def test_rates_at_an_end_of_their_list_are_named():
    frame = frames()["q1"].assign(lr=0.01)
    for rates, named in (((0.01, 0.02), {"mezo-average"}), ((0.005, 0.01, 0.02), set())):
        frame.attrs = ABOUT | {"trials": [[PANE | {"method": "mezo-average", "lr": lr} for lr in rates]]}
        assert answers.at_edge(frame) == named


def test_a_list_of_rates_counts_on_its_own_corpus_only():
    frame = frames()["q1"].assign(lr=0.01)
    elsewhere = [PANE | {"corpus": "another", "method": "mezo-average", "lr": lr} for lr in (0.001, 0.1)]
    here = [PANE | {"method": "mezo-average", "lr": lr} for lr in (0.01, 0.02)]
    frame.attrs = ABOUT | {"trials": [elsewhere + here]}
    assert answers.at_edge(frame) == {"mezo-average"}


def test_a_claim_says_on_how_many_models_it_is_decided():
    def claim(*verdicts):
        return claims.Claim("", "", {str(at): ("", verdict) for at, verdict in enumerate(verdicts)})

    assert (claim(HOLDS, HOLDS).verdict, claim(HOLDS, HOLDS).extent) == (HOLDS, HOLDS)
    assert (claim(HOLDS, OPEN).verdict, claim(HOLDS, OPEN).extent) == (HOLDS, f"{HOLDS} in 1 of 2")
    assert (claim(HOLDS, OPEN, OPEN).verdict, claim(HOLDS, OPEN, OPEN).extent) == (OPEN, f"{HOLDS} in 1 of 3")
    assert (claim(HOLDS, FAILS, OPEN).verdict, claim(OPEN, OPEN).verdict) == (MIXED, OPEN)
    assert claim(HOLDS, FAILS, OPEN).extent == f"{HOLDS} in 1 of 3, {FAILS} in 1 of 3"


def test_both_orders_are_compared_after_as_many_forwards():
    known = {"unigram": 7.0, "bigram": 6.0, "seed": 0}
    points = [("adamw", 0, 0, 11.0), ("adamw", 10, 30, 8.0), ("adamw", 20, 60, 5.0),
              ("kronzo", 0, 0, 11.0), ("kronzo", 10, 20, 10.5)]  # fmt: skip
    frame = pd.DataFrame(
        [known | {"row": m, "method": m, "step": step, "tokens": 8 * step, "forwards": f, "val_loss": loss}
         for m, step, f, loss in points]
    )  # fmt: skip
    said = gpt2_answers.orders(frame)
    assert "below the unigram line" in said and "a fall of 0.500 nats where AdamW had fallen 2.00" in said
    assert "above the unigram line" in gpt2_answers.orders(frame.assign(unigram=4.0))


def test_rows_are_picked_with_their_trials(tmp_path):
    for folder in ("a", "b"):
        frame = frames()["q1"].drop(columns=["model", "corpus", "unigram", "bigram"])
        (tmp_path / folder).mkdir()
        frame.attrs = {
            "command": f"kronzo compare {folder}.toml",
            "grid": {"seeds": [0, 1, 2]},
            "corpus": {"source": "synthetic", "sha256": "0", "tokenizer": {"name": "bytes"}},
            "reference": {"unigram": 3.0, "bigram": 2.0},
            "environments": [{"versions": {"kronzo": "0"}, "python": "3", "git": None}],
            "trials": [{"method": row["row"], "lr": 0.1} for row in RULES],
        }
        frame.to_parquet(tmp_path / folder / "comparison.parquet")
    parts = [
        {"folder": str(tmp_path / "a"), "rows": ["*-average"], "model": "nano", "corpus": "synthetic"},
        {"folder": str(tmp_path / "b"), "rows": ["mezo-directional"], "model": "nano", "corpus": "other"},
    ]
    found = questions.selected(parts)
    assert found.groupby("corpus")["row"].nunique().to_dict() == {"synthetic": 4, "other": 1}
    assert len(found.attrs["trials"][0]) == 5
    assert {trial["corpus"] for trial in found.attrs["trials"][0]} == {"synthetic", "other"}
    assert found.attrs["command"] == ["kronzo compare a.toml", "kronzo compare b.toml"]


def small_run(folder, method, seed=0):
    config = {"model": {"name": "nano", "context": 16, "layers": 1, "width": 16}, "data": {"source": "synthetic"},
              "optimizer": {"method": method, "lr": 0.01}, "budget": {"batch_size": 4, "steps": 8}, "seed": seed,
              "evaluation": {"points": 2, "tokens": 256}}  # fmt: skip
    pretrain(from_dict(config), folder, progress=False)
    return str(folder)


def test_losses_of_two_orders_begin_at_the_same_weights(tmp_path):
    runs = [small_run(tmp_path / method, method) for method in ("adamw", "kronzo")]
    found = collect.losses_of(runs)
    starts = found[found["step"] == 0].set_index("method")["val_loss"]
    assert starts["adamw"] == starts["kronzo"] and set(found["step"]) == {0, 8}
    assert found[found["step"] == 8].set_index("method")["forwards"].to_dict() == {"adamw": 24, "kronzo": 16}
    with pytest.raises(InputError, match="give runs alike"):
        collect.losses_of([runs[0], small_run(tmp_path / "other", "kronzo", seed=1)])


def glue_frame(first, searched, random):
    scores = {"fo": ("adamw", True, first), "kronzo": ("kronzo", False, searched), "random": ("noise", False, random)}
    rows = [
        {"task": "sst2", "backbone": name, "method": method, "first_order": fo, "seed": seed, "score": score + jitter,
         "power": "power" if first > random else "no power", "lr": 1e-3, "train_rows": 64,
         "tokens": 10, "token_forwards": 20, "val_loss": None if name == "random" else 3.0}
        for name, (method, fo, score) in scores.items() for seed, jitter in enumerate((-0.01, 0.0, 0.01))
    ]  # fmt: skip
    frame = pd.DataFrame(rows).astype({"val_loss": float})
    frame.attrs = ABOUT | {"parameters": 1000, "seeds": [0, 1, 2]}
    return frame


@pytest.mark.parametrize(
    ("searched", "verdict"), [(0.9, "on GLUE holds"), (0.5, "does not hold"), (0.87, "on GLUE holds")]
)
def test_transfer_is_judged_on_tasks_with_power(searched, verdict):
    assert verdict in glue_answers.transfer(glue_frame(0.9, searched, 0.5))[-1]
    assert "Of 1 tasks none" in glue_answers.transfer(glue_frame(0.5, searched, 0.5))[-1]


def test_scores_of_glue_carry_power_and_the_rows_trained_on(tmp_path):
    pretrained = small_run(tmp_path / "fo", "adamw")
    known = {"beside": "random", "first_order": True, "method": "adamw"}
    results = [
        {"task": "wnli", "backbone": name, "seed": seed, "lr": lr, "diverged": False, "headline": score + 0.01 * seed,
         "scores": {"accuracy": score}}
        for name, lr, score in (("majority", None, 0.5), ("random", 0.1, 0.5), ("fo", 0.1, 0.9)) for seed in (0, 1)
    ]  # fmt: skip
    found = {
        "recipe": {"train_rows": 100}, "seeds": 2, "tasks": {"wnli": {"train": "635 rows [train.tsv]"}},
        "backbones": [{"name": "random", "beside": "random", "first_order": False}, {"name": "fo", **known}],
        "results": results,
    }  # fmt: skip
    (tmp_path / "glue").mkdir()
    (tmp_path / "glue" / "glue.json").write_text(json.dumps(found))
    scores = collect.glue_scores([str(tmp_path / "glue")], pretrained)
    assert set(scores["power"]) == {"power"} and set(scores["train_rows"]) == {100}
    assert scores.groupby("backbone")["method"].first().to_dict() == {
        "fo": "adamw", "majority": "noise", "random": "noise"
    }  # fmt: skip


def test_cosines_are_measured_at_both_ends_of_a_run(tmp_path):
    small_run(tmp_path / "run", "adamw")
    settings = [{"method": "kronzo", "directions": 2}, {"method": "lozo", "directions": 2, "rank": 1}]
    found = questions.alignments(
        str(tmp_path / "run"), model="nano", corpus="synthetic", settings=settings, seeds=[0, 1], batch_size=4
    )
    assert set(found["step"]) == {0, 8} and found.attrs["seeds"] == [0, 1]
    assert (found.groupby(["method", "step", "seed"]).size() == found["layer"].nunique()).all()
    at = found[(found["layer"] == "wte.weight") & (found["seed"] == 0) & (found["method"] == "kronzo")]
    assert at["cosine"].nunique() == 2


def test_costs_have_every_part_of_time_and_memory(monkeypatch):
    parts = memory.Parts(1, 2, 3, 4, -5)
    monkeypatch.setattr(memory, "measured", lambda job: (parts, 0))
    settings = [{"method": "adamw"}, {"method": "kronzo", "directions": 2}]
    found = questions.step_costs(shape="nano", model="nano", batch=1, context=16, settings=settings, rounds=2)
    timed = found.dropna(subset=["seconds"])
    assert timed.groupby("method")["part"].nunique().to_dict() == {"adamw": 3, "kronzo": 2}
    assert (timed["seconds"] > 0).all()
    held = found.dropna(subset=["bytes"])
    assert held.groupby("method")["bytes"].sum().to_dict() == pytest.approx({"adamw": 10, "kronzo": 10})
    assert pd.isna(found.loc[found["method"] == "adamw", "directions"]).all()


def test_a_bar_of_no_length_is_read_back_and_a_moved_one_is_seen():
    frame = glue_frame(0.9, 0.6, 0.5)
    level = frame.assign(score=frame["score"].where(frame["backbone"] != "kronzo", 0.6))
    table = fig_glue.glue_table(level)
    figure = fig_glue.glue_figure(level)
    assert readback.differences(figure, table) == []
    bar = (table["series"] == "KronZO") & table["low"].notna()
    assert readback.differences(figure, table.assign(low=table["low"] - 1.0 * bar))
    matplotlib.pyplot.close(figure)
