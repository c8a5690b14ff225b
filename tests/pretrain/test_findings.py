"""Sentences and verdicts of results made by hand."""

from __future__ import annotations

import math

import pytest
from made_results import made_results, made_run

from kronzo.pretrain import findings
from kronzo.pretrain.findings import AGREES, DISAGREES, NOT_MEASURED
from kronzo.pretrain.reported import reported
from kronzo.pretrain.results import Results


def said(results: Results) -> str:
    return "\n".join(findings.headline(results))


def verdict(results: Results, start: str) -> findings.Claim:
    return next(claim for claim in findings.claims(results) if claim.statement.startswith(start))


def test_who_gets_below_the_unigram_line_and_who_only_learns_frequencies() -> None:
    runs = [made_run("kronzo-average", 3.20), made_run("mezo", 3.485), made_run("lozo", 3.60), made_run("adamw", 2.0)]
    text = said(made_results(*runs, unigram=3.5, bigram=3.0))
    assert "1 of 3 zeroth-order runs end more than 0.02 nats below the unigram line (3.500 nats a token)" in text
    assert "KronZO average by 0.30 nats." in text
    assert "MeZO (3.485) learned how often each token occurs and no more." in text
    assert "LOZO (3.600) did not even learn how often each token occurs." in text
    assert "None of them ends below the bigram line (3.000)." in text
    below = said(made_results(made_run("mezo", 2.9), unigram=3.5, bigram=3.0))
    assert "MeZO ends below the bigram line" in below and "how often" not in below
    both = said(made_results(made_run("mezo", 2.9), made_run("lozo", 2.8), unigram=3.5, bigram=3.0))
    assert "LOZO and MeZO end below the bigram line" in both


def test_distance_from_adamw_and_when_it_was_there() -> None:
    text = said(made_results(made_run("adamw", 2.0), made_run("adamw-tokens", 2.5), made_run("mezo", 3.3)))
    assert "At equal token_forwards (1 k) AdamW ends at 2.000" in text
    assert "MeZO, at 3.300, 1.30 nats above it." in text
    assert "AdamW is below MeZO's final loss at its evaluation after 500 token_forwards, 50 % of the budget." in text
    assert "On the 500 tokens that the averaging methods drew (1 k token_forwards) AdamW ends at 2.500." in text
    assert "0.50 nats below it" in said(made_results(made_run("adamw", 2.5), made_run("mezo", 2.0)))


@pytest.mark.parametrize(
    ("directional", "words", "expected"),
    [(3.0, "0.20 nats below", AGREES), (3.21, "level with", DISAGREES), (3.5, "0.30 nats above", DISAGREES)],
)
def test_directional_against_averaging(directional: float, words: str, expected: str) -> None:
    results = made_results(made_run("kronzo-directional", directional), made_run("kronzo-average", 3.2))
    assert f"KronZO: the directional rule ends {words} averaging" in said(results)
    claim = verdict(results, "KronZO directional ends below KronZO average")
    assert claim.verdict == expected
    assert "6.95 against 8.63 (−1.68)" in claim.reported and f"{directional:.3f} against 3.200" in claim.here


def test_levels_agree_only_with_levels() -> None:
    assert abs(reported("kronzo", "average").loss - reported("mezo", "average").loss) < findings.TIE
    for loss, expected in ((3.21, AGREES), (3.0, DISAGREES), (3.4, DISAGREES)):
        results = made_results(made_run("kronzo-average", 3.2), made_run("mezo", loss))
        assert verdict(results, "KronZO average ends level with MeZO average").verdict == expected


def test_what_was_not_run_is_not_judged() -> None:
    found = findings.claims(made_results(made_run("kronzo-average", 3.0)))
    assert {claim.verdict for claim in found} == {NOT_MEASURED} and all(claim.here == "" for claim in found)
    assert findings.headline(made_results()) == []


def test_unfinished_and_diverged_runs_decide_nothing() -> None:
    broken = made_run("kronzo-directional", 1.0, state="diverged")
    half = made_run("mezo", 1.0, state="unfinished")
    results = made_results(broken, half, made_run("kronzo-average", 3.2), unigram=3.5)
    text = said(results)
    assert "1 of 1 zeroth-order runs" in text and "MeZO" not in text
    assert "KronZO directional diverged" in text and "at step 10" in text
    assert verdict(results, "KronZO directional ends below KronZO average").verdict == NOT_MEASURED


@pytest.mark.parametrize(("every", "expected"), [(10, AGREES), (2, DISAGREES), (100, DISAGREES)])
def test_rejected_steps(every: int, expected: str) -> None:
    accepted = [None, *(step % every != 0 for step in range(1, 11))]
    results = made_results(made_run("kronzo-directional", 3.0, accepted=accepted))
    assert f"rejects {100 * sum(x is False for x in accepted) / 10:.0f} % of its steps" in said(results)
    assert verdict(results, "KronZO directional rejects").verdict == expected


def test_time_is_compared_by_the_forward() -> None:
    slow = made_run("kronzo-average", 3.0, seconds=[float(step) for step in range(11)])
    results = made_results(slow, made_run("mezo", 3.0))
    claim = verdict(results, "a step of KronZO takes longer")
    assert claim.here == "x 2.00 a forward" and claim.verdict == AGREES


def test_a_rate_at_the_edge_of_its_grid_is_named() -> None:
    trials = [
        {"method": "mezo", "rung": 0, "fraction": 0.5, "lr": lr, "val_loss": 3.0, "kept": True, "seconds": 1.0}
        for lr in (1e-3, 1e-2)
    ]
    run = made_run("mezo", 3.0)
    assert "smallest or largest tried for MeZO (0.01)" in said(made_results(run, trials=trials))
    wider = [*trials, trials[0] | {"lr": 0.1}]
    assert "smallest or largest" not in said(made_results(run, trials=wider))
    assert "smallest or largest" not in said(made_results(run, trials=trials[1:]))


def test_the_seed_is_admitted_and_disagreement_comes_first() -> None:
    results = made_results(made_run("kronzo-directional", 3.5), made_run("kronzo-average", 3.2), made_run("mezo", 3.2))
    assert "One seed (7)" in said(results)
    verdicts = [claim.verdict for claim in findings.claims(results)]
    assert verdicts == sorted(verdicts, key=(DISAGREES, AGREES, NOT_MEASURED).index)
    assert DISAGREES in verdicts and AGREES in verdicts


def test_no_sentence_holds_what_is_no_number() -> None:
    results = made_results(made_run("kronzo-average", 3.0), made_run("mezo", math.nan), made_run("adamw", 2.0))
    assert "nan" not in said(results).lower()
