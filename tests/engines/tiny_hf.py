#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a toy language model in Hugging Face's layout, for vLLM and SGLang: tiny_hf.py FOLDER

The counterpart of tests/real/tiny_gguf.py: Llama architecture, random weights, a token per byte, a chat template with
tools. Run it with the Python of the engine's own environment (torch, safetensors, tokenizers, transformers).
"""
import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import safetensors.torch  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

WIDTH, LAYERS, HEAD, KEY_HEADS, CONTEXT = 512, 6, 64, 2, 32768
HIDDEN = 1408
END, TURN, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

TEMPLATE = (
    "{%- if tools -%}" + TURN + "tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}" + STOP + "\n{% endif -%}"
    "{%- for m in messages -%}" + TURN + "{{ m.role }}\n{{ m.content or '' }}"
    "{%- for c in m.tool_calls or [] -%}<tool_call>{{ (c.function or c) | tojson }}</tool_call>{%- endfor -%}"
    + STOP + "\n{% endfor -%}"
    "{%- if add_generation_prompt -%}" + TURN + "assistant\n{% endif -%}")


def save_tokenizer(folder):
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: n for n, c in enumerate(letters)}, merges=[]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    core.add_special_tokens([END, TURN, STOP])
    core.add_tokens([tokenizers.AddedToken(mark, normalized=False) for mark in ("<tool_call>", "</tool_call>")])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=STOP, pad_token=END, model_max_length=CONTEXT, chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False).save_pretrained(folder)
    return core.get_vocab_size(), core.token_to_id(END), core.token_to_id(STOP)


def weights(vocab):
    chance = torch.Generator().manual_seed(20)

    def random(rows, columns, scale=None):
        values = torch.randn(rows, columns, generator=chance) * (scale or columns ** -0.5)
        return values.to(torch.bfloat16)

    def ones():
        return torch.ones(WIDTH, dtype=torch.bfloat16)

    keys = KEY_HEADS * HEAD
    tensors = {"model.embed_tokens.weight": random(vocab, WIDTH, 1.0), "model.norm.weight": ones(),
               "lm_head.weight": random(vocab, WIDTH)}
    for number in range(LAYERS):
        layer = f"model.layers.{number}."
        for name, rows, columns in [("self_attn.q_proj", WIDTH, WIDTH), ("self_attn.k_proj", keys, WIDTH),
                                    ("self_attn.v_proj", keys, WIDTH), ("self_attn.o_proj", WIDTH, WIDTH),
                                    ("mlp.gate_proj", HIDDEN, WIDTH), ("mlp.up_proj", HIDDEN, WIDTH),
                                    ("mlp.down_proj", WIDTH, HIDDEN)]:
            tensors[layer + name + ".weight"] = random(rows, columns)
        tensors[layer + "input_layernorm.weight"] = ones()
        tensors[layer + "post_attention_layernorm.weight"] = ones()
    return tensors


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    vocab, begin, stop = save_tokenizer(folder)
    marks = {"bos_token_id": begin, "eos_token_id": stop}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "vocab_size": vocab,
              "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "intermediate_size": HIDDEN, "head_dim": HEAD,
              "num_attention_heads": WIDTH // HEAD, "num_key_value_heads": KEY_HEADS, "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": CONTEXT,
              "tie_word_embeddings": False, **marks}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, **marks}))
    safetensors.torch.save_file(weights(vocab), folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
