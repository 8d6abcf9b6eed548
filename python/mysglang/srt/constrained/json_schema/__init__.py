"""JSON schemas -> grammars: read, brought into one normal form, and written in the words of each grammar library.

document.py ──▶ algebra.py ──▶ grammar.py ──▶ written.py
 $ref, pointers   what values    rules of      EBNF, Lark or one
 well-formedness  it takes       JSON text     regular expression

regular.py, patterns.py and numbers.py know regular languages: strings, `pattern`, and numbers as they are written.

syntaxes.py has two other syntaxes for the same values, in which models write the arguments of calls.
joined.py puts the rules of several grammars, such as those of a request's tools, into one text.

A schema that cannot be held to exactly raises GrammarError, which names the keyword and its place.
"""
