#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a toy language model for llama.cpp: tiny_gguf.py OUT [--layers N] [--width N] [--seed N]

Llama architecture, random weights, and a vocabulary of the 256 bytes plus the marks of a chat, so that a prompt has as
many tokens as bytes. What it says is noise. What a router needs of it is real: work per uncached token, a chat template,
a tokenizer, a cache. Standard library only; equal arguments give equal files.
"""
import argparse
import array
import random
import struct

# Value types of GGUF metadata
UINT32, INT32, FLOAT32, TEXT, LIST = 4, 5, 6, 8, 9
ALIGNMENT = 32
HEAD_WIDTH = 64
CONTEXT = 32768

TEMPLATE = ("{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor -%}"
            "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}")


def vocabulary():
    """Byte-level BPE writes each byte as a printable character: itself where it is one, else one from U+0100 on."""
    visible = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    names, next_spare = [], 256
    for byte in range(256):
        if byte in visible:
            names.append(chr(byte))
        else:
            names.append(chr(next_spare))
            next_spare += 1
    pair = names[1] + names[2]      # the format wants at least one merge: one of two control characters never occurs
    return names + ["<|endoftext|>", "<|im_start|>", "<|im_end|>", pair], names[1] + " " + names[2]


class Gguf:
    def __init__(self):
        self.entries = []
        self.tensors = []       # (name, shape innermost first, bytes)

    @staticmethod
    def text(value):
        data = value.encode()
        return struct.pack("<Q", len(data)) + data

    def put(self, key, value, kind=None):
        def encode(item, item_kind):
            if item_kind == TEXT:
                return self.text(item)
            return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f"}[item_kind], item)
        if isinstance(value, list):
            body = struct.pack("<IQ", kind, len(value)) + b"".join(encode(item, kind) for item in value)
            kind = LIST
        else:
            kind = kind or {str: TEXT, int: UINT32, float: FLOAT32}[type(value)]
            body = encode(value, kind)
        self.entries.append(self.text(key) + struct.pack("<I", kind) + body)

    def write(self, path):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.entries)) + b"".join(self.entries)
        offset = 0
        for name, shape, data in self.tensors:
            head += self.text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
            offset += -(-len(data) // ALIGNMENT) * ALIGNMENT
        with open(path, "wb") as out:
            out.write(head + bytes(-len(head) % ALIGNMENT))
            for _, _, data in self.tensors:
                out.write(data + bytes(-len(data) % ALIGNMENT))


def build(layers, width, seed):
    rng = random.Random(seed)
    words, merge = vocabulary()
    hidden = width * 8 // 3 // 32 * 32
    model = Gguf()
    for key, value in {"general.architecture": "llama", "general.name": "kvroute tiny", "llama.block_count": layers,
                       "llama.context_length": CONTEXT, "llama.embedding_length": width, "llama.feed_forward_length": hidden,
                       "llama.attention.head_count": width // HEAD_WIDTH, "llama.attention.head_count_kv": width // HEAD_WIDTH,
                       "llama.rope.dimension_count": HEAD_WIDTH, "llama.attention.layer_norm_rms_epsilon": 1e-5,
                       "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "default", "tokenizer.chat_template": TEMPLATE,
                       "tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 258}.items():
        model.put(key, value)
    model.put("tokenizer.ggml.tokens", words, TEXT)
    model.put("tokenizer.ggml.token_type", [1] * 256 + [3, 3, 3, 1], INT32)     # normal, control
    model.put("tokenizer.ggml.merges", [merge], TEXT)

    def noise(rows, columns, spread):
        # Uniform is as good as normal here, and quick to make from raw random bytes.
        factor = spread * 3 ** 0.5 / 32768
        raw = array.array("h", rng.randbytes(2 * rows * columns))
        return array.array("f", [value * factor for value in raw]).tobytes()

    def matrix(name, inputs, outputs, spread=None):
        model.tensors.append((name + ".weight", (inputs, outputs), noise(outputs, inputs, spread or inputs ** -0.5)))

    def scale(name):
        model.tensors.append((name + ".weight", (width,), struct.pack("<f", 1.0) * width))

    matrix("token_embd", width, len(words), 1.0)
    for number in range(layers):
        block = f"blk.{number}."
        scale(block + "attn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(block + part, width, width)
        scale(block + "ffn_norm")
        matrix(block + "ffn_gate", width, hidden)
        matrix(block + "ffn_up", width, hidden)
        matrix(block + "ffn_down", hidden, width)
    scale("output_norm")
    matrix("output", width, len(words))
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=256, help=f"a multiple of {HEAD_WIDTH}")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    build(args.layers, args.width, args.seed).write(args.out)


if __name__ == "__main__":
    main()
