"""table1 to table4: what a direction stores, factor shapes, the two rules, zeroth order against first order."""

from __future__ import annotations

import pandas as pd

from figures.drawing import Drawing
from figures.frames import complete, last_points, seeds
from kronzo.pretrain.comparison import interval
from kronzo.pretrain.reported import COMPRESSION, ROWS, SOURCE, XL, Reported
from kronzo.pretrain.results import label_of
from kronzo.pretrain.units import count

C_ATTN = "c_attn"


def storage_table(frame: pd.DataFrame) -> pd.DataFrame:
    """What one direction stores of GPT-2 small's c_attn, with the compression that the paper reports."""
    rows = frame[frame["matrix"] == C_ATTN].copy()
    rows["reported_compression"] = [COMPRESSION.get(label, float("nan")) for label in rows["label"]]
    shown = ["label", "X", "kept", "stored", "compression", "reported_compression", "rank"]
    return rows[shown].fillna({"X": "", "kept": ""}).reset_index(drop=True)


def storage_caption(frame: pd.DataFrame) -> str:
    """Caption of table1."""
    row = frame[frame["matrix"] == C_ATTN].iloc[0]
    return (
        f"Numbers that one direction stores for GPT-2 small's {C_ATTN} ({row['rows']} x {row['cols']}): coordinates X "
        "and kept factors; compression is numbers of the matrix for each stored one, 1 where the direction is as large "
        f"as the matrix and regenerated; rank is the largest a move can have. Reported: {SOURCE}."
    )


def factors_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Kronecker factors of every kind of matrix in GPT-2 small."""
    rows = frame[frame["method"] == "kronzo"].rename(columns={"X": "A", "kept": "B"})
    return rows[["matrix", "rows", "cols", "A", "B", "stored", "compression", "rank"]].reset_index(drop=True)


def factors_caption(frame: pd.DataFrame) -> str:
    """Caption of table2."""
    return (
        "KronZO's factor shapes (Algorithm 1) for the matrices of GPT-2 small, what a direction stores, and the "
        f"largest rank of a move; the paper reports a compression of {COMPRESSION['KronZO']:.0f} for {C_ATTN}."
    )


def _final(last: pd.DataFrame, method: str, rule: str) -> pd.DataFrame:
    """The last evaluations of a method under a rule at equal token_forwards."""
    same_rule = last["rule"].fillna("") == rule
    return last[(last["method"] == method) & same_rule & (last["budget"] == "token_forwards")]


def _mean(frame: pd.DataFrame, column: str = "val_loss") -> float:
    return interval(frame[column].astype(float).tolist())[0]


def _half(frame: pd.DataFrame) -> float:
    return interval(frame["val_loss"].astype(float).tolist())[1]


def _panes(frame: pd.DataFrame, reproduction: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Last evaluations by corpus and model: those of a comparison, then those of `kronzo reproduce`."""
    found = {
        f"{corpus}, {model}": rows
        for (corpus, model), rows in last_points(complete(frame)).groupby(["corpus", "model"], sort=False)
    }
    source, parameters = reproduction.attrs["corpus"][0]["source"], float(reproduction["parameters"].iloc[0])
    return found | {f"{source}, {count(parameters)} parameters, kronzo reproduce": last_points(reproduction)}


def rules_table(frame: pd.DataFrame, reproduction: pd.DataFrame) -> pd.DataFrame:
    """Averaging against directional: the paper's training losses, and ours on held-out text at equal token_forwards."""
    reported = {(row.method, row.rule): row.loss for row in ROWS}
    rows = []
    for pane, last in _panes(frame, reproduction).items():
        for method in ("kronzo", "lozo", "mezo", "subzero"):
            average, directional = (_final(last, method, rule) for rule in ("average", "directional"))
            if average.empty and directional.empty:
                continue
            theirs = [reported.get((method, rule), float("nan")) for rule in ("average", "directional")]
            apart = _by_seed(directional) - _by_seed(average)
            mean, half = interval(apart.dropna().tolist())
            rows.append(
                {
                    "where": pane,
                    "method": label_of(method),
                    "reported_average": theirs[0],
                    "reported_directional": theirs[1],
                    "reported_difference": theirs[1] - theirs[0],
                    "average": _mean(average),
                    "directional": _mean(directional),
                    "difference": mean,
                    "plus_minus": half,
                    "seeds": max(len(average), len(directional)),
                }
            )
    return pd.DataFrame(rows)


