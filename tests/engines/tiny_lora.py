# SPDX-License-Identifier: Apache-2.0
"""A LoRA adapter for the toy model of tiny_hf.py, made with the Python of the engine's environment."""
import json
import pathlib
import subprocess

RANK = 4
MAKER = """
import json, sys, torch
from safetensors.torch import save_file
folder, rank, width, layers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
chance = torch.Generator().manual_seed(3)
tensors = {}
for layer in range(layers):
    name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
    tensors[name + ".lora_A.weight"] = (torch.randn(rank, width, generator=chance) * 0.05).to(torch.bfloat16)
    tensors[name + ".lora_B.weight"] = (torch.randn(width, rank, generator=chance) * 0.05).to(torch.bfloat16)
save_file(tensors, folder + "/adapter_model.safetensors")
"""


def make(root):
    """The adapter's folder; made when it is not there."""
    root = pathlib.Path(root)
    folder = root / "adapter"
    if (folder / "adapter_model.safetensors").exists():
        return str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model = json.loads((root / "tiny" / "config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(root / "tiny"), "r": RANK,
        "lora_alpha": RANK, "lora_dropout": 0.0, "bias": "none", "target_modules": ["q_proj"], "inference_mode": True}))
    subprocess.run([str(root / "env/bin/python"), "-c", MAKER, str(folder), str(RANK), str(model["hidden_size"]),
                    str(model["num_hidden_layers"])], check=True, stdin=subprocess.DEVNULL)
    return str(folder)
