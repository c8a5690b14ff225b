"""What a comparison says, in sentences computed from its numbers, and how that agrees with the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kronzo.pretrain.reported import BREADTH, REJECTED, Reported, reported
from kronzo.pretrain.results import Results, RunResult, label_of
from kronzo.pretrain.units import count, listing, nats, percent, rate, signed

TIE = 0.02
"""Differences of validation losses below this, nats a token, are called none."""

AGREES, DISAGREES, NOT_MEASURED = "agrees", "does not agree", "not measured here"


def headline(results: Results) -> list[str]:
    """Return the findings, a sentence or two each, in order of importance; empty when nothing has finished."""
    parts = (_frequencies, _first_order, _rules, _spaces, _steps, _spectra, _caveats)
    return [sentence for part in parts for sentence in part(results)]


def _searching(results: Results) -> list[RunResult]:
    """Finished zeroth-order runs, lowest loss first."""
    return sorted((run for run in results.finished if run.zeroth_order), key=lambda run: run.val_loss)


def _by(apart: float) -> str:
    """A distance in words, its sign left out."""
    return "less than 0.01 nats" if abs(apart) < 0.005 else f"{nats(abs(apart), 2)} nats"


def _frequencies(results: Results) -> Iterator[str]:
    """Which methods learned more than how often tokens occur."""
    runs, line = _searching(results), results.line("unigram")
    if not runs or not math.isfinite(line):
        return
    below = [run for run in runs if run.val_loss < line - TIE]
    by = listing([f"{run.label} by {_by(line - run.val_loss)}" for run in below])
    ending = f": {by}" if below else ""
    yield (
        f"{len(below)} of {len(runs)} zeroth-order runs end more than {TIE} nats below the unigram line "
        f"({nats(line)} nats a token){ending}."
    )
    level = [f"{run.label} ({nats(run.val_loss)})" for run in runs if abs(run.val_loss - line) <= TIE]
    above = [f"{run.label} ({nats(run.val_loss)})" for run in runs if run.val_loss > line + TIE]
    if level:
        yield f"{listing(level)} learned how often each token occurs and no more."
    if above:
        yield f"{listing(above)} did not even learn how often each token occurs."
    bigram = results.line("bigram")
    context = [run.label for run in runs if run.val_loss < bigram]
    if math.isfinite(bigram):
        verb = "end" if len(context) > 1 else "ends"
        yield f"{listing(context) or 'None of them'} {verb} below the bigram line ({nats(bigram)})."


def _first_order(results: Results) -> Iterator[str]:
    """How far the best zeroth-order run is from AdamW, and how early AdamW was there."""
    runs, adamw = _searching(results), results.find("adamw")
    if not runs or adamw is None:
        return
    best = runs[0]
    apart = best.val_loss - adamw.val_loss
    yield (
        f"At equal token_forwards ({count(adamw.last('token_forwards'))}) AdamW ends at {nats(adamw.val_loss)}; "
        f"the best zeroth-order run, {best.label}, at {nats(best.val_loss)}, "
        f"{_by(apart)} {'above' if apart > 0 else 'below'} it."
    )
    passed = adamw.evaluations[(adamw.evaluations["val_loss"] <= best.val_loss) & (adamw.evaluations["step"] > 0)]
    if len(passed):
        spent = passed["token_forwards"].iloc[0]
        share = percent(spent / adamw.last("token_forwards"))
        yield (
            f"AdamW is below {best.label}'s final loss at its evaluation after {count(spent)} token_forwards, {share} "
            "of the budget."
        )
    equal = results.find("adamw", budget="tokens")
    if equal is not None:
        yield (
            f"On the {count(equal.last('tokens'))} tokens that the averaging methods drew "
            f"({count(equal.last('token_forwards'))} token_forwards) AdamW ends at {nats(equal.val_loss)}."
        )


def _rules(results: Results) -> Iterator[str]:
    """The directional rule against averaging, space by space."""
    for method in dict.fromkeys(run.method for run in _searching(results)):
        directional, average = results.find(method, "directional"), results.find(method, "average")
        if directional and average:
            apart = directional.val_loss - average.val_loss
            words = "level with" if abs(apart) < TIE else f"{_by(apart)} {'below' if apart < 0 else 'above'}"
            yield (
                f"{label_of(method)}: the directional rule ends {words} averaging at equal token_forwards "
                f"({nats(directional.val_loss)} against {nats(average.val_loss)})."
            )


def _spaces(results: Results) -> Iterator[str]:
    """What the search space buys: all averaging runs side by side."""
    runs = [run for run in _searching(results) if run.rule == "average"]
    if len(runs) < 2:
        return
    first, last = runs[0], runs[-1]
    yield (
        f"Under averaging the {len(runs)} search spaces end {_by(last.val_loss - first.val_loss)} apart, "
        f"from {first.label} ({nats(first.val_loss)}) to {last.label} ({nats(last.val_loss)})."
    )


def _steps(results: Results) -> Iterator[str]:
    """How many steps the directional rule rejects."""
    for run in _searching(results):
        if run.rule == "directional":
            yield f"{run.label} rejects {percent(1 - run.acceptance)} of its steps."


def _spectra(results: Results) -> Iterator[str]:
    """How the breadth of the gradients changes over the first-order run."""
    if results.captured is None:
        return
    shares = breadth(results)
    first, last = results.captured.steps[0], results.captured.steps[-1]
    if len(shares) > 1:
        yield (
            f"Gradients of the first-order run: the participation ratio, as a share of the rank a layer can have, goes "
            f"from {percent(shares[0])} at step {first} to {percent(shares[-1])} at step {last} (mean over attention "
            f"and MLP layers; energies of mini-batch gradients, noise included)."
        )


def breadth(results: Results) -> list[float]:
    """Return participation ratio / min(rows, columns), a mean over attention and MLP layers, at every captured step."""
    if results.captured is None:
        return []
    frame = results.captured.gradients()
    inner = frame[frame["kind"].isin(["attention", "mlp"])]
    shares = inner.assign(share=inner["participation_ratio"] / np.minimum(inner["rows"], inner["cols"]))
    means: list[float] = shares.groupby("step")["share"].mean().tolist()
    return means


def _caveats(results: Results) -> Iterator[str]:
    """What a reader has to know before leaning on a difference."""
    for run in results.compared:
        if run.state == "diverged":
            yield f"{run.label} diverged: its validation loss became no finite number at step {run.last('step'):.0f}."
    edges = [f"{run.label} ({rate(run.lr)})" for run in results.compared if at_edge(results, run)]
    if edges:
        yield f"The best lr is the smallest or largest tried for {listing(edges)}: a wider grid may serve better."
    if results.finished:
        yield f"One seed ({results.plan['seed']}): there is no interval here, and small differences may be the seed's."


def at_edge(results: Results, run: RunResult) -> bool:
    """Whether the run's lr is an end of the list that was tried for it."""
    tried = results.tuning.loc[results.tuning["method"] == run.name, "lr"]
    return tried.nunique() > 1 and run.lr in (tried.min(), tried.max())


