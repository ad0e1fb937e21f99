#!/usr/bin/env python3
"""Makes tests/golden/tokenizers/: tiny vocabularies for every pattern, and what the reference library makes of the corpus.

Run from the root of the tree with a Python that has the package `tokenizers` (made with 0.23.3, Python 3.11):
    python tests/golden/make_tokenizers.py [SMOLLM2.gguf]
With the GGUF (needs the package `gguf`) the golden ids of SmolLM2's own vocabulary are made as well.

NAME.json          compact tokenizer.json
expected.json      texts: the corpus; NAME: for each text [ids, byte lengths of the tokens' spans]
random.json        pool: code points (assigned in Unicode 14); texts are drawn from it by the generator written down in
                   random_texts, which tests/test_tokenizer.c repeats; NAME: a hash for each text over ids and spans
pieces.json        NAME: [byte ends of the pre-tokens of each text of the corpus], [a hash for each random text]: what the
                   patterns split where no merge would show it
smollm2.json       the same for SmolLM2's vocabulary, which lacks some bytes: null where the library drops one (we refuse)

Byte spans: the library reports code points and gives tokens that split a character equal, overlapping spans. Ours are
bytes that add up (spec/tokenizer.md section 10); spans() computes them and checks them against the library's."""

import json
import random
import sys
import unicodedata
from bisect import bisect_right

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, "tests/golden")
from tokenizer_corpus import HARD, TRAIN  # noqa: E402

FOLDER = "tests/golden/tokenizers/"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r" ?[^\s\p{L}\p{N}]", r" ?[^\s\p{L}\p{M}\p{N}]")
P = pre_tokenizers


def pre_tokenizer(name):
    if name in ("gpt2", "flags"):
        return P.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        return P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])
    regex = {"qwen2": QWEN2, "llama": LLAMA3, "qwen35": QWEN35}[name]
    return P.Sequence([P.Split(Regex(regex), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)])


SPECIALS = {
    "gpt2": ["<|endoftext|>"],
    "smollm": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "llama": ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"],
    "qwen35": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "flags": ["<|endoftext|>"],
}
FLAGS = [  # exotic added tokens, in a vocabulary of their own
    AddedToken("<mask>", lstrip=True, special=True, normalized=False),
    AddedToken("<pad>", rstrip=True, special=True, normalized=False),
    AddedToken("<both>", lstrip=True, rstrip=True, special=False, normalized=False),
    AddedToken("word", single_word=True, special=False, normalized=True),
    AddedToken("cafe\u0301", special=False, normalized=True),
    AddedToken("<|end", special=False, normalized=False),
    AddedToken("weather", single_word=True, special=False, normalized=False),
    AddedToken("été", special=False, normalized=True),
    AddedToken("\u0301", special=False, normalized=True),
]
FLAG_TEXTS = [
    "a <mask> b  <mask>  c", "\n <mask>\n", "<mask><mask> <mask>", "a <pad> b<pad>  \n c", "<pad> <pad>x", "x <both> y  <both>  <both> z",
    "word words aword word. a word, word", "word_ 1word word1 wordé éword \u0301word word\u0301 -word- ①word Ⓐword Ⅻword",
    "word\u200dword \u200cword ‿word word‿ word\u00a0word\u2028word",
    "cafe\u0301 café caf e\u0301 cafe\u0301s e\u0301te\u0301 été étés", "<|end <|endo <|endoftext|> <|endoftex", "weather weathers the weather, _weather",
    "e\u0301 \u0301 x\u0301 1\u0301", "<pad>\u00a0\u3000x<mask>", "<both>", " <both>", "<both> ", "",
]


def train(name):
    tok = Tokenizer(models.BPE(ignore_merges=name == "llama"))
    tok.normalizer = normalizers.NFC() if name in ("qwen2", "qwen35", "flags") else None
    tok.pre_tokenizer = pre_tokenizer(name)
    tok.decoder = decoders.ByteLevel()
    size = {"flags": 300, "gpt2": 760, "smollm": 720}.get(name, 640)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=P.ByteLevel.alphabet(), special_tokens=[],
                                  show_progress=False)
    tok.train_from_iterator(TRAIN * 2, trainer)
    if name == "llama":  # words that only ignore_merges can reach
        state = json.loads(tok.to_str())
        for word in ["internationalization", "Ġlighthouse", "Ġkeepers", "ĠÑģÐº"]:
            if word not in state["model"]["vocab"]:
                state["model"]["vocab"][word] = len(state["model"]["vocab"])
        tok = Tokenizer.from_str(json.dumps(state))
    if name == "flags":
        tok.add_tokens(FLAGS)
    if name in ("qwen2", "qwen35", "smollm"):
        tok.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS[name]])
    if name == "llama":
        bos = tok.token_to_id("<|begin_of_text|>")
        tok.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])])
    elif name.startswith("qwen"):
        tok.post_processor = processors.ByteLevel(trim_offsets=False)
    state = json.loads(tok.to_str())
    if name in ("gpt2", "qwen2"):  # the older encoding of merges
        state["model"]["merges"] = [" ".join(m) for m in state["model"]["merges"]]
    return state


