"""Words of JSON schema that grammars and the tools of a request both read: keywords, formats, references."""

from __future__ import annotations

_HEX = "[0-9a-fA-F]"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_WORD = f"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [f"({_WORD}:){{7}}{_WORD}", f"({_WORD}:){{1,7}}:", f":(:{_WORD}){{1,7}}", "::"]
    + [f"({_WORD}:){{1,{count}}}(:{_WORD}){{1,{7 - count}}}" for count in range(1, 7)]
)
_MONTHS = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
_DATE = f"[0-9]{{4}}-({_MONTHS})"
"""Dates without the 29th of February, for which the year would have to be divided."""
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-zA-Z0-9]{1,20}(-[a-zA-Z0-9]{1,20})?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}"
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_{|}~-]{1,20}"
_URI_PART = r"([a-zA-Z0-9._~!$&'()*+,;=:@/-]|%[0-9a-fA-F]{2})*"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"({_DATE})T{_TIME}",
    "duration": "P([0-9]+W|[0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D"
    "|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))",
    "email": rf"{_ATOM}(\.{_ATOM}){{0,2}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": f"({_IPV6})",
    "uuid": f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "uri": rf"[a-zA-Z][a-zA-Z0-9+.-]*://{_HOST}(:[0-9]{{1,5}})?(/{_URI_PART})?(\?{_URI_PART})?(#{_URI_PART})?",
}
"""Formats that strings are held to -> a regular expression for whole strings. Each takes less than the format allows,
and nothing else. Any other `format` is a note to the reader, which is the default of JSON schema.
"""

PYTHON_PARAMETER = "[A-Za-z_][A-Za-z0-9_]*"
"""Pattern of the names of parameters in calls that are written as in Python. Its own words are no exception."""

RESTRICTING = frozenset(
    (
        *("type", "enum", "const", "$ref", "$dynamicRef", "$recursiveRef"),
        *("allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired", "dependencies"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format"),
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems"),
        *("contains", "minContains", "maxContains", "properties", "patternProperties", "additionalProperties"),
        *("unevaluatedProperties", "propertyNames", "required", "minProperties", "maxProperties"),
    )
)
"""Keywords that limit which values a schema allows. All others are notes to the reader, or have schemas to refer to."""


def pointer_steps(fragment: str) -> list[str]:
    """Returns the keys that a JSON Pointer names, from the outside in; `fragment`: the pointer, without the `#` before
    it and with its escapes for URIs resolved.

    Source: RFC 6901.
    """
    return [step.replace("~1", "/").replace("~0", "~") for step in fragment.split("/")[1:]]


def pointer_step(key: str) -> str:
    """Returns a key as a step of a JSON Pointer, which `pointer_steps` reads."""
    return key.replace("~", "~0").replace("/", "~1")