@dataclass(frozen=True)
class Claim:
    """A statement of the paper beside what was measured here.

    Attributes:
        statement: in words.
        reported: the paper's numbers.
        here: ours, "" when not measured.
        verdict: AGREES, DISAGREES or NOT_MEASURED.
    """

    statement: str
    reported: str
    here: str
    verdict: str


_ORDERINGS = (
    (("kronzo", "directional"), ("kronzo", "average")),
    (("lozo", "directional"), ("lozo", "average")),
    (("mezo", "directional"), ("mezo", "average")),
    (("kronzo", "directional"), ("mezo", "directional")),
    (("kronzo", "average"), ("mezo", "average")),
    (("kronzo", "average"), ("lozo", "average")),
    (("lozo", "average"), ("mezo", "average")),
    (("adamw", ""), ("kronzo", "directional")),
)
"""Pairs of rows of the paper's table whose order is compared with ours."""


def claims(results: Results) -> list[Claim]:
    """Return every claim that the paper's numbers allow: those that do not agree first, then those that do."""
    found = [_ordering(results, reported(*a), reported(*b)) for a, b in _ORDERINGS]
    found += [_time(results), _rejection(results), *_breadth(results)]
    order = (DISAGREES, AGREES, NOT_MEASURED)
    return sorted(found, key=lambda claim: order.index(claim.verdict))


