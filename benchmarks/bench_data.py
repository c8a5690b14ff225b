"""`kronzo data build openwebtext` from a local copy: megabytes of text a second and resident memory.

    python benchmarks/bench_data.py                      160 MB of installed Python sources as documents (20 s)
    python benchmarks/bench_data.py --quick              16 MB
    python benchmarks/bench_data.py --from COPY          a copy of one's own: .jsonl, .jsonl.gz, .txt or .parquet

The command runs in a process of its own, start and imports included, with GPT-2's tokens. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from measure import emit


def sources(path: Path, size: int) -> None:
    """Write installed Python sources as documents, over and over until there are `size` bytes of text."""
    files = sorted(Path(sysconfig.get_path("purelib")).glob("*/**/*.py"))
    written = 0
    with path.open("w", encoding="utf-8") as out:
        while written < size:
            for file in files:
                text = file.read_text(encoding="utf-8", errors="replace")
                out.write(json.dumps({"text": text}) + "\n")
                written += len(text)
                if written >= size:
                    break


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--from", dest="copy", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = options.copy or Path(folder) / "sources.jsonl"
        if options.copy is None:
            sources(copy, 16_000_000 if options.quick else 160_000_000)
        out = Path(folder) / "tokens"
        command = [sys.executable, "-m", "kronzo", "data", "build", "openwebtext"]
        command += ["--from", str(copy), "--out", str(out)]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"KRONZO_CACHE": folder})
        seconds = time.perf_counter() - start
        resident = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        size = copy.stat().st_size
        tokens = sum(file.stat().st_size for file in out.rglob("*.bin")) // 2
    results = {"bytes": size, "tokens": tokens, "seconds": seconds, "resident": resident}
    ratios = {"MB a second / 10": size / 1e6 / seconds / 10, "resident / 600 MB": resident / 600e6}
    emit("data", {"copy": "given" if options.copy else "sources", "quick": options.quick}, results, ratios)


if __name__ == "__main__":
    main()
