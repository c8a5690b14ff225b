"""Numbers as a reader sees them, everywhere the same."""

from __future__ import annotations

import math

MISSING = "–"


def nats(value: float, digits: int = 3) -> str:
    """A loss in nats a token."""
    return f"{value:.{digits}f}" if math.isfinite(value) else MISSING


def signed(value: float, digits: int = 3) -> str:
    """A difference of losses, with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−") if math.isfinite(value) else MISSING


def count(value: float) -> str:
    """A number of steps, tokens or parameters in three digits: 950, 12.3 k, 4.92 M, 1.56 G."""
    if not math.isfinite(value):
        return MISSING
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * scale:
            return f"{float(f'{value / scale:.3g}'):g}{unit}"
    return f"{value:.0f}"


def size(value: float) -> str:
    """A number of bytes in MiB or GiB."""
    if not math.isfinite(value):
        return MISSING
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def duration(seconds: float) -> str:
    """A time as 8.4 ms, 12 s, 4 min 05 s or 2 h 10 min."""
    if not math.isfinite(seconds):
        return MISSING
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def percent(share: float) -> str:
    """A share as a whole percentage."""
    return f"{100 * share:.0f} %" if math.isfinite(share) else MISSING


def rate(value: float) -> str:
    """A learning rate in two digits, as 3e-4 or 0.02."""
    if not math.isfinite(value):
        return MISSING
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{value:.2g}" if value >= 0.01 else f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def listing(items: list[str]) -> str:
    """Words as a list in a sentence."""
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else "".join(items)
