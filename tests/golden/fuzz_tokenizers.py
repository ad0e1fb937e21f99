#!/usr/bin/env python3
"""Compares our tokenizer with the reference library on many random texts: ids, and byte spans mapped as
make_tokenizers.spans does. Not part of `make test`; run by hand from the root of the tree:

    python tests/golden/fuzz_tokenizers.py [--texts N] [--seed S] [--smollm2 FILE.gguf] [NAME...]

Needs the package `tokenizers` (and `gguf` for --smollm2), a C compiler and the libraries of the build; compiles the
tokenizer into build/fuzz/tokenizer.so. NAME: a vocabulary in tests/golden/tokenizers, default all. Where the texts come from:
assigned characters (of Python's Unicode), in mixtures from plain to wild. The library's NFC has older tables (it leaves U+11935
U+11930 apart and does not know the classes of some marks of Unicode 10 and later): a text on which it differs from Python's NFC is
left out and counted."""

import argparse
import ctypes
import glob
import json
import os
import random
import subprocess
import sys
import unicodedata

from tokenizers import Tokenizer

sys.path.insert(0, "tests/golden")
import make_tokenizers as reference  # noqa: E402
from tokenizer_corpus import HARD, TRAIN  # noqa: E402


class Token(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("special", ctypes.c_bool), ("begin", ctypes.c_int64), ("end", ctypes.c_int64)]


class TokenList(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(Token)), ("n", ctypes.c_int64), ("capacity", ctypes.c_int64), ("arena", ctypes.c_void_p)]


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 1024)]


def build():
    os.makedirs("build/fuzz", exist_ok=True)
    sources = [f for f in glob.glob("base/*.c") + glob.glob("kernels/*.c") + glob.glob("probe/*.c") if "cmd_" not in f]
    flags = subprocess.run("pkg-config --cflags --libs hdf5 gsl lapacke openblas libpcre2-8 jansson libutf8proc libcrypto",
                           shell=True, capture_output=True, text=True, check=True).stdout.split()
    subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE", "-DAG_HAVE_CUDA=0", "-I.", "-O2", "-march=native", "-fopenmp", "-fPIC", "-shared",
                    "-o", "build/fuzz/tokenizer.so", *sources, *flags, "-lhdf5_hl", "-lm"], check=True)
    library = ctypes.CDLL("./build/fuzz/tokenizer.so", mode=os.RTLD_LAZY)
    library.tokenizer_encode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_bool,
                                         ctypes.c_void_p, ctypes.c_void_p]
    return library


class Ours:
    def __init__(self, library, path):
        self.library, self.list, self.handle = library, TokenList(), ctypes.c_void_p()
        error = Error()
        if library.tokenizer_open_path(ctypes.byref(self.handle), path.encode(), ctypes.byref(error)) != 0:
            raise SystemExit(error.text.decode())

    def encode(self, text):
        """[(id, begin, end)], or None when a byte has no token."""
        error, blob = Error(), text.encode()
        self.list.n = 0
        if self.library.tokenizer_encode(ctypes.byref(self.list), self.handle, blob, len(blob), True, None, ctypes.byref(error)) != 0:
            if b"no token for the byte" in error.text:
                return None
            raise SystemExit(error.text.decode())
        return [(t.id, t.begin, t.end) for t in self.list.data[: self.list.n]]


def make_texts(rng, count, special):
    assigned = [cp for cp in range(0x110000) if unicodedata.category(chr(cp)) not in ("Cn", "Cs")]
    by_category = {}
    for cp in assigned:
        by_category.setdefault(unicodedata.category(chr(cp)), []).append(cp)
    kinds = sorted(by_category)
    blanks = "         \n\n\r\t\u000b\u0085\u00a0\u2003\u2028\u3000"
    words = sorted({w for t in TRAIN for w in t.split(" ")})
    marks = by_category["Mn"]
    composed = [cp for cp in assigned if unicodedata.decomposition(chr(cp)) and unicodedata.decomposition(chr(cp))[0] != "<"]
    for _ in range(count):
        style = rng.randrange(8)
        parts = []
        for _ in range(rng.randrange(1, 24)):
            if style == 0:  # anything
                parts.append(chr(rng.choice(assigned)))
            elif style == 1:  # every category alike
                parts.append(chr(rng.choice(by_category[rng.choice(kinds)])))
            elif style == 2:  # words and blanks
                parts.append(rng.choice(words) + rng.choice([" ", " ", "  ", "\n", " \n", "\t", ""]))
            elif style == 3:  # the characters that the patterns name
                parts.append(rng.choice("aZéſ'’sStTrReEvVmMlLdD09٣Ⅷ½ \n\r\t.,(-_" + blanks))
            elif style == 4:  # pieces of the corpus
                t = rng.choice(HARD)
                a = rng.randrange(len(t) + 1)
                parts.append(t[a : a + rng.randrange(1, 12)])
            elif style == 5:  # normalisation: letters, marks, composed characters and their parts
                parts.append(chr(rng.choice(rng.choice([marks, composed, [0x61, 0x65, 0x6F, 0x41, 0x20, 0x0], by_category["Mc"]]))))
                if rng.random() < 0.5:
                    parts.append(unicodedata.normalize("NFD", chr(rng.choice(composed))))
                if rng.random() < 0.2:
                    parts.append(chr(rng.choice([0x1100, 0x1112, 0x1161, 0x1175, 0x11A8, 0x11C2, 0xAC00, 0xAC01, 0xD7A3, 0x11A7, 0x1113])))
            elif style == 6:  # special strings inside text
                parts.append(rng.choice([rng.choice(special), rng.choice(special)[:-1], rng.choice(words), rng.choice(blanks), chr(rng.choice(assigned))]))
            else:  # long runs
                parts.append(rng.choice(["a", "the", " ", "\n", "1", "!", "é", "e\u0301", "한", "'s"]) * rng.choice([1, 2, 3, 5, 80]))
        yield "".join(parts)[:3000]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smollm2")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    library = build()
    cases = []
    for name in options.names or ["gpt2", "smollm", "qwen2", "llama", "qwen35", "flags"]:
        path = reference.FOLDER + name + ".json"
        cases.append((name, path, Tokenizer.from_file(path)))
    if options.smollm2:
        cases.append(("smollm2", options.smollm2, reference.smollm2(options.smollm2)))
    for name, path, tok in cases:
        state = json.loads(tok.to_str())
        ours, rng = Ours(library, path), random.Random(options.seed)
        vocabulary = tok.get_vocab()
        missing = {b for c, b in reference.UNMAP.items() if c not in vocabulary}
        special = [t["content"] for t in state["added_tokens"]]
        compared = refused = tokens = older = 0
        for text in make_texts(rng, options.texts, special):
            got = ours.encode(text)
            if got is None and missing & set(text.encode()):
                refused += 1
                continue
            if tok.normalizer is not None and tok.normalizer.normalize_str(text) != unicodedata.normalize("NFC", text):
                older += 1
                continue
            ids, where = reference.expected_of(tok, state, text)
            expected = [(i, a, b) for i, (a, b) in zip(ids, where)]
            if got != expected:
                print(name, "DIFFERS on", ascii(text), "\nours     ", got, "\nreference", expected)
                raise SystemExit(1)
            compared += 1
            tokens += len(ids)
        print(f"{name}: {compared} texts, {tokens} tokens equal; {refused} refused for a byte without token, {older} left out", flush=True)


if __name__ == "__main__":
    main()
