"""Chat templates by name, for models that bring none: `--chat-template chatml`."""

from __future__ import annotations

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

LLAMA_3 = """\
{{- bos_token | default('<|begin_of_text|>') -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif -%}
"""

# There is no system role: the system message's text comes before the first user message.
MISTRAL = """\
{{- bos_token | default('<s>') -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = ns.system + message.content + '\\n\\n' -%}
{%- elif message.role == 'user' -%}
{{ '[INST] ' + ns.system + message.content + '[/INST]' }}
{%- set ns.system = '' -%}
{%- elif message.role == 'assistant' -%}
{{ ' ' + message.content | trim + (eos_token | default('</s>')) }}
{%- else -%}
{{ raise_exception('This template has the roles system, user and assistant only, got ' + message.role + '.') }}
{%- endif -%}
{%- endfor -%}
"""

# Like Mistral's, with marks around the system message's text, and BOS before each turn of the user.
LLAMA_2 = """\
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = '<<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n' -%}
{%- elif message.role == 'user' -%}
{{ (bos_token | default('<s>')) + '[INST] ' + (ns.system + message.content) | trim + ' [/INST]' }}
{%- set ns.system = '' -%}
{%- elif message.role == 'assistant' -%}
{{ ' ' + message.content | trim + ' ' + (eos_token | default('</s>')) }}
{%- else -%}
{{ raise_exception('This template has the roles system, user and assistant only, got ' + message.role + '.') }}
{%- endif -%}
{%- endfor -%}
"""

LLAMA_4 = """\
{{- bos_token | default('<|begin_of_text|>') -}}
{%- for message in messages -%}
{{ '<|header_start|>' + message.role + '<|header_end|>\\n\\n' + message.content | trim + '<|eot|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|header_start|>assistant<|header_end|>\\n\\n' }}{%- endif -%}
"""

INTERNLM2_CHAT = "{{- bos_token | default('<s>') -}}\n" + CHATML

# The assistant is called model, and what the system says comes before the first user message.
GEMMA_IT = """\
{{- bos_token | default('<bos>') -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = ns.system + message.content | trim + '\\n\\n' -%}
{%- elif message.role == 'user' -%}
{{ '<start_of_turn>user\\n' + ns.system + message.content | trim + '<end_of_turn>\\n' }}
{%- set ns.system = '' -%}
{%- elif message.role == 'assistant' -%}
{{ '<start_of_turn>model\\n' + message.content | trim + '<end_of_turn>\\n' }}
{%- else -%}
{{ raise_exception('This template has the roles system, user and assistant only, got ' + message.role + '.') }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

BUILTIN_TEMPLATES: dict[str, str] = {
    "chatml": CHATML,
    "gemma-it": GEMMA_IT,
    "internlm2-chat": INTERNLM2_CHAT,
    "llama-2": LLAMA_2,
    "llama-3": LLAMA_3,
    "llama-4": LLAMA_4,
    "mistral": MISTRAL,
}
