#!/usr/bin/env python3
"""Generates the vectors beside this file with nothing but Python's standard library.

It shares no code with the implementation: JCS, HMAC, the container and zstd frames are written
anew from their specifications, so that a mistake would have to be made twice. Same output each run.
"""

import base64
import hashlib
import hmac
import json
import struct
from pathlib import Path

HERE = Path(__file__).parent
D1, D2 = "sha-256:" + "11" * 32, "sha-256:" + "22" * 32


def octets(seed, n):
    """n octets that depend on the seed alone."""
    out = b""
    while len(out) < n:
        out += hashlib.sha256(f"{seed}/{len(out)}".encode()).digest()
    return out[:n]


def write(name, vectors):
    (HERE / name).write_text(json.dumps(vectors, indent=1) + "\n")


# --- RFC 8785 ---------------------------------------------------------------------------------


def es_number(x):
    """Number::toString of ECMAScript: shortest digits, exponent from 1e21 and below 1e-6."""
    if isinstance(x, int):
        return str(x)
    if x == 0:
        return "0"
    sign = "-" if x < 0 else ""
    mantissa, _, exponent = f"{abs(x)!r}".lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    point = len(whole) + int(exponent or 0)
    digits = whole + fraction
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    digits = stripped.rstrip("0")
    n, k = point, len(digits)
    if k <= n <= 21:
        text = digits + "0" * (n - k)
    elif 0 < n <= 21:
        text = digits[:n] + "." + digits[n:]
    elif -6 < n <= 0:
        text = "0." + "0" * -n + digits
    else:
        e = n - 1
        text = digits[0] + ("." + digits[1:] if k > 1 else "") + "e" + ("+" if e >= 0 else "-") + str(abs(e))
    return sign + text


def jcs(value):
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (int, float)):
        return es_number(value)
    if isinstance(value, list):
        return "[" + ",".join(map(jcs, value)) + "]"
    members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be"))
    return "{" + ",".join(jcs(name) + ":" + jcs(item) for name, item in members) + "}"


# --- draft sections 4.1 and 4.2 ---------------------------------------------------------------


def descriptor(**members):
    base = {
        "model": "example/model", "model_digest": D1, "tokenizer_digest": D2,
        "layers": 30, "kv_heads": 3, "head_dim": 64, "kv_dtype": "bfloat16",
        "positional": "rope", "block_tokens": 64, "layout": "kvsp-layout-1",
    }
    return base | members


def compat_id(value):
    return hashlib.sha256(b"KVSP-COMPAT-1\0" + jcs(value).encode()).digest()


def compat_ids():
    descriptors = [
        descriptor(),
        descriptor(adapters=[D2, D1]),
        descriptor(adapters=[D1, D2]),
        descriptor(kv_dtype="float32", block_tokens=1, layers=2**31 - 1),
        descriptor(kv_dtype="int8", kv_scales=D1),
        descriptor(layout="kvsp-mla-1", kv_heads=1, head_dim=576, positional="rope-yarn;factor=40;mscale=0.707"),
        descriptor(positional="rope-dynamic;factor=2;regime=8192"),
        descriptor(positional="mrope;section=16,24,24"),
        descriptor(model=""),
        descriptor(model="\u20ac\r\n\u000f\"\\/\u007f\u0080\u05d0\U0001f600\ufb33"),
        descriptor(**{"\U0001f600": 1, "\ufb33": 2, "\u20ac": 3, "": 4, "A": 5, "a": 6}),
        descriptor(x=[0.1, -0.0, 5e-324, 1.7976931348623157e308, 1e21, 1e20, 999999999999999700000.0,
                      1e-6, 1e-7, 9007199254740991, -9007199254740991, 4.5, 0.002, 123456.789e3, 1e300]),
        descriptor(x={"b": [None, True, False, {}, []], "a": {"z": "", "y": " "}}),
    ]
    return [
        {"descriptor": d, "jcs_hex": jcs(d).encode().hex(), "compat_id": compat_id(d).hex()} for d in descriptors
    ]


def spellings():
    """Texts whose Compatibility ID is that of the plain descriptor."""
    plain = json.dumps(descriptor())
    texts = [
        plain,
        json.dumps(descriptor(), indent=3),
        json.dumps(dict(reversed(descriptor().items()))),
        plain.replace(": 30,", ": 30.0,"),
        plain.replace(": 30,", ": 3e1,"),
        plain.replace(": 64,", ": 0.64E+2,"),
        plain.replace('"rope"', '"\\u0072ope"'),
        plain.replace('"layers"', '"l\\u0061yers"'),
        "\t\r\n " + plain + "\n",
    ]
    return [{"text": text, "compat_id": compat_id(descriptor()).hex()} for text in texts]