DIRECT = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
UNMAP = {chr(b): b for b in DIRECT}
UNMAP.update({chr(0x100 + i): b for i, b in enumerate(b for b in range(256) if b not in DIRECT)})


def joins(c):
    cp = ord(c)
    return cp >= 0x300 and (unicodedata.category(c)[0] == "M" or 0x1160 <= cp <= 0x11FF or 0xD7B0 <= cp <= 0xD7FF)


def boundaries(text, nfc):
    """For each byte position of the normalised text the byte position in the original; and the changed byte ranges."""
    if not nfc:
        return list(range(len(text.encode()) + 1)), []
    out, changed, at, i = [], [], 0, 0
    while i < len(text):
        j = i + 1
        while j < len(text) and joins(text[j]):
            j += 1
        old, new = text[i:j].encode(), unicodedata.normalize("NFC", text[i:j]).encode()
        if old == new:
            out += range(at, at + len(old))
        else:
            out += [at + k * len(old) // len(new) for k in range(len(new))]
            changed.append((at, at + len(old)))
        at += len(old)
        i = j
    return out + [at], changed


def drifts(text):
    """Whether canonical ordering moves a mark, or a character alone is not in NFC: then the library's offsets drift."""
    if any(unicodedata.normalize("NFC", c) != c for c in text):
        return True
    before = 0
    for c in "".join(unicodedata.normalize("NFD", c) for c in text):
        now = unicodedata.combining(c)
        if 0 < now < before:
            return True
        before = now
    return False


def spans(tok, state, text, encoding):
    """Half-open byte spans of the original, one for each token; checked against the library's offsets."""
    starts = [0]
    for c in text:
        starts.append(starts[-1] + len(c.encode()))
    added = {t["id"]: t for t in state["added_tokens"]}
    nfc = state.get("normalizer") is not None
    names = {i: t for t, i in tok.get_vocab().items()}
    special_mask = encoding.special_tokens_mask
    out, n = [], len(encoding.ids)
    k = 0
    while k < n:
        i = encoding.ids[k]
        if special_mask[k] and encoding.offsets[k] == (0, 0) and (out == [] or out[-1] == (0, 0)):
            out.append((0, 0))  # BOS of the template
            k += 1
            continue
        if i in added and not added[i]["normalized"]:
            a, b = encoding.offsets[k]
            out.append((starts[a], starts[b]))
            k += 1
            continue
        # the stretch up to the next added token that is matched in the raw text
        j = k
        while j < n and not (encoding.ids[j] in added and not added[encoding.ids[j]]["normalized"]):
            j += 1
        begin = out[-1][1] if out else 0
        end = starts[encoding.offsets[j][0]] if j < n else starts[-1]
        piece = text.encode()[begin:end].decode()
        back, changed = boundaries(piece, nfc)
        at = 0
        for m in range(k, j):
            i = encoding.ids[m]
            if i in added:
                content = unicodedata.normalize("NFC", added[i]["content"]) if nfc else added[i]["content"]
                length = len(content.encode())
            else:
                length = len(names[i])
            b0, b1 = begin + back[at], begin + back[at + length]
            out.append((b0, b1))
            at += length
            if b0 == b1 or any(b0 < begin + y and b1 > begin + x for x, y in changed) or (nfc and drifts(piece)):
                continue  # the library reports only the first of the characters that were composed, and drifts near marks
                # that change places (its "b" of x U+0315 U+0300 U+05AE b is two characters, one too late)
            first, last = bisect_right(starts, b0) - 1, bisect_right(starts, b1 - 1)
            assert encoding.offsets[m] == (first, last), (text, m, encoding.offsets[m], (first, last), encoding.tokens)
        assert at == len(back) - 1, (text, encoding.tokens)
        k = j
    for (_, b), (c, _) in zip(out, out[1:]):
        assert b == c, (text, out)
    assert not out or (out[0][0] == 0 and out[-1][1] == starts[-1]), (text, out)
    return out


def piece_ends(name, text):
    """Byte ends of the reference's pre-tokens."""
    pieces = pre_tokenizer(name).pre_tokenize_str(text)
    return [len(text[:b].encode()) for _, (_, b) in pieces]


def lcg(state):
    return (state * 6364136223846793005 + 1442695040888963407) % 2**64


def make_pool():
    rng = random.Random(20261129)
    by_category = {}
    for cp in range(0x110000):
        category = unicodedata.category(chr(cp))
        if category not in ("Cn", "Cs"):
            by_category.setdefault(category, []).append(cp)
    pool = []
    for category in sorted(by_category):
        pool += sorted(rng.sample(by_category[category], min(12, len(by_category[category]))))
    pool += [ord(c) for c in "aetsdmlrvESTDMLRV0123456789 \n\r\t'.,!(-_"] * 4
    pool += [ord(c) for c in "  \n   '''"] * 8
    pool += [0x301, 0x302, 0x323, 0x65, 0x1100, 0x1161, 0x11A8, 0xAC00, 0x17F, 0x85, 0xA0, 0x2028, 0x3000, 0x200D, 0x1F600] * 2
    return pool


def random_texts(pool, count=300):
    """Text k: a generator seeded with k + 1; length 1 to 40; each character pool[(state >> 33) % len(pool)]."""
    texts = []
    for k in range(count):
        state = lcg(k + 1)
        length = 1 + (state >> 33) % 40
        out = []
        for _ in range(length):
            state = lcg(state)
            out.append(chr(pool[(state >> 33) % len(pool)]))
        texts.append("".join(out))
    return texts


def digest(ids, ends):
    """FNV-1a over the 64-bit words id, end of each token, little-endian."""
    h = 0xCBF29CE484222325
    for i, e in zip(ids, ends):
        for byte in int(i).to_bytes(8, "little") + int(e).to_bytes(8, "little"):
            h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def expected_of(tok, state, text):
    """Ids and spans with our one departure: a text that already starts with BOS gets no second one."""
    encoding = tok.encode(text)
    ids, where = list(encoding.ids), spans(tok, state, text, encoding)
    bos = tok.token_to_id("<|begin_of_text|>")
    if bos is not None and ids[:2] == [bos, bos] and where[1][1] > 0:
        ids, where = ids[1:], where[1:]
    return ids, where


def smollm2(path):
    """The reference for SmolLM2 as spec/tokenizer.md section 11 says: its pipeline over the GGUF's vocabulary and merges."""
    import gguf

    fields = gguf.GGUFReader(path).fields

    def strings(key):
        field = fields["tokenizer.ggml." + key]
        return [bytes(field.parts[i]).decode() for i in field.data]

    tokens, merges = strings("tokens"), [tuple(m.split(" ")) for m in strings("merges")]
    types = fields["tokenizer.ggml.token_type"]
    types = [int(types.parts[i][0]) for i in types.data]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tok.pre_tokenizer = pre_tokenizer("smollm")
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, y in zip(tokens, types) if y == 3])
    return tok


