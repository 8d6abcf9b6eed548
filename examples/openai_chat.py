"""Chat with a running server through OpenAI's client: one answer whole, one as it comes.

make serve                        # in another terminal
.venv/bin/python examples/openai_chat.py
"""

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:30000/v1", api_key="unused")
messages = [{"role": "user", "content": "My name is Ada."}]

answer = client.chat.completions.create(model="default", messages=messages, temperature=0)
print(answer.choices[0].message.content)

messages += [
    {"role": "assistant", "content": answer.choices[0].message.content},
    {"role": "user", "content": "What is my name?"},
]
for chunk in client.chat.completions.create(model="default", messages=messages, temperature=0, stream=True):
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
print()