def _ordering(results: Results, a: Reported, b: Reported) -> Claim:
    """Whether a ends below b here as there; a difference under TIE is none."""
    names = [label_of(f"{row.method}-{row.rule}".removesuffix("-")) for row in (a, b)]
    relation = ("ends below", "ends level with", "ends above")[_sign(a.loss - b.loss) + 1]
    statement = f"{names[0]} {relation} {names[1]}"
    text = f"{a.loss:.2f} against {b.loss:.2f} ({signed(a.loss - b.loss, 2)})"
    runs = [results.find(row.method, row.rule) for row in (a, b)]
    if runs[0] is None or runs[1] is None:
        return Claim(statement, text, "", NOT_MEASURED)
    apart = runs[0].val_loss - runs[1].val_loss
    here = f"{nats(runs[0].val_loss)} against {nats(runs[1].val_loss)} ({signed(apart)})"
    return Claim(statement, text, here, _verdict(_sign(apart) == _sign(a.loss - b.loss)))


def _sign(apart: float) -> int:
    return 0 if abs(apart) < TIE else 1 if apart > 0 else -1


def _verdict(agrees: bool) -> str:
    return AGREES if agrees else DISAGREES


def _time(results: Results) -> Claim:
    """Time for a forward of KronZO beside MeZO's, both averaging, their steps divided by their forwards."""
    a, b = reported("kronzo", "average"), reported("mezo", "average")
    statement = "a step of KronZO takes longer than one of MeZO with as many forwards"
    text = f"{a.seconds} s against {b.seconds} s (x {a.seconds / b.seconds:.2f})"
    runs = [results.find(row.method, row.rule) for row in (a, b)]
    if runs[0] is None or runs[1] is None:
        return Claim(statement, text, "", NOT_MEASURED)
    ratio = (runs[0].last("seconds") / runs[0].last("forwards")) / (runs[1].last("seconds") / runs[1].last("forwards"))
    return Claim(statement, text, f"x {ratio:.2f} a forward", _verdict(ratio > 1))


def _rejection(results: Results) -> Claim:
    """Share of rejected steps, within a factor of two of the reported one."""
    statement = f"KronZO directional rejects about {percent(REJECTED)} of its steps"
    run = results.find("kronzo", "directional")
    if run is None:
        return Claim(statement, f"about {percent(REJECTED)}", "", NOT_MEASURED)
    share = 1 - run.acceptance
    here = f"{percent(share)} of {run.last('step'):.0f} steps"
    return Claim(statement, f"about {percent(REJECTED)}", here, _verdict(REJECTED / 2 <= share <= REJECTED * 2))


def _breadth(results: Results) -> list[Claim]:
    """Spectra: broader later than early, and how broad."""
    grows = "gradients grow broader over training"
    wide = f"the participation ratio ends near {percent(BREADTH)} of the width"
    shares = breadth(results)
    if len(shares) < 2:
        return [Claim(grows, "yes", "", NOT_MEASURED), Claim(wide, f"about {percent(BREADTH)}", "", NOT_MEASURED)]
    first, last = shares[0], shares[-1]
    return [
        Claim(grows, "early spectra steep, later ones broad", f"{percent(first)} to {percent(last)}",
              _verdict(last > first)),
        Claim(wide, f"about {percent(BREADTH)}", percent(last), _verdict(BREADTH / 1.5 <= last <= BREADTH * 1.5)),
    ]  # fmt: skip
