# SPDX-License-Identifier: Apache-2.0
"""Work for Debian's own libraries, run by Debian's own Python: one line on standard input names it, one line answers.

Every answer is a digest of results that are the same each time. What others have published is compared here.
"""

import contextlib
import ctypes
import hashlib
import hmac
import importlib
import io
import sqlite3
import sys
import unittest
import zlib

# RFC 1321, FIPS 180-4 and 202 examples of "abc"; RFC 7693.
DIGESTS_OF_ABC = {
    "md5": "900150983cd24fb0d6963f7d28e17f72",
    "sha1": "a9993e364706816aba3e25717850c26c9cd0d89d",
    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "sha384": "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
    "sha512": "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
    "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
    "sha3_256": "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532",
    "blake2b": "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
    "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923",
}
# RFC 4231 test case 2, RFC 7914 sections 11 and 12.
HMAC_SHA256 = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
PBKDF2_SHA256 = (
    "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc"
    "49ca9cccf179b645991664b39d77ef317c71b845b1e30bd509112041d3a19783"
)
SCRYPT = (
    "77d6576238657b203b19ca42c18a0497f16b4844e3074ae8dfdffa3fede21442"
    "fcd0069ded0948f8326a753a0fc81f17e8d3e0fb2e0d3628cf35e20c38d18906"
)
# RFC 8032 section 7.1, tests 1 and 2: secret key, message, signature.
ED25519 = (
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
)
EVP_PKEY_ED25519 = 1087
# FIPS 197 appendix C.
AES_KEY, AES_PLAIN, AES_CIPHER = (
    bytes(range(16)),
    bytes.fromhex("00112233445566778899aabbccddeeff"),
    "69c4e0d86a7b0430d8cdb78070b4c55a",
)
OWN_TESTS = ("bisect", "textwrap", "operator", "string", "fractions", "scope", "with")


def compress() -> str:
    """libz: each level and strategy, there and back."""
    text = b"".join(b"%d packets, %x bytes; " % (i, i * i) for i in range(4000))
    seen = hashlib.sha256()
    for level in range(-1, 10):
        for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED):
            packer = zlib.compressobj(level, zlib.DEFLATED, 31 if level % 2 else 15, 8, strategy)
            packed = packer.compress(text[:30000]) + packer.flush(zlib.Z_SYNC_FLUSH) + packer.copy().flush()
            assert zlib.decompressobj(47).decompress(packed) == text[:30000]
            seen.update(packed)
    assert zlib.crc32(b"123456789") == 0xCBF43926  # the check value of the CRC catalogues
    assert zlib.adler32(b"Wikipedia") == 0x11E60398
    return seen.hexdigest()


def query() -> str:
    """libsqlite3: a few thousand statements."""
    connection = sqlite3.connect(":memory:")
    results: list[object] = []
    connection.execute("create table flow(id integer primary key, name text, bytes real)")
    connection.execute("create index by_name on flow(name)")
    for i in range(2000):
        connection.execute("insert into flow(name, bytes) values(?, ?)", (f"x{i * 7919 % 1000}", i * 1.5))
    for i in range(500):
        results += connection.execute("select count(*), sum(bytes) from flow where name = ?", (f"x{i}",)).fetchall()
    for statement in (
        "select count(*), sum(bytes), avg(bytes), max(name) from flow",
        "select substr(name, 1, 2), count(*) from flow group by 1 order by 2 desc, 1",
        "select * from flow where name like 'x1%' or bytes between 5 and 90 order by bytes desc limit 20",
        "with recursive r(n) as (select 1 union all select n + 1 from r where n < 500) select sum(n) from r",
        "select group_concat(name) from (select name from flow order by bytes limit 30)",
        "select printf('%.3f|%s|%d|%q', bytes, name, id, name) from flow where id % 50 = 0",
        "select a.name from flow a join flow b on a.id = b.id + 1 where b.bytes > 1000 order by 1 limit 10",
        """select json_extract('{"a": [1, 2, {"b": 3.5}]}', '$.a[2].b')""",
        "select sum(bytes) over (partition by id % 7 order by id rows 3 preceding) from flow limit 100",
        "select date('2024-02-28', '+2 days'), round(2.567, 1), hex(zeroblob(3)), soundex('x') is null",
    ):
        with contextlib.suppress(sqlite3.OperationalError):  # soundex is a matter of how it was built
            results += connection.execute(statement).fetchall()
    connection.execute("update flow set bytes = bytes + 1 where id < 900")
    connection.execute("delete from flow where id % 3 = 0")
    results += connection.execute("pragma integrity_check").fetchall()
    connection.commit()
    connection.execute("vacuum")
    results += connection.execute("select sum(bytes), count(distinct name) from flow").fetchall()
    assert ("ok",) in results
    return _digest(results)


