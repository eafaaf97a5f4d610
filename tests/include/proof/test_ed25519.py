"""The file that checks proofs verifies Ed25519 by itself: against another implementation, and RFC 8032's vectors."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from include.proof.verify import ed25519_verifies

# RFC 8032, section 7.1, tests 1 and 2: public key, message, signature.
VECTORS = (
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
)


def test_vectors_verify_when_they_are_the_rfc_s() -> None:
    for public_key, message, signature in VECTORS:
        assert ed25519_verifies(public_key, signature, bytes.fromhex(message))


def test_signature_verifies_only_when_it_is_unchanged() -> None:
    for number in range(20):
        key, message = Ed25519PrivateKey.generate(), f"message {number}".encode()
        public, signature = key.public_key().public_bytes_raw().hex(), key.sign(message)
        assert ed25519_verifies(public, signature.hex(), message)
        assert not ed25519_verifies(public, signature.hex(), message + b".")
        flipped = bytearray(signature)
        flipped[number * 3] ^= 1
        assert not ed25519_verifies(public, flipped.hex(), message)
        other = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
        assert not ed25519_verifies(other, signature.hex(), message)


def test_nothing_verifies_when_key_or_signature_is_not_one() -> None:
    public_key, _, signature = VECTORS[0]
    # The order of the group, added to the scalar: another text for the same signature.
    scalar = int.from_bytes(bytes.fromhex(signature[64:]), "little") + 2**252 + 27742317777372353535851937790883648493
    malleable = signature[:64] + scalar.to_bytes(32, "little").hex()
    for key, value in [
        ("", signature),
        (public_key, ""),
        ("xy", signature),
        ("f" * 64, signature),
        (public_key, malleable),
    ]:
        assert not ed25519_verifies(key, value, b"")
