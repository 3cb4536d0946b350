# SPDX-License-Identifier: Apache-2.0
"""What is sent, as options of kvroute bench. Its words have four bytes: one token of kvroute mock, four of the toy models
of the real engines. So sizes are given for those, and the mock gets four times the words (and its own, faster, clock)."""

# groups, zipf, prefix, question, output (tokens of the toy models), turns, seconds between turns, requests of a measurement
CHAT = {"workload": "multi_turn", "groups": 6, "zipf": 0.0, "prefix": 1600, "question": 160, "output": 16, "turns": 4, "gap": 2.0,
        "requests": 160,
        "is": "conversations of four turns, six system prompts"}
LONG_CHAT = {**CHAT, "prefix": 2400, "question": 360, "output": 32, "turns": 5, "requests": 150,
             "is": "conversations of five turns, six system prompts, in caches of 32,000 tokens"}
GROUPS = {"workload": "shared_prefix", "groups": 12, "zipf": 1.0, "prefix": 1600, "question": 160, "output": 16, "turns": 1,
          "gap": 0.0, "requests": 160, "is": "one question each behind 12 prefixes, some popular (Zipf 1)"}
AGENTS = {"workload": "multi_turn", "groups": 3, "zipf": 0.0, "prefix": 800, "question": 240, "output": 24, "turns": 10,
          "gap": 0.6, "requests": 160, "is": "agents: ten steps each, 0.6 s apart, three tool prompts"}

WORKLOADS = {"chat": CHAT, "groups": GROUPS, "agents": AGENTS}
SPREAD = 0.3    # questions and answers vary in length by so much


def of(fleet, name):
    if name == "chat" and fleet in ("vllm", "sglang"):
        return LONG_CHAT
    return WORKLOADS[name]


def options(load, fleet):
    """Those of kvroute bench but for rate, requests and seed."""
    words = 1 if fleet == "mock" else 4
    return ["--workload", load["workload"], "--groups", load["groups"], "--zipf", load["zipf"],
            "--prefix-tokens", load["prefix"] // words, "--question-tokens", load["question"] // words,
            "--output-tokens", load["output"], "--turns", load["turns"], "--turn-gap", f"{load['gap']}s", "--spread", SPREAD]
