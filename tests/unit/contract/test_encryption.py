"""Encrypted inputs, in the bytes of the contract."""

from __future__ import annotations

import base64
import sys
from typing import Any

import pytest

from django_belay.contract.encryption import decrypt, encrypt, is_encrypted
from django_belay.exceptions import ConfigurationError, InvalidInput

pytest.importorskip("cryptography")

OLD, NEW = bytes(range(32)), bytes(range(100, 132))
SECRET = b'{"card":"4242"}'

# Worked out from the definition of GCM over bare AES: key 00…1f, iv 00…0b, AAD belay.input.v1.
KNOWN = "AAECAwQFBgcICQoLWmTEoGZfEwcjgLR/x4uE5zwgtXq3geAhr3Wlv4PLBQ=="


def test_a_value_comes_back() -> None:
    value = encrypt(SECRET, [NEW, OLD])
    assert is_encrypted(value)
    assert decrypt(value, [NEW, OLD]) == SECRET
    assert SECRET not in base64.b64decode(value["$enc"])


def test_the_layout_is_iv_tag_ciphertext() -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    raw = base64.b64decode(encrypt(SECRET, [NEW])["$enc"])
    assert len(raw) == 12 + 16 + len(SECRET)
    decryptor = Cipher(algorithms.AES(NEW), modes.GCM(raw[:12], raw[12:28])).decryptor()
    decryptor.authenticate_additional_data(b"belay.input.v1")
    assert decryptor.update(raw[28:]) + decryptor.finalize() == SECRET


def test_bytes_of_another_implementation_are_read() -> None:
    assert decrypt({"$enc": KNOWN}, [OLD]) == SECRET


def test_every_encryption_differs() -> None:
    assert encrypt(SECRET, [NEW]) != encrypt(SECRET, [NEW])


def test_the_newest_key_encrypts_and_older_ones_still_read() -> None:
    value = encrypt(SECRET, [NEW, OLD])
    assert decrypt(value, [NEW]) == SECRET
    assert decrypt(encrypt(SECRET, [OLD]), [NEW, OLD]) == SECRET


def test_a_callable_gives_a_key_and_is_called_only_when_needed() -> None:
    def unreachable() -> bytes:
        raise AssertionError

    value = encrypt(SECRET, [lambda: NEW, unreachable])
    assert decrypt(value, [lambda: NEW, unreachable]) == SECRET


def test_no_key_fits() -> None:
    with pytest.raises(InvalidInput, match="none of the 1 keys of ENCRYPTION_KEYS fits"):
        decrypt(encrypt(SECRET, [OLD]), [NEW])


@pytest.mark.parametrize("position", [0, 12, 28])
def test_an_altered_value_is_refused(position: int) -> None:
    raw = bytearray(base64.b64decode(encrypt(SECRET, [NEW])["$enc"]))
    raw[position] ^= 1
    with pytest.raises(InvalidInput, match="altered"):
        decrypt({"$enc": base64.b64encode(raw).decode()}, [NEW])


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"$enc": "%%%"}, "not base64"),
        ({"$enc": "ůů"}, "not base64"),
        ({"$enc": base64.b64encode(bytes(27)).decode()}, "has 27 bytes, at least 28"),
        ({"a": 1}, "is not encrypted"),
        ({"$enc": 1}, "is not encrypted"),
    ],
)
def test_a_malformed_value_is_refused(value: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        decrypt(value, [NEW])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ([], "ENCRYPTION_KEYS is empty"),
        ([b"short"], r"ENCRYPTION_KEYS\[0\] has 5 bytes, expected 32"),
        (["x" * 32], r"ENCRYPTION_KEYS\[0\] is str"),
        ([lambda: None], r"ENCRYPTION_KEYS\[0\] is NoneType"),
    ],
)
def test_a_key_that_does_not_fit_is_named(keys: list[Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        encrypt(SECRET, keys)


def test_no_error_holds_a_key_or_a_plaintext() -> None:
    def broken() -> bytes:
        raise RuntimeError(f"cannot parse {NEW!r}")

    errors: list[BaseException] = []
    for call in (
        lambda: encrypt(SECRET, [broken]),
        lambda: encrypt(SECRET, [NEW + b"!"]),
        lambda: decrypt(encrypt(SECRET, [NEW]), [OLD]),
    ):
        with pytest.raises((ConfigurationError, InvalidInput)) as caught:
            call()
        errors.append(caught.value)
    for error in errors:
        assert error.__context__ is None
        for secret in (repr(NEW), NEW.hex(), SECRET.decode()):
            assert secret not in str(error)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigurationError, match=r"pip install django-belay\[encryption\]"):
        encrypt(SECRET, [NEW])


@pytest.mark.parametrize("value", [{}, {"$enc": "x", "a": 1}, {"$enc": None}, [], "x", None, {"enc": "x"}])
def test_other_inputs_are_not_encrypted(value: Any) -> None:
    assert not is_encrypted(value)
