"""A question that needs a tool: the model calls it, we run it, the model answers.

make serve                        # in another terminal
.venv/bin/python examples/openai_tools.py
"""

import json

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:30000/v1", api_key="unused")
tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "The name of the city"}},
                "required": ["city"],
            },
        },
    }
]
messages = [{"role": "user", "content": "What is the weather in Paris?"}]

first = client.chat.completions.create(model="default", messages=messages, tools=tools, temperature=0)
message = first.choices[0].message
messages.append(message.model_dump())
for call in message.tool_calls or []:
    print(f"{call.function.name}({call.function.arguments})")
    weather = {"temperature": 21, "condition": "sunny"}
    messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(weather)})

answer = client.chat.completions.create(model="default", messages=messages, tools=tools, temperature=0)
print(answer.choices[0].message.content)
