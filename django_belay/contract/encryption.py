"""Inputs encrypted at rest: AES-256-GCM, the same bytes as every SDK of the contract.

``{"$enc": base64(iv 12 ‖ tag 16 ‖ ciphertext)}`` with the additional data
``belay.input.v1``. No error here holds a key or a plaintext.

Contract: §3 ``input``.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from django_belay.contract.json_value import loads
from django_belay.exceptions import ConfigurationError, InvalidInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: A key of 32 bytes, or a callable that gives one (from a key service, say).
Key = bytes | Callable[[], bytes]

MARK: Final = "$enc"
_AAD: Final = b"belay.input.v1"
_KEY_BYTES: Final = 32
_IV_BYTES: Final = 12
_TAG_BYTES: Final = 16


def is_encrypted(input: Any) -> bool:
    """Whether an input, as it is stored, is an encrypted one.

    Contract: §3 ``input``.
    """
    return isinstance(input, Mapping) and len(input) == 1 and isinstance(input.get(MARK), str)


def encrypt(data: bytes, keys: Sequence[Key]) -> dict[str, str]:
    """Encrypt an input with the newest key.

    Args:
        data: The input's JSON.
        keys: Keys of 32 bytes, newest first.

    Returns:
        The object to store in its place.

    Raises:
        ConfigurationError: There is no key, it has another length, its callable failed,
            or the ``cryptography`` package is missing.

    Contract: §3 ``input``.
    """
    _require_keys(keys)
    iv = os.urandom(_IV_BYTES)
    sealed = _cipher(keys, 0).encrypt(iv, data, _AAD)
    ciphertext, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
    return {MARK: base64.b64encode(iv + tag + ciphertext).decode()}


def decrypt(value: Mapping[str, Any], keys: Sequence[Key]) -> bytes:
    """Decrypt an input with the first key that fits.

    Args:
        value: The object as stored.
        keys: Keys of 32 bytes, newest first; callables are called as far as needed.

    Returns:
        The input's JSON.

    Raises:
        InvalidInput: The object is malformed, was altered, or no key fits.
        ConfigurationError: As :func:`encrypt`.

    Contract: §3 ``input``.
    """
    _require_keys(keys)
    iv, tag, ciphertext = _parts(value)
    for index in range(len(keys)):
        data = _open(_cipher(keys, index), iv, ciphertext + tag)
        if data is not None:
            return data
    raise InvalidInput(
        f"cannot be decrypted: none of the {len(keys)} keys of ENCRYPTION_KEYS fits, or the value was altered; "
        "add the key it was encrypted with",
        path="input",
    )


def plain(input: Any, keys: Sequence[Key]) -> Any:
    """An input in the clear, whether it is stored encrypted or not.

    Raises:
        InvalidInput, ConfigurationError: As :func:`decrypt`.

    Contract: §3 ``input``.
    """
    return loads(decrypt(input, keys)) if is_encrypted(input) else input


def _open(cipher: AESGCM, iv: bytes, sealed: bytes) -> bytes | None:
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(iv, sealed, _AAD)
    except InvalidTag:
        return None


def _parts(value: Mapping[str, Any]) -> tuple[bytes, bytes, bytes]:
    if not is_encrypted(value):
        raise InvalidInput(f"is not encrypted: expected an object of {MARK} alone, with text", path="input")
    try:
        raw = base64.b64decode(value[MARK], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("is not base64", path=f"input.{MARK}") from None
    body = _IV_BYTES + _TAG_BYTES
    if len(raw) < body:
        raise InvalidInput(f"has {len(raw)} bytes, at least {body} expected", path=f"input.{MARK}")
    return raw[:_IV_BYTES], raw[_IV_BYTES:body], raw[body:]


def _require_keys(keys: Sequence[Key]) -> None:
    if not keys:
        raise ConfigurationError("ENCRYPTION_KEYS is empty; an encrypted input needs a key of 32 bytes there")


def _cipher(keys: Sequence[Key], index: int) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigurationError(
            "encrypted inputs need the cryptography package: pip install django-belay[encryption]"
        ) from None
    return AESGCM(_key(keys[index], f"ENCRYPTION_KEYS[{index}]"))


def _key(key: Key, name: str) -> bytes:
    found: Any = _called(key, name) if callable(key) else key
    if not isinstance(found, (bytes, bytearray)):
        raise ConfigurationError(f"{name} is {type(found).__name__}, expected {_KEY_BYTES} bytes")
    if len(found) != _KEY_BYTES:
        raise ConfigurationError(f"{name} has {len(found)} bytes, expected {_KEY_BYTES}")
    return bytes(found)


def _called(key: Callable[[], bytes], name: str) -> Any:
    try:
        return key()
    except Exception as error:
        failure = type(error).__name__
    # Raised out here so that the error, whose text may hold the key, is not its context.
    raise ConfigurationError(f"the callable at {name} failed with {failure}")
