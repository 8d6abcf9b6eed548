"""The runtime in process, without HTTP: a batch of prompts, then one as a stream.

.venv/bin/python examples/offline_engine.py
"""

from mysglang import Engine

PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = ["What is the capital of Japan?", "List three fruits.", "What is 12 + 30?"]

with Engine(log_level="warning") as engine:
    greedy = {"temperature": 0, "max_new_tokens": 128}
    answers = engine.generate(prompt=[PROMPT.format(question) for question in QUESTIONS], sampling_params=greedy)
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"{question} -> {answer['text']}")

    shown = ""
    for chunk in engine.generate(prompt=PROMPT.format("Count from 1 to 20."), sampling_params=greedy, stream=True):
        print(chunk["text"][len(shown) :], end="", flush=True)
        shown = chunk["text"]
    print()