def scope_id(key):
    return hashlib.sha256(b"KVSP-SCOPE-1\0" + key).digest()[:16]


KEYS = [octets(f"scope key {n}", n) for n in (32, 33, 63, 64, 65, 96, 200)]


def scope_ids():
    return [{"scope_key_hex": key.hex(), "scope_id": scope_id(key).hex()} for key in KEYS]


def block_keys(key, compat, block_tokens, tokens):
    keys, previous = [], bytes(32)
    for at in range(0, len(tokens) - block_tokens + 1, block_tokens):
        message = b"KVSP-BLOCK-1\0" + compat + previous
        message += b"".join(struct.pack(">I", token) for token in tokens[at : at + block_tokens])
        previous = hmac.new(key, message, hashlib.sha256).digest()
        keys.append(previous.hex())
    return keys


def block_key_chains():
    out = []
    for key in KEYS:
        # Below, at and above one block, one gathering of tokens, one hash block.
        for block_tokens, count in ((1, 3), (16, 0), (16, 15), (16, 16), (64, 129), (65, 200), (100, 399)):
            compat = compat_id(descriptor(block_tokens=block_tokens))
            tokens = list(struct.unpack(f">{count}I", octets(f"tokens {count}", 4 * count)))
            tokens[::7] = [2**32 - 1] * len(tokens[::7])
            tokens[1::7] = [0] * len(tokens[1::7])
            out.append({
                "scope_key_hex": key.hex(), "compat_id": compat.hex(), "block_tokens": block_tokens,
                "tokens": tokens, "block_keys": block_keys(key, compat, block_tokens, tokens),
            })
    return out


# --- draft section 4.3 ------------------------------------------------------------------------


def header(codec=1, first=0, count=1, tokens=1, magic=b"KVB1", version=1, flags=0):
    return magic + struct.pack(">BBHIII", version, flags, codec, first, count, tokens)


def container(codec, first, tokens, sections):
    table = b"".join(struct.pack(">QQ", len(k), len(v)) for k, v in sections)
    return header(codec, first, len(sections), tokens) + table + b"".join(k + v for k, v in sections)


def repr_digest(data):
    return "sha-256=:" + base64.b64encode(hashlib.sha256(data).digest()).decode() + ":"


def container_vector(codec, first, tokens, sections, a, b, raw=None):
    whole = container(codec, first, tokens, sections)
    layers = [hashlib.sha256(k + v).digest() for k, v in sections]
    part = container(codec, a, tokens, sections[a - first : b - first + 1])
    vector = {
        "first_layer": first, "layer_count": len(sections), "token_count": tokens, "codec": codec,
        "container_hex": whole.hex(), "layer_digests": [layer.hex() for layer in layers],
        "digest": "sha-256:" + hashlib.sha256(b"".join(layers)).hexdigest(), "repr_digest": repr_digest(whole),
        "slice": {"layers": [a, b], "container_hex": part.hex(), "repr_digest": repr_digest(part)},
    }
    if raw is not None:
        vector["raw_container_hex"] = container(1, first, tokens, raw).hex()
    return vector


def rotated(raw):
    """The planes H and L of profile section 9."""
    elements = struct.unpack(f"<{len(raw) // 2}H", raw)
    turned = [((e << 1) & 0xFFFF) | e >> 15 for e in elements]
    return bytes(t >> 8 for t in turned), bytes(t & 0xFF for t in turned)


def zstd_frame(data, rle=False, content_size=True, size=None):
    """One frame (RFC 8878) of one raw or RLE block, under 256 octets."""
    size = len(data) if size is None else size
    head = bytes([0x20, size]) if content_size else bytes([0x00, 0x00])
    kind, body = (1, data[:1]) if rle else (0, data)
    block = struct.pack("<I", 1 | kind << 1 | len(data) << 3)[:3]
    return b"\x28\xb5\x2f\xfd" + head + block + body


def stored(raw):
    return b"\0" + raw


def split(raw, rle=False):
    high, low = rotated(raw)
    frame = zstd_frame(high, rle)
    return b"\1" + struct.pack(">I", len(frame)) + frame + low


def section(frame, low, length=None):
    return b"\1" + struct.pack(">I", len(frame) if length is None else length) + frame + low


