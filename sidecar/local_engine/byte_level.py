"""The byte-level alphabet of GPT-2 style vocabularies.

Promise: the one place that knows which character of a token's name stands for which byte.
Concurrency: pure functions.
"""

from functools import cache


@cache
def byte_of_character() -> dict[str, int]:
    """Return the 256 characters a byte-level token's name is written in, each with its byte.

    Printable Latin-1 bytes stand for themselves; the other 68 are numbered upwards from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + rank): byte for rank, byte in enumerate(others)})
    return table


def token_bytes(name: str) -> bytes:
    """Return the bytes that the token called `name` prints.

    Raises KeyError for a character outside the alphabet: the vocabulary is then not byte-level.
    """
    table = byte_of_character()
    return bytes(table[character] for character in name)