def digest() -> str:
    """libcrypto's digests against what was published, then over many lengths."""
    for name, expected in DIGESTS_OF_ABC.items():
        assert hashlib.new(name, b"abc").hexdigest() == expected, name
    assert hmac.new(b"Jefe", b"what do ya want for nothing?", "sha256").hexdigest() == HMAC_SHA256
    assert hashlib.pbkdf2_hmac("sha256", b"passwd", b"salt", 1, 64).hex() == PBKDF2_SHA256
    assert hashlib.scrypt(b"", salt=b"", n=16, r=1, p=1, dklen=64).hex() == SCRYPT
    results = []
    for name in sorted(hashlib.algorithms_guaranteed):
        for length in (*range(0, 300, 7), 100_000):
            state = hashlib.new(name, bytes(i & 255 for i in range(length)))
            results.append(state.hexdigest(32) if name.startswith("shake") else state.hexdigest())
    return _digest(results)


def sign() -> str:
    """libcrypto's signatures and ciphers: Ed25519 and AES as published, RSA and ECDSA there and back."""
    library = ctypes.CDLL("libcrypto.so.3")
    for name in ("new_raw_private_key", "Q_keygen"):
        getattr(library, f"EVP_PKEY_{name}").restype = ctypes.c_void_p
    for name in ("EVP_MD_CTX_new", "EVP_CIPHER_CTX_new", "EVP_aes_128_ecb", "EVP_sha256"):
        getattr(library, name).restype = ctypes.c_void_p
    for secret, message, signature in ED25519:
        key = library.EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, None, bytes.fromhex(secret), ctypes.c_size_t(32))
        assert _signed(library, key, None, bytes.fromhex(message)).hex() == signature
    results = []
    for words in ((b"EC", b"P-256"), (b"RSA", ctypes.c_size_t(1024))):
        key = library.EVP_PKEY_Q_keygen(None, None, *words)
        results.append(len(_signed(library, key, ctypes.c_void_p(library.EVP_sha256()), b"a message")) > 60)
    context = ctypes.c_void_p(library.EVP_CIPHER_CTX_new())
    cipher, size = ctypes.create_string_buffer(32), ctypes.c_int()
    mode = ctypes.c_void_p(library.EVP_aes_128_ecb())
    assert library.EVP_EncryptInit_ex(context, mode, None, AES_KEY, None) == 1
    assert library.EVP_EncryptUpdate(context, cipher, ctypes.byref(size), AES_PLAIN, 16) == 1
    library.EVP_CIPHER_CTX_free(context)
    assert cipher.raw[:16].hex() == AES_CIPHER
    return _digest(results)


def _signed(library: ctypes.CDLL, key: int, digest_kind: "ctypes.c_void_p | None", message: bytes) -> bytes:
    """Signs, verifies and returns the signature."""
    signature, size = ctypes.create_string_buffer(512), ctypes.c_size_t(512)
    for verifies in (False, True):
        context = ctypes.c_void_p(library.EVP_MD_CTX_new())
        start = library.EVP_DigestVerifyInit if verifies else library.EVP_DigestSignInit
        assert start(context, None, digest_kind, None, ctypes.c_void_p(key)) == 1
        length = ctypes.c_size_t(len(message))
        if verifies:
            assert library.EVP_DigestVerify(context, signature, size, message, length) == 1
        else:
            assert library.EVP_DigestSign(context, signature, ctypes.byref(size), message, length) == 1
        library.EVP_MD_CTX_free(context)
    library.EVP_PKEY_free(ctypes.c_void_p(key))
    return signature.raw[: size.value]


def own_tests() -> str:
    """Python's own tests of itself: how many ran, and that none failed."""
    suite = unittest.TestSuite()
    for name in OWN_TESTS:
        module = importlib.import_module(f"test.test_{name}")
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
    output = io.StringIO()
    result = unittest.TextTestRunner(output).run(suite)
    if not result.wasSuccessful():
        return repr(output.getvalue()[-4000:])
    return f"{result.testsRun} tests, {len(result.skipped)} skipped"


def _digest(results: object) -> str:
    return hashlib.sha256(repr(results).encode()).hexdigest()


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        print(globals()[line.strip()](), flush=True)
