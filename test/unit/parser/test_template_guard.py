"""A chat template has bounded time and memory: whatever it does is paid for before it is done."""

import json
import subprocess
import sys
import threading
from typing import Any

import jinja2
import pytest

from fixtures.hostile_templates import HOSTILE, LARGE
from mysglang.srt.errors import ConfigError, InvalidRequest
from mysglang.srt.parser import chat_template
from mysglang.srt.parser.chat_template import ChatTemplate, TooMuchTemplate
from mysglang.srt.parser.template_guard import NotQuick
from mysglang.srt.parser.template_manager import TemplateManager

MESSAGES = [{"role": "user", "content": "Hello"}]

# Renders each template under limits of the kernel, and says what it took.
CHILD = """
import json, resource, sys, time
from fixtures.hostile_templates import HOSTILE
from mysglang.srt.parser import chat_template
from mysglang.srt.parser.chat_template import ChatTemplate, TooMuchTemplate
chat_template.MAX_UNITS //= 10
room = 4 << 30
resource.setrlimit(resource.RLIMIT_AS, (room, room))
resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
for number, source in enumerate(HOSTILE):
    began = time.process_time()
    try:
        ChatTemplate(source).render({"messages": [{"role": "user", "content": "Hello"}]})
        how = "rendered"
    except TooMuchTemplate:
        how = "too much"
    except BaseException as error:
        how = repr(error)
    # Of this program alone: ru_maxrss counts what the process was before it began this program.
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM:"))
    print(json.dumps([number, how, time.process_time() - began, peak]), flush=True)
"""


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source).render({"messages": MESSAGES, **variables})


@pytest.mark.promise(36, 49)
def test_hostile_templates_take_little_time_and_memory() -> None:
    # In a process of its own: a template that is not held would take the tests with it.
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, env={"PYTHONPATH": _path()})
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    assert len(lines) == len(HOSTILE), f"{HOSTILE[len(lines)][-90:]!r} ended the process: {child.stderr[-500:]}"
    for number, how, seconds, peak_mib in lines:
        assert how == "too much", (HOSTILE[number], how)
        assert seconds < 5, HOSTILE[number]  # a tenth of a second, and some templates end at once
        assert peak_mib < 400, HOSTILE[number]


@pytest.mark.promise(49)
@pytest.mark.parametrize("name", sorted(LARGE))
def test_what_is_too_large_is_not_compiled(name: str) -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        ChatTemplate(LARGE[name])


@pytest.mark.promise(49)
def test_a_hostile_template_of_the_model_is_one_line_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    manager = TemplateManager({"chat_template": HOSTILE[0]}, {})
    assert [record.message for record in caplog.records] == [
        "The model's chat template 'default' cannot be used: it takes too much time or memory for a message of two "
        "letters"
    ]
    with pytest.raises(InvalidRequest, match="--chat-template"):
        manager.render(MESSAGES)


def test_a_hostile_override_ends_the_start(tmp_path: Any) -> None:
    file = tmp_path / "hostile.jinja"
    file.write_text(HOSTILE[0])
    with pytest.raises(ConfigError, match="too much time or memory"):
        TemplateManager({}, {}, str(file))


@pytest.mark.promise(36)
def test_a_conversation_pays_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "QUICK_UNITS", 100)
    monkeypatch.setattr(chat_template, "MAX_UNITS", 100)
    each = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{% endfor %}"
    assert len(render(each, messages=MESSAGES * 1000)) == 11_000
    with pytest.raises(TooMuchTemplate):
        render("{% for m in messages %}" + each + "{% endfor %}", messages=MESSAGES * 1000)


def test_a_template_that_is_not_quick_is_not_wrong() -> None:
    long = ChatTemplate("{% for i in range(50000) %}.{% endfor %}")
    with pytest.raises(NotQuick):
        long.render({}, quick=True)
    assert long.render({}) == "." * 50_000


@pytest.mark.promise(43)
def test_a_rendering_that_nobody_waits_for_ends() -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(TooMuchTemplate):
        ChatTemplate("{% for i in range(50000) %}.{% endfor %}").render({}, cancelled=cancelled)