def containers():
    def raw(layers, k, v, seed):
        return [(octets(f"{seed} K {i}", k), octets(f"{seed} V {i}", v)) for i in range(layers)]

    ones = [(b"\x80\x3f" * 20, b"\x80\xbf" * 20), (octets("noise", 40), b"\0\0" * 20)]
    coded = [(split(ones[0][0], rle=True), split(ones[0][1], rle=True)), (stored(ones[1][0]), split(ones[1][1], rle=True))]
    return [
        container_vector(1, 0, 1, raw(1, 2, 2, "a"), 0, 0),
        container_vector(1, 0, 16, raw(3, 32, 32, "b"), 1, 2),
        container_vector(1, 7, 2, raw(4, 8, 8, "c"), 7, 9),
        container_vector(1, 0, 4, raw(2, 24, 0, "mla"), 1, 1),
        container_vector(1, 2**32 - 2, 2**32 - 1, raw(2, 1, 3, "edges"), 2**32 - 1, 2**32 - 1),
        container_vector(1, 0, 1, [(b"", b""), (b"", b"x")], 0, 0),
        container_vector(0xFF01, 8, 3, raw(3, 5, 0, "private"), 8, 9),
        container_vector(0xFFFE, 0, 1, raw(1, 1, 1, "private"), 0, 0),
        container_vector(0x0003, 0, 1, raw(1, 1, 1, "unregistered"), 0, 0),
        container_vector(2, 0, 20, coded, 1, 1, raw=ones),
    ]


def malformed_containers():
    sections = [(octets(f"K {i}", 8), octets(f"V {i}", 8)) for i in range(2)]
    good = container(1, 0, 4, sections)
    table, data = good[20:52], good[52:]

    def patched(**fields):
        return header(**({"count": 2, "tokens": 4} | fields)) + table + data

    entry = lambda *lengths: struct.pack(f">{len(lengths)}Q", *lengths)
    cases = [
        ("empty", b""), ("one octet", good[:1]), ("nineteen octets", good[:19]), ("header alone", good[:20]),
        ("half a table", good[:36]), ("no data", good[:52]), ("one octet short", good[:-1]),
        ("one trailing octet", good + b"\0"), ("twice", good + good),
        ("magic KVB0", patched(magic=b"KVB0")), ("magic kvb1", patched(magic=b"kvb1")),
        ("magic byte-swapped", patched(magic=b"1BVK")),
        ("version 0", patched(version=0)), ("version 2", patched(version=2)), ("version 255", patched(version=255)),
        ("flag 1", patched(flags=1)), ("flag 128", patched(flags=128)),
        ("layer count 0", patched(count=0)), ("layer count 0 and nothing else", header(count=0)),
        ("layer count one too many", patched(count=3)), ("layer count one too few", patched(count=1)),
        ("layer count 2^32-1", patched(count=2**32 - 1)),
        ("token count 0", patched(tokens=0)),
        ("first layer + count wraps", patched(first=2**32 - 1)),
        ("K length one too many", header(count=2, tokens=4) + entry(9, 8, 8, 8) + data),
        ("V length one too few", header(count=2, tokens=4) + entry(8, 7, 8, 8) + data),
        ("K length 2^64-1", header(count=2, tokens=4) + entry(2**64 - 1, 8, 8, 8) + data),
        ("lengths wrap to the right sum", header(count=2, tokens=4) + entry(2**64 - 8, 24, 8, 8) + data),
        ("lengths wrap to zero", header(count=2, tokens=4) + entry(2**63, 2**63, 0, 0)),
        ("lengths 2^63", header(count=2, tokens=4) + entry(2**63, 0, 0, 0) + data),
        ("little-endian table", header(count=2, tokens=4) + struct.pack("<4Q", 8, 8, 8, 8) + data),
        ("codec 0, one octet short", patched(codec=0)[:-1]),
        ("codec 65535, version 2", patched(codec=65535, version=2)),
    ]
    unsupported = [("codec 0", patched(codec=0)), ("codec 65535", patched(codec=65535))]
    return [{"why": why, "hex": octets.hex()} for why, octets in cases], [
        {"why": why, "hex": octets.hex()} for why, octets in unsupported
    ]