def _by_seed(last: pd.DataFrame) -> pd.Series:
    return last.set_index("seed")["val_loss"].astype(float)


def rules_caption(frame: pd.DataFrame, reproduction: pd.DataFrame) -> str:
    """Caption of table3."""
    return (
        "Averaging against the directional rule. Reported: final training loss (nats a token), 50 directions averaged, "
        f"33 searched, equal forwards, one seed; {SOURCE}. Ours: {_ours(frame, reproduction)}; the difference seed by "
        "seed with its 95 % interval. Empty: not run here, not reported, or no interval from one seed."
    )


def _ours(frame: pd.DataFrame, reproduction: pd.DataFrame) -> str:
    budgets = (
        " or ".join(sorted({count(round(float(spent), -4)) for spent in last_points(each)["token_forwards"]}))
        for each in (frame[frame["budget"] == "token_forwards"], reproduction[reproduction["method"] == "kronzo"])
    )
    said = (f"{seeds(each)} at {budget} token_forwards" for each, budget in zip((frame, reproduction), budgets))
    return f"final validation loss, {' and '.join(said)} (kronzo reproduce)"


def orders_table(rules: pd.DataFrame, orders: pd.DataFrame, reproduction: pd.DataFrame) -> pd.DataFrame:
    """Zeroth order against first order: loss, seconds a step and memory, reported beside ours."""
    both = pd.concat([orders, rules], ignore_index=True).drop_duplicates(["corpus", "model", "row", "seed", "step"])
    reported = {(row.method, row.rule): row for row in ROWS}
    keys = dict.fromkeys([*reported, *zip(both["method"], both["rule"].fillna(""))])
    panes = _panes(both, reproduction)
    last, longer = panes[next(iter(panes))], last_points(reproduction)
    return pd.DataFrame(
        [
            _order(f"{method}-{rule}".removesuffix("-"), reported.get((method, rule)), _final(last, method, rule))
            | {"minus_adamw": _mean(_final(last, method, rule)) - _mean(_final(last, "adamw", ""))}
            | {"reproduce_loss": _mean(_final(longer, method, rule))}
            for method, rule in keys
        ]
    )


def _order(name: str, paper: Reported | None, ours: pd.DataFrame) -> dict[str, object]:
    """One row of table4: what is reported and what was measured."""
    return {
        "method": label_of(name),
        "reported_loss": paper.loss if paper else float("nan"),
        "reported_seconds_per_step": paper.seconds if paper else float("nan"),
        "reported_memory_gb": paper.memory_gb if paper else float("nan"),
        "val_loss": _mean(ours),
        "plus_minus": _half(ours),
        "steps": _mean(ours, "step"),
        "seconds_per_step": (ours["seconds"] / ours["step"].astype(float)).mean(),
        "peak_gb": _mean(ours, "peak_bytes") / 1e9,
        "seeds": len(ours),
    }


def orders_caption(rules: pd.DataFrame, orders: pd.DataFrame, reproduction: pd.DataFrame) -> str:
    """Caption of table4."""
    xl = "; ".join(
        f"{label_of(row.method)} {row.loss:.2f}, {row.memory_gb:g} GB, {row.seconds:g} s a step" for row in XL
    )
    panes = iter(_panes(orders, reproduction))
    return (
        "Zeroth order against first order. Reported: final training loss, seconds a step, GB allocated between steps; "
        f"{SOURCE}; for GPT-2 XL it reports {xl}. Ours: {_ours(orders, reproduction)}; {next(panes)}, with its 95 % "
        f"interval, and in the last column {list(panes)[-1]}; peak resident set of the whole process, most of which is "
        "the interpreter for so small a model; the machine was shared. Empty: not run here or not reported."
    )


DRAWINGS = (
    Drawing("table1", ("storage",), storage_table, storage_caption),
    Drawing("table2", ("storage",), factors_table, factors_caption),
    Drawing("table3", ("q1", "reproduction"), rules_table, rules_caption),
    Drawing("table4", ("q1", "q6", "reproduction"), orders_table, orders_caption),
)
