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

# There is no system role: what the system says stands before the first user message.
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

BUILTIN_TEMPLATES: dict[str, str] = {"chatml": CHATML, "llama-3": LLAMA_3, "mistral": MISTRAL}