def split_sections():
    ones = b"\x80\x3f" * 30
    mixed = octets("mixed", 60)
    high, low = rotated(mixed)
    frame = zstd_frame(high)
    empty_frame = zstd_frame(b"")
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    good = [
        ("stored, empty", stored(b""), b""),
        ("stored", stored(mixed), mixed),
        ("split, raw block", split(mixed), mixed),
        ("split, RLE block", split(ones, rle=True), ones),
        ("split, empty", section(empty_frame, b""), b""),
        ("signs and exponents", split(struct.pack("<6H", 0, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFFFF)),
         struct.pack("<6H", 0, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFFFF)),
    ]
    bad = [
        ("empty", b""), ("method 2", b"\2" + mixed), ("method 255", b"\xff"),
        ("stored, odd", stored(b"abc")), ("no length", b"\1\0\0\0"),
        ("length beyond the end", section(frame, low, len(frame) + len(low) + 1)),
        ("length 2^32-1", section(frame, low, 2**32 - 1)),
        ("length 0", section(frame, low, 0)), ("length in little-endian order", b"\1" + struct.pack("<I", len(frame)) + frame + low),
        ("no frame, no plane", section(b"", b"")), ("no frame", section(high, low)),
        ("no content size", section(zstd_frame(high, content_size=False), low)),
        ("content size one too many", section(zstd_frame(high, size=31), low)),
        ("content size of the block alone", section(zstd_frame(high[:-1], size=30), low)),
        ("low plane short", section(frame, low[:-1])), ("low plane long", section(frame, low + b"\0")),
        ("frame cut", section(frame[:-1], low)), ("octet after the frame", section(frame + b"\0", low)),
        ("two frames", section(zstd_frame(high[:15]) + zstd_frame(high[15:]), low)),
        ("an empty frame after", section(frame + empty_frame, low)),
        ("an empty frame before", section(empty_frame + frame, low)),
        ("a skippable frame before", section(skippable + frame, low)),
        ("a skippable frame after", section(frame + skippable, low)),
        ("a skippable frame alone", section(skippable, b"")),
        ("RLE beyond the plane", section(zstd_frame(b"\0" * 31, rle=True, size=30), low)),
    ]
    return [{"why": why, "section_hex": data.hex(), "raw_hex": raw.hex()} for why, data, raw in good] + [
        {"why": why, "section_hex": data.hex()} for why, data in bad
    ]


# --- profile sections 1 and 2 -----------------------------------------------------------------


