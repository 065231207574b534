"""The tokenizers that read a stored session's ids: what each step says of its own, or the one that was asked for.

Reads files, or the hub, each tokenizer once. Not shared between threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.model_files import ModelFilesError, read_tokenizer
from sidecar.store.protocol import StoreError
from sidecar.tito.codec import Codec
from sidecar.tito.records import StepRecord


@dataclass(frozen=True, slots=True)
class NamedCodec:
    """A tokenizer and where it was read from."""

    name: str
    codec: Codec


class Tokenizers:
    """`given` is what `--tokenizer` names; without it each step's own is read from where the sidecar had it."""

    def __init__(self, given: str | None) -> None:
        self._given = given
        self._read: dict[str, NamedCodec] = {}

    def of(self, record: StepRecord) -> NamedCodec:
        """What reads the step's ids. Raises `ModelFilesError` if `given` cannot be read, `StoreError` if the step's
        own cannot be found, is no longer the one that sampled it, or if `given` certainly is another one."""
        found = self._own(record) if self._given is None else self._named(self._given)
        if record.tokenizer_sha256 != found.codec.sha256:
            if self._given is None:
                raise StoreError(
                    f"step {record.step_id} was sampled with tokenizer {found.name!r} of sha256 "
                    f"{record.tokenizer_sha256}, but what is there now has sha256 {found.codec.sha256}; "
                    "name the one that the sidecar served with --tokenizer PATH_OR_ID"
                )
            _check_plausible(record, found)
        return found

    def _own(self, record: StepRecord) -> NamedCodec:
        if record.tokenizer is None:
            raise StoreError(
                f"step {record.step_id} does not say which tokenizer sampled it: an older version stored it; name "
                "the one that the sidecar served with --tokenizer PATH_OR_ID"
            )
        try:
            return self._named(record.tokenizer)
        except ModelFilesError as error:
            raise StoreError(
                f"step {record.step_id} was sampled with tokenizer {record.tokenizer!r}, which cannot be read: "
                f"{error}; name a copy of it with --tokenizer PATH_OR_ID"
            ) from error

    def _named(self, name: str) -> NamedCodec:
        if name not in self._read:
            self._read[name] = NamedCodec(name, Codec(read_tokenizer(name)))
        return self._read[name]


def _check_plausible(record: StepRecord, found: NamedCodec) -> None:
    """Another tokenizer than the step's would show nothing but drift; two signs of it are certain enough."""
    codec = found.codec
    largest = max((int(ids.max()) for ids in (record.context_ids, record.output_ids) if len(ids)), default=0)
    if largest >= codec.vocab_size:
        sign = f"id {largest} is beyond its vocabulary of {codec.vocab_size}"
    elif record.stop_id is not None and record.stop_id not in codec.control:
        sign = f"the stop id {record.stop_id} is {codec.decode([record.stop_id])!r} in it, no control token"
    else:
        return
    own = "" if record.tokenizer is None else f", {record.tokenizer!r} of sha256 {record.tokenizer_sha256}"
    raise StoreError(
        f"--tokenizer is {found.name!r} (sha256 {codec.sha256}), but step {record.step_id} was sampled with "
        f"another one{own}: {sign}; name the tokenizer that the sidecar served"
    )