@pytest.mark.promise(36)
def test_deep_json_with_an_indent_of_four() -> None:
    # A client's tool, not the template, is what makes the text large.
    deep: Any = list(range(30_000))
    for _ in range(300):
        deep = [deep]
    with pytest.raises(TooMuchTemplate):
        render("{% for i in range(9) %}{{ tools | tojson(indent=64) }}{% endfor %}", tools=deep)
    assert render("{{ tools | tojson(indent=4) }}", tools=[{"a": [1]}]) == json.dumps([{"a": [1]}], indent=4)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 1 + 2 * 3 - 4 / 2 }}|{{ 7 // 2 }}|{{ 7 % 4 }}|{{ 2 ** 10 }}|{{ -1 }}", "5.0|3|3|1024|-1"),
        (
            "{{ [1] + [2] }}{{ (1,) + (2,) }}{{ 'a' + 'b' + 'c' }}{{ 'ab' * 2 }}{{ 2 * [1] }}",
            "[1, 2](1, 2)abcabab[1, 1]",
        ),
        ("{{ 1 < 2 < 3 }}{{ 1 < 2 > 3 }}{{ 'a' == 'a' != 'b' }}", "TrueFalseTrue"),
        ("{{ 'x' in 'xyz' }}{{ 'x' not in ['y'] }}{{ 1 in {1: 2} }}{{ 2 in (1, 2) }}", "TrueTrueTrueTrue"),
        (
            "{{ '%s-%03d' % ('a', 7) }}{{ '{0}{b!r:>4}'.format(1, b='c') }}{{ '{a[b]}'.format(a={'b': 1}) }}",
            "a-0071 'c'1",
        ),
        ("{{ 'abc'[::-1] }}{{ 'abc'[1] }}{{ [1, 2, 3][1:] }}{{ 'abc'[:-1] }}", "cbab[2, 3]ab"),
        ("{{ {'a': 1}.items() | list }}{{ {'items': 1}['items'] }}{{ {'b': 2}.get('c', 3) }}", "[('a', 1)]13"),
        (
            "{{ [3, 1, 2] | sort }}{{ [1, 2, 3] | batch(2) | list }}{{ [1, 1] | unique | list }}",
            "[1, 2, 3][[1, 2], [3]][1]",
        ),
        ("{{ messages | map(attribute='role') | join(',') }}{{ [1, 2] | sum }}{{ 'a b' | title }}", "user3A B"),
        ("{{ messages | groupby('role') | map(attribute='grouper') | list }}", "['user']"),
        ("{% for x in [1, 2] %}{{ loop.index }}/{{ loop.length }}{{ loop.cycle('a', 'b') }}{% endfor %}", "1/2a2/2b"),
        ("{% for x in [[1], [2]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "12"),
        ("{% for x in range(9) if x is odd %}{{ x }}{% else %}none{% endfor %}", "1357"),
        (
            "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, *[5, 6], **{'c': 7}) }}",
            "15(6,){'c': 7}",
        ),
        ("{% macro m() %}<{{ caller(1) }}>{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}", "<1>"),
        ("{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b is defined }}", "2False"),
        ("{% set x %}a{% endset %}{% filter upper %}{{ x }}{% endfilter %}{% with y = 1 %}{{ y }}{% endwith %}", "A1"),
        ("{{ 'a.b'.split('.') | last }}{{ 'a'.strip is defined }}{{ 'abc' | replace('b', 'xx') }}", "bTrueaxxc"),
        ("{% set j = joiner('|') %}{{ j() }}{{ j() }}{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.current }}", "|12"),
        (
            "{{ '<' | e }}{{ ('<' | safe) + '<' }}{{ 'a\nb' | indent(2) }}{{ 1.5 | round }}{{ '7' | int }}",
            "&lt;<&lt;a\n  b2.07",
        ),
    ],
)
def test_operations_are_those_of_jinja(source: str, expected: str) -> None:
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    assert render(source) == plain.render(messages=MESSAGES) == expected


@pytest.mark.promise(36)
@pytest.mark.parametrize(
    "source",
    [
        "{{ range.run }}",
        "{{ '{0.run}'.format(range) }}",
        "{{ [range] | map(attribute='run') | first }}",
        "{{ messages | map(attribute='__class__') | first }}",
        "{{ self._TemplateReference__context }}",
        "{{ guard }}{{ environment }}{{ context }}{{ spend }}",
        "{% for x in messages %}{{ loop._iterator }}{% endfor %}",
        "{% set m = messages.append %}{{ m }}",
        "{{ ''.__class__ }}",
    ],
)
def test_nothing_of_ours_can_be_reached(source: str) -> None:
    assert render(source) in ("", "Undefined")


def _path() -> str:
    return ":".join(sys.path)