def main():
    pool = make_pool()
    texts = random_texts(pool)
    expected, hashes = {"texts": HARD, "flag_texts": FLAG_TEXTS}, {"pool": pool, "count": len(texts)}
    for name in ("gpt2", "smollm", "qwen2", "llama", "qwen35", "flags"):
        state = train(name)
        blob = json.dumps(state, ensure_ascii=False, separators=(",", ":"))
        open(FOLDER + name + ".json", "w").write(blob + "\n")
        tok = Tokenizer.from_str(blob)
        expected[name] = []
        for text in FLAG_TEXTS if name == "flags" else HARD:
            ids, where = expected_of(tok, state, text)
            expected[name].append([ids, [b - a for a, b in where]])
        hashes[name] = []
        for text in texts:
            ids, where = expected_of(tok, state, text)
            hashes[name].append(digest(ids, [b for _, b in where]))
        print(name, tok.get_vocab_size(), "tokens,", sum(len(e[0]) for e in expected[name]), "in the corpus")
    names = ("gpt2", "smollm", "qwen2", "llama", "qwen35")
    write("pieces.json", {n: [[piece_ends(n, t) for t in HARD], [digest([0] * len(e), e) for e in (piece_ends(n, t) for t in texts)]]
                          for n in names})
    write("expected.json", expected)
    write("random.json", hashes)
    if len(sys.argv) > 1:
        tok = smollm2(sys.argv[1])
        state = json.loads(tok.to_str())
        assert tok.encode("Hello, we can use").ids == [19556, 28, 392, 416, 722]
        assert tok.encode("The capital of France is").ids == [504, 3575, 282, 4649, 314]
        assert tok.encode("  multiple   spaces").ids == [216, 2701, 256, 5600]
        missing = {b for c, b in UNMAP.items() if c not in tok.get_vocab()}
        print("smollm2 has no token for the bytes", sorted(missing))
        corpus, hashed = [], []
        for text in HARD:
            if missing & set(text.encode()):
                corpus.append(None)
                continue
            ids, where = expected_of(tok, state, text)
            corpus.append([ids, [b - a for a, b in where]])
        for text in texts:
            if missing & set(text.encode()):
                hashed.append(None)
                continue
            ids, where = expected_of(tok, state, text)
            hashed.append(digest(ids, [b for _, b in where]))
        write("smollm2.json", {"corpus": corpus, "random": hashed})


def write(name, value):
    with open(FOLDER + name, "w") as f:
        json.dump(value, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
