"""What the data of the eight questions say, in sentences computed from them; losses are in nats a token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from figures.frames import complete, last_points
from kronzo.pretrain.alignment import WHOLE
from kronzo.pretrain.comparison import interval
from kronzo.pretrain.findings import TIE
from kronzo.pretrain.results import label_of
from kronzo.pretrain.step_costs import FORWARDS
from kronzo.pretrain.units import count, listing, nats, percent, signed


@dataclass(frozen=True)
class Difference:
    """Losses of one row less those of another, seed by seed: the mean and half its 95 % interval (Student's t)."""

    mean: float
    half: float

    @property
    def sign(self) -> int:
        """-1 or 1 where the interval leaves zero out and the mean is no tie, else 0."""
        return int(np.sign(self.mean)) if abs(self.mean) > max(self.half, TIE) else 0

    def __str__(self) -> str:
        return f"{signed(self.mean, 2)} ± {nats(self.half, 2)}"


def finals(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the last evaluations of the runs that finished; a row that diverged on a seed is left out."""
    return last_points(complete(frame))


def panes(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield (corpus and model, the last evaluations there)."""
    for (corpus, model), rows in finals(frame).groupby(["corpus", "model"], sort=False):
        yield f"{corpus}, {model}", rows


def losses(last: pd.DataFrame, row: str) -> pd.Series:
    """Final losses of a row by seed; empty when it is not there."""
    return last[last["row"] == row].drop_duplicates("seed").set_index("seed")["val_loss"].astype(float)


def difference(last: pd.DataFrame, row: str, other: str) -> Difference:
    """Return row less other over the seeds that both have."""
    return Difference(*interval((losses(last, row) - losses(last, other)).dropna().tolist()))


def rule_differences(q1: pd.DataFrame) -> list[tuple[str, str, Difference]]:
    """(pane, method, directional less averaging) wherever both ran."""
    return [
        (pane, method, difference(last, f"{method}-directional", f"{method}-average"))
        for pane, last in panes(q1)
        for method in ("kronzo", "lozo", "subzero", "mezo")
        if len(losses(last, f"{method}-directional")) and len(losses(last, f"{method}-average"))
    ]


def rules(q1: pd.DataFrame) -> list[str]:
    """Question 1."""
    found = rule_differences(q1)
    first = found[0][0]
    each = listing([f"{label_of(method)} {apart}" for pane, method, apart in found if pane == first])
    signs = [apart.sign for _, _, apart in found]
    return [
        f"At equal token_forwards the directional rule ends above averaging by (directional less averaging, {first}) "
        f"{each}." if all(apart.mean > 0 for pane, _, apart in found if pane == first) else
        f"Directional less averaging at equal token_forwards ({first}): {each}.",
        f"Over all models, corpora and budgets it is clearly worse in {signs.count(1)} of {len(signs)} pairs, clearly "
        f"better in {signs.count(-1)}, and {signs.count(0)} are within the seeds' interval.",
    ]  # fmt: skip


def structure(q2: pd.DataFrame) -> list[str]:
    """Question 2."""
    _, last = next(panes(q2))
    sentences = []
    for rule in ("average", "directional"):
        rows = last[last["rule"] == rule]
        means = rows.groupby("method")["val_loss"].mean().astype(float).sort_values()
        against = [
            f"{difference(last, f'kronzo-{rule}', f'{method}-{rule}')} against {label_of(method)}"
            for method in ("mezo", "lozo", "subzero")
        ]
        order = ", ".join(f"{label_of(str(method))} {nats(value, 2)}" for method, value in means.items())
        sentences.append(f"Rule '{rule}', same directions and refresh: {order}; KronZO is at {listing(against)}.")
    return sentences


def ranks(q3: pd.DataFrame) -> list[str]:
    """Question 3."""
    pane, last = next(panes(q3))
    corpus, model = last["corpus"].iloc[0], last["model"].iloc[0]
    here = q3[(q3["corpus"] == corpus) & (q3["model"] == model)]
    early = here[here["step"] == sorted(here["step"].unique())[1]]
    names = {f"r = {row['rank']:g}": row["row"] for _, row in
             last[last["method"] == "lozo"].sort_values("rank").drop_duplicates("row").iterrows()}  # fmt: skip
    low, high = next(iter(names.values())), list(names.values())[-1]
    ladder = ", ".join(f"{rank} {nats(losses(last, row).mean(), 2)}" for rank, row in names.items())
    return [
        f"LOZO by rank ({pane}): {ladder}; the highest rank less the lowest is {difference(early, high, low)} at the "
        f"first evaluation and {difference(last, high, low)} at the end.",
        f"At the end KronZO, whose moves can have full rank, is {difference(last, 'kronzo-average', high)} against "
        f"LOZO at its highest rank and {difference(last, 'kronzo-average', 'mezo-average')} against MeZO, of full rank "
        "too.",
    ]


def settings(q4: pd.DataFrame) -> list[str]:
    """Question 4."""
    last = finals(q4)
    lost = sorted(set(q4["row"]) - set(last["row"]))
    averaged = last[last["rule"] == "average"]
    refresh = _by(averaged[averaged["varied"] == "refresh_every"], "refresh_every")
    few = _by(averaged[averaged["varied"] == "directions"], "directions")
    searched = _by(last[(last["varied"] == "directions") & (last["rule"] == "directional")], "directions")
    diverged = f" ({', '.join(lost)} diverged on a seed)" if lost else ""
    windows = last[last["varied"] == "window_rule"].groupby("window_rule")
    said = [f"{name} {nats(runs['val_loss'].mean(), 2)} with {percent(runs['acceptance_rate'].mean())} accepted"
            for name, runs in windows]  # fmt: skip
    return [
        f"KronZO's loss by refresh interval: {refresh}{diverged}; by directions: {few} when averaging and {searched} "
        "when directional, at equal token_forwards.",
        f"By window rule: {listing(said)}.",
    ]


def _by(last: pd.DataFrame, column: str) -> str:
    means = last.groupby(column)["val_loss"].mean()
    return ", ".join(f"{value:g}: {nats(float(loss), 2)}" for value, loss in means.items())


def split(q5: pd.DataFrame) -> list[str]:
    """Question 5."""
    last = finals(q5)
    rows = last.drop_duplicates("row")
    methods = [str(row["method"]) for _, row in rows.iterrows() if row["data"] == "split"]
    q = int(rows.loc[rows["data"] == "split", "directions"].iloc[0])
    one = {method: difference(last, f"{method}-split", f"{method}-one") for method in methods}
    same = {method: difference(last, f"{method}-split", f"{method}-average") for method in methods}
    return [
        f"{q} directions on a slice of the batch each, less one direction on the whole batch, which draws and forwards "
        f"as many tokens: {_each(one)}; splitting is {_signs(one)}.",
        f"Against {q} directions that share the batch, at equal token_forwards: {_each(same)}; splitting is "
        f"{_signs(same)}.",
    ]


def _each(found: Mapping[str, Difference]) -> str:
    return listing([f"{label_of(method)} {apart}" for method, apart in found.items()])


def _signs(found: Mapping[str, Difference]) -> str:
    signs = [apart.sign for apart in found.values()]
    return f"clearly worse in {signs.count(1)} of {len(signs)} and clearly better in {signs.count(-1)}"


def orders(q6: pd.DataFrame) -> list[str]:
    """Question 6."""
    pane, last = next(panes(q6))
    searching = last[~last["method"].isin(["adamw", "sgd"])]
    means = searching.groupby("row")["val_loss"].mean().astype(float).sort_values()
    best, level = str(means.index[0]), float(means.iloc[0])
    points = q6[(q6["row"] == "adamw") & (q6["corpus"] == last["corpus"].iloc[0])
                & (q6["model"] == last["model"].iloc[0])]  # fmt: skip
    curve = points.groupby("step")[["token_forwards", "val_loss"]].mean().astype(float)
    passed = curve[curve["val_loss"] <= level].iloc[0]["token_forwards"]
    below = [row for _, rows in panes(q6) for row in rows.loc[_below_unigram(rows), "row"].unique()]
    return [
        f"At equal token_forwards AdamW ends at {nats(losses(last, 'adamw').mean(), 2)} and at equal tokens at "
        f"{nats(losses(last, 'adamw-tokens').mean(), 2)}, the best zeroth-order row ({best}) at {nats(level, 2)} ("
        f"{pane}; unigram {nats(float(last['unigram'].iloc[0]), 2)}); AdamW is below that at its evaluation after "
        f"{count(passed)} of {count(float(curve['token_forwards'].max()))} token_forwards.",
        ("No zeroth-order row ends below the unigram line: at this budget they learn token frequencies at most."
         if not below else f"Below the unigram line by more than {TIE} end {listing(sorted(set(below)))}; the other "
         "zeroth-order rows learn token frequencies at most."),
    ]  # fmt: skip


def longer(reproduction: pd.DataFrame) -> str:
    """What the one run of `kronzo reproduce`, of more parameters and token_forwards, adds to question 6."""
    last = reproduction.groupby("row", sort=False).tail(1)
    below = listing(sorted(set(last.loc[_below_unigram(last), "row"])))
    ends = f"below the unigram line end {below}" if below else "no zeroth-order row ends below the unigram line"
    return (
        f"In `kronzo reproduce`, {count(float(last['parameters'].iloc[0]))} parameters, "
        f"{count(float(last['token_forwards'].max()))} token_forwards and {last['seed'].nunique()} seed, {ends} "
        f"({nats(float(last['unigram'].iloc[0]), 2)}); AdamW ends at {nats(losses(last, 'adamw').mean(), 2)}."
    )


def _below_unigram(last: pd.DataFrame) -> pd.Series:
    mean = last.groupby("row")["val_loss"].transform("mean")
    return (mean < last["unigram"] - TIE) & ~last["method"].isin(["adamw", "sgd"])


def alignments(q7: pd.DataFrame) -> list[str]:
    """Question 7."""
    keys = ["method", "directions", "step"]
    squares = q7.assign(square=q7["cosine"] ** 2, expected=q7["predicted"] ** 2)
    rows = squares[squares["layer"] == WHOLE].groupby(keys)[["square", "expected"]].mean()
    ratio = (rows["square"] / rows["expected"]).astype(float) ** 0.5
    q, end = int(q7["directions"].max()), int(q7["step"].max())
    trained = rows.reset_index()
    trained = trained[(trained["directions"] == q) & (trained["step"] == end)]
    final = listing(
        [f"{label_of(str(row['method']))} {float(row['square']) ** 0.5:.3f}" for _, row in trained.iterrows()]
    )
    layers = squares[squares["layer"] != WHOLE].groupby(["layer", *keys])[["square", "expected"]].mean()
    spread = (layers["square"] / layers["expected"]).astype(float) ** 0.5
    return [
        f"Over all weights of a trained model the cosine with {q} directions is {final} (root mean square over "
        f"{q7['seed'].nunique()} draws): {ratio.min():.2f} to {ratio.max():.2f} times the predicted one.",
        f"Layer by layer measured over predicted has the median {spread.median():.2f} and quartiles "
        f"{spread.quantile(0.25):.2f} and {spread.quantile(0.75):.2f}; by the formula a structure costs nothing as "
        "long as the directions are few beside its coordinates.",
    ]


def costs(q8: pd.DataFrame) -> list[str]:
    """Question 8."""
    times = q8.dropna(subset=["seconds"]).pivot(index="method", columns="part", values="seconds")
    total = times.sum(axis=1)
    beside = listing([
        f"{label_of(str(m))} {1e3 * total[m]:.0f} ms, {percent(1 - times.loc[m, FORWARDS] / total[m])} outside forwards"
        for m in total.index])  # fmt: skip
    peak = q8.dropna(subset=["bytes"]).groupby("method")["bytes"].sum()
    sizes = listing([f"{label_of(str(method))} {value / 1e6:.0f} MB" for method, value in peak.sort_values().items()])
    return [
        f"A step of {q8['model'].iloc[0]} with one direction takes (median, processor time): {beside}.",
        f"At the peak it holds, above the interpreter: {sizes}.",
    ]


def at_edge(frame: pd.DataFrame) -> set[str]:
    """Return the rows whose lr is an end of the list that was tried for them, on that model and corpus."""
    keys = ["method", "model", "corpus"]
    tried: dict[tuple[str, ...], list[float]] = {}
    for trial in (trial for each in frame.attrs["trials"] for trial in each):
        tried.setdefault(tuple(trial[key] for key in keys), []).append(trial["lr"])
    chosen = frame[frame["budget"] == "token_forwards"].drop_duplicates(["row", "lr", "model", "corpus"])
    where = zip(chosen["row"], chosen["model"], chosen["corpus"], chosen["lr"])
    return {row for row, *pane, lr in where for rates in [tried.get((row, *pane), [])]
            if rates and lr in (min(rates), max(rates))}  # fmt: skip
