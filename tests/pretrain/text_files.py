import gzip
import io
import json
import lzma
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_texts(path: Path, texts: list[str]) -> Path:
    lines = "".join(json.dumps({"text": text, "meta": 1}, ensure_ascii=False) + "\n" for text in texts)
    if path.suffix == ".jsonl":
        path.write_text(lines, encoding="utf-8")
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), path)
    elif path.suffix == ".txt":
        path.write_text("<|endoftext|>".join(texts), encoding="utf-8")
    else:
        path.write_bytes(nested_tar(texts))
    return path


def nested_tar(texts: list[str]) -> bytes:
    """A tar of tar.xz files, a document a file, as OpenWebText is distributed."""

    def tar(members: dict[str, bytes]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return out.getvalue()

    parts = {
        f"openwebtext/part{i}_data.xz": lzma.compress(tar({f"{i}.txt": text.encode(), "notes.md": b"no text"}))
        for i, text in enumerate(texts)
    }
    return tar(parts)