def json_texts():
    nested = lambda n: "[" * n + "]" * n
    accepted = [
        ("null", "null"), (" [ ] ", "[]"), ('{"a":{"a":{"a":1}}}', '{"a":{"a":{"a":1}}}'), ("-0", "0"), ("-0.0", "0"), ("32.0", "32"),
        ("3.2e1", "32"), ("9007199254740991", "9007199254740991"), ("-9007199254740991", "-9007199254740991"),
        ("1e21", "1e+21"), ("1E-7", "1e-7"), ("100000000000000000000.0", "100000000000000000000"), ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"), ("1e-400", "0"), ("0.1", "0.1"), ("333333333.33333329", "333333333.3333333"),
        (nested(32), nested(32)), ('"\\ud83d\\ude00"', '"\U0001f600"'), ('"\\/\\u0041\\u000A"', '"/A\\n"'), ('"\ufffd"', '"\ufffd"'),
        ('{"b":1,"a":2,"B":3}', '{"B":3,"a":2,"b":1}'), ('"\\u0000"', '"\\u0000"'), ('"\x7f\x80"', '"\x7f\x80"'),
    ]
    refused = [
        "", " ", "{", "[1,]", "[1 2]", '{"a":1,}', "{a:1}", "'a'", "[1]]", "1 2", "01", "-", "+1", ".5", "1.", "1e", "0x1", "NaN", "Infinity",
        "tru", '"', '"\\x"', '"\\u12"', '"\t"', '"\0"', "\u00a01", "/**/1", "//\n1", "\ufeff1", "\ufeff{}",
        '{"a":1,"a":1}', '{"a":1,"\\u0061":1}', '{"":1,"":1}', '{"\U0001f600":1,"\\ud83d\\ude00":1}', '[{"x":{"a":1,"b":2,"a":3}}]',
        "9007199254740992", "-9007199254740992", "10000000000000000", "1" * 400, "1e309", "-1e400", "1" * 400 + ".0",
        nested(33), "[" * 10000, '{"a":' * 10000,
        '"\ufffe"', '"\uffff"', '"\ufdd0"', '"\ufdef"', '"\U0001fffe"', '"\U0010ffff"', '"\\uffff"', '"\\ufdd0"', '"\\ud83f\\udffe"', '{"\\ufffe":1}',
    ]
    raw = [b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xe2\x82"', "1".encode("utf-16")]
    lone = ['"\\ud800"', '"\\udc00"', '"\\ud800\\ud800"', '"\\ud800\\u0041"', '{"\\udfff":1}', '"\\udc00\\ud800"']
    return (
        [{"text_hex": text.encode().hex(), "verdict": "accepted", "jcs": want} for text, want in accepted]
        + [{"text_hex": text.encode().hex(), "verdict": "malformed"} for text in refused]
        + [{"text_hex": text.hex(), "verdict": "malformed"} for text in raw]
        + [{"text_hex": text.encode().hex(), "verdict": "lone-surrogate"} for text in lone]
    )


def refused_descriptors():
    upper = "sha-256:" + "AB" * 32
    missing = lambda name: {key: value for key, value in descriptor().items() if key != name}
    malformed = [missing(name) for name in descriptor()]
    malformed += [
        descriptor(layers="30"), descriptor(layers=None), descriptor(model=1), descriptor(kv_dtype=["bfloat16"]),
        descriptor(adapters=D1), descriptor(adapters=None), descriptor(adapters=[1]), descriptor(positional={}), [descriptor()], None, "x",
    ]
    invalid = [
        descriptor(adapters=[]), descriptor(adapters=["11" * 32]), descriptor(adapters=[D1, upper]), descriptor(model_digest=upper),
        descriptor(model_digest="11" * 32), descriptor(tokenizer_digest="sha-512:" + "11" * 32), descriptor(tokenizer_digest=D1 + "0"),
        descriptor(layers=0), descriptor(layers=-1), descriptor(layers=2**31), descriptor(layers=30.5), descriptor(kv_heads=0),
        descriptor(head_dim=2**32), descriptor(block_tokens=0), descriptor(block_tokens=2**31), descriptor(kv_dtype="auto"),
        descriptor(kv_dtype="fp8"), descriptor(kv_dtype="BFLOAT16"), descriptor(kv_dtype="bfloat16 "), descriptor(layout="kvsp-layout-2"),
        descriptor(layout=""), descriptor(layout="kvsp-mla-1"), descriptor(positional=""), descriptor(positional="rotary"),
        descriptor(positional="rope-dynamic"), descriptor(positional="rope;"), descriptor(kv_scales="sha-256:"),
        descriptor(model="\ud800"), descriptor(x=["\udc00"]), descriptor(**{"\ud800": 1}),
    ]
    texts = [(json.dumps(d), "malformed-json") for d in malformed] + [(json.dumps(d), "descriptor-invalid") for d in invalid]
    plain = json.dumps(descriptor())
    texts += [
        (plain[:-1] + ', "layers": 30}', "malformed-json"), (plain[:-1], "malformed-json"), (plain + "x", "malformed-json"),
        (plain.replace(": 30,", ": 9007199254740992,"), "malformed-json"), (plain.replace(": 30,", ": 030,"), "malformed-json"),
        (plain.replace("example/model", "\\uffff"), "malformed-json"), (plain.replace(": 30,", ": 1e99,"), "descriptor-invalid"),
    ]
    return [{"text": text, "problem": "kvsp-" + problem} for text, problem in texts]


def positionals():
    good = [
        "none", "learned", "alibi", "rope", "rope-linear", "rope-yarn", "rope-llama3", "mrope", "rope;theta=500000", "rope;theta=1e+21",
        "rope;theta=1e-7", "rope;theta=0.000001", "rope-linear;factor=0.5", "rope-dynamic;regime=short", "rope-longrope;factor=2;regime=long",
        "rope-yarn;beta_fast=32;beta_slow=1;factor=4;original_max_position_embeddings=32768", "mrope;section=16,24,24",
    ]
    bad = [
        "", "Rope", " rope", "rope ", "rope,", "rope2", "rope;", ";", "rope;;a=1", "rope;a", "rope;a=", "rope;=1", "rope; a=1", "rope;a= 1",
        "rope;a=1;", "rope;a=1 ", "rope;b=1;a=1", "rope;a=1;a=1", "rope;a=1;a=2", "rope;a=4.0", "rope;a=04", "rope;a=+4", "rope;a=-0", "rope;a=.5",
        "rope;a=5.", "rope;a=1e3", "rope;a=1e21", "rope;a=1E+21", "rope;a=0.0000001", "rope;a=1e999", "rope-dynamic", "rope-longrope;factor=2",
        "rope-dynamic;regime=", "rope;a=\u0663",
    ]
    return [{"positional": text, "valid": True} for text in good] + [{"positional": text, "valid": False} for text in bad]


def main():
    malformed, unsupported = malformed_containers()
    write("compat_id.json", compat_ids())
    write("compat_id_spellings.json", spellings())
    write("descriptor_refused.json", refused_descriptors())
    write("positional.json", positionals())
    write("scope_id.json", scope_ids())
    write("block_keys.json", block_key_chains())
    write("container.json", containers())
    write("container_malformed.json", malformed)
    write("container_unsupported_codec.json", unsupported)
    write("split_zstd.json", split_sections())
    write("json.json", json_texts())


if __name__ == "__main__":
    main()
