"""What this installation has: versions, devices, extras, cached corpora, local data; what is absent is not imported."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kronzo import __version__
from kronzo.errors import InputError, install
from kronzo.pretrain.cache import MANIFEST, cache_dir
from kronzo.pretrain.merges import find_encoder
from kronzo.pretrain.units import count

_EXTRA = re.compile(r"^([\w.-]+)[^;]*;\s*extra\s*==\s*['\"]([\w-]+)['\"]")
_EVERYTHING = "all"
_PIP, _NO_BREAK = "pip install -e ", "\u00a0"


def examine() -> dict[str, Any]:
    """Return what is here, as plain values.

    Returns:
        kronzo, python, platform: text; home: folder of the package; spectra: {"home", "ours"}; torch: {"version",
        "devices", "threads", "cores"}; extras: name -> {package: version or None}; cache: {"folder", "writable",
        "corpora": [{"source", "tokenizer", "train_tokens", "val_tokens"}]}; data: {"KRONZO_DATA", "found", "gpt2"}.

    Cost: importing torch.
    """
    return {
        "kronzo": __version__,
        "home": str(Path(__file__).parents[1]),
        "python": sys.version.split()[0],
        "platform": sys.platform,
        "spectra": find_spectra(),
        "torch": _torch(),
        "extras": _extras(_requirements()),
        "cache": _cache(cache_dir()),
        "data": _data(os.environ.get("KRONZO_DATA")),
    }


def as_json(found: Mapping[str, Any]) -> str:
    """Return what `examine` found as JSON."""
    return json.dumps(found, indent=1, ensure_ascii=False)


def as_text(found: Mapping[str, Any]) -> str:
    """Return what `examine` found in lines of at most 80 columns, but for long paths."""
    return "\n".join(line for name, text in _lines(found) for line in _wrapped(name, text))


def _wrapped(name: str, text: str) -> list[str]:
    """Break the text into lines; a pip command stays whole."""
    whole = f"{name:9} {text}".replace(_PIP, _PIP.replace(" ", _NO_BREAK))
    lines = textwrap.wrap(whole, 80, subsequent_indent=" " * 10, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    torch, spectra, cache, data = (found[key] for key in ("torch", "spectra", "cache", "data"))
    yield "kronzo", f"{found['kronzo']} in {found['home']}"
    yield (
        "spectra",
        (
            f"ours, in {spectra['home']}"
            if spectra["ours"]
            else f"NOT ours: {spectra['home'] or 'absent'}; uninstall the colour package and install kronzo again"
        ),
    )
    yield "python", f"{found['python']} on {found['platform']}"
    yield "torch", f"{torch['version']}, {torch['threads']} threads on {torch['cores']} cores"
    yield "devices", "; ".join(torch["devices"])
    for extra, packages in found["extras"].items():
        missing = [name for name, installed in packages.items() if installed is None]
        held = ", ".join(f"{name} {installed}" for name, installed in packages.items() if installed)
        lack = f"without {', '.join(missing)}: {install(extra)}" if missing else ""
        yield (
            ("extras" if extra == next(iter(found["extras"])) else ""),
            f"{extra}: {'; '.join(filter(None, (held, lack)))}",
        )
    if not found["extras"]:
        yield "extras", "unknown: used from a folder; pip install -e . makes them known"
    yield "cache", cache["folder"] + ("" if cache["writable"] else " cannot be written; KRONZO_CACHE names another")
    for corpus in cache["corpora"]:
        parts = [corpus["train_tokens"], corpus["val_tokens"]]
        tokens = f": {' + '.join(map(count, parts))} tokens" if None not in parts else ""
        yield "", f"{corpus['source']}, tokenizer {corpus['tokenizer']}{tokens}"
    if not cache["corpora"]:
        yield "", "no corpus yet; kronzo data build pydocs makes one"
    yield "data", f"KRONZO_DATA {data['KRONZO_DATA'] or 'is not set; it names a folder of local data sets'}"
    if data["KRONZO_DATA"]:
        yield "", ", ".join(data["found"]) or "nothing is there"
    yield "", f"GPT-2's merges: {data['gpt2'] or 'not here'}"


def find_spectra() -> dict[str, Any]:
    """Where `import spectra` leads ("home") and whether that is the package beside kronzo ("ours"); imports nothing."""
    spec = find_spec("spectra")
    home = Path(spec.origin).parent if spec is not None and spec.origin else None
    return {"home": str(home) if home else None, "ours": bool(home and (home / "hooks.py").is_file())}


def _torch() -> dict[str, Any]:
    import torch

    cuda = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    names = [f"cuda:{i} {device.name}, {device.total_memory / 2**30:.0f} GiB" for i, device in enumerate(cuda)]
    return {
        "version": torch.__version__,
        "devices": [f"cpu ({torch.backends.cpu.get_cpu_capability()})", *(names or ["no CUDA device"])],
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
    }


def _requirements() -> list[str]:
    """Lines of the package's metadata; none when it is used without being installed."""
    try:
        return requires("kronzo") or []
    except PackageNotFoundError:
        return []


def _extras(requirements: list[str]) -> dict[str, dict[str, str | None]]:
    """Extra -> package -> installed version, None when missing; the extra of everything is left out.

    Args:
        requirements: lines of the package's metadata, `name>=1; extra == 'docs'`.
    """
    extras: dict[str, dict[str, str | None]] = {}
    for line in requirements:
        found = _EXTRA.match(line)
        if found and found[2] != _EVERYTHING:
            extras.setdefault(found[2], {})[found[1]] = _installed(found[1])
    return extras


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cache(folder: Path) -> dict[str, Any]:
    manifests = sorted((folder / "corpora").glob(f"*/{MANIFEST}"))
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    corpora = [_corpus(path) for path in manifests if not path.parent.name.startswith(".")]
    return {"folder": str(folder), "writable": os.access(nearest, os.W_OK), "corpora": corpora}


def _corpus(path: Path) -> dict[str, Any]:
    """What a manifest says of its corpus; one that cannot be read is said to be damaged."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return {
            "source": manifest["source"],
            "tokenizer": manifest["tokenizer"]["name"],
            "train_tokens": manifest["tokens"]["train"],
            "val_tokens": manifest["tokens"]["val"],
        }
    except (OSError, ValueError, KeyError, TypeError):
        damaged = f"{path.parent.name} (damaged)"
        return {"source": damaged, "tokenizer": "unknown", "train_tokens": None, "val_tokens": None}


def _data(given: str | None) -> dict[str, Any]:
    """What KRONZO_DATA holds, two folders deep where there are folders in folders, and where GPT-2's merges are."""
    home = Path(given).expanduser() if given else None
    found = sorted(path for path in home.iterdir() if path.is_dir()) if home and home.is_dir() else []
    inner = {path.name: sorted(part.name for part in path.iterdir() if part.is_dir()) for path in found}
    names = [f"{name} ({' '.join(parts)})" if parts else name for name, parts in inner.items()]
    try:
        merges: str | None = str(find_encoder())
    except InputError:
        merges = None
    return {"KRONZO_DATA": given, "found": names, "gpt2": merges}
