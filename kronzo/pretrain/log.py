"""RUN/metrics.jsonl: one JSON object a step, written in blocks, cut back to the checkpoint on resume."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FILE = "metrics.jsonl"
_FLUSH_SECONDS = 2.0


class MetricsWriter:
    """Append records; a context manager.

    Values may be 0-dim tensors: they are read only when the block is written, so that a step never waits for a device.

    Args:
        path: the file, created when missing.
        keep_bytes: what stays of an existing file: the size at the checkpoint from which the run goes on.
    """

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        self._file = path.open("ab")
        self._file.truncate(keep_bytes)
        self._records: list[dict[str, Any]] = []
        self._flushed = time.monotonic()

    def write(self, record: dict[str, Any]) -> None:
        """Add a line; it reaches the file within two seconds, at `sync` or at the end."""
        self._records.append(record)
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the operating system."""
        lines = [json.dumps({key: _plain(value) for key, value in record.items()}) for record in self._records]
        self._records.clear()
        self._file.write("".join(line + "\n" for line in lines).encode())
        self._file.flush()
        self._flushed = time.monotonic()

    def sync(self) -> int:
        """Bring all lines to the disk and return the size of the file in bytes."""
        self.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.flush()
        finally:
            self._file.close()


def _plain(value: Any) -> Any:
    """Return what JSON can hold; a non-finite number becomes null."""
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    number = float(value)
    return number if math.isfinite(number) else None


def read_metrics(run: Path | str) -> pd.DataFrame:
    """Return RUN/metrics.jsonl as a table, a row a step; an unfinished last line is left out.

    Args:
        run: the run folder or the file.

    Returns:
        Columns step, tokens, token_forwards, forwards, seconds, loss, lr, ... and val_loss, NaN where not evaluated.
    """
    import pandas as pd

    path = Path(run)
    path = path / FILE if path.is_dir() else path
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return pd.DataFrame([json.loads(line) for line in lines if line.endswith("\n")])
