"""Our docstrings as Markdown, for the pages of the API: lists of names become lists, examples become code."""

import re
from typing import Any

from griffe import Attribute, Docstring, ExprCall, ExprKeyword, Extension, Object

ENTRY = re.compile(r"^(?P<names>[\w…]\S*(?:, [\w…]\S*)*?)(?: …)? {2,}(?P<text>\S.*)$")


def markdown(text: str) -> str:
    """Lines of a name, two spaces or more and what it means become a list; what starts with >>> becomes a block."""
    lines, example, listed = [], False, False
    for line in text.splitlines():
        if example and not line.strip():
            lines, example = [*lines, "```"], False
        if line.startswith(">>> ") and not example:
            lines, example, listed = [*lines, "", "```pycon"], True, False
        entry = None if example else ENTRY.match(line)
        if entry:
            names = ", ".join(f"`{name}`" for name in entry["names"].split(", "))
            lines += ([] if listed else [""]) + [f"- {names}: {entry['text']}"]
            listed = True
        elif listed and line.startswith("    "):
            lines.append(f"    {line.strip()}")
        else:
            lines.append(line)
            listed = False
    return "\n".join([*lines, *(["```"] if example else [])])


def described(attribute: Attribute) -> str | None:
    """What a setting says about itself: `Field(description="…")`."""
    call = attribute.value
    if isinstance(call, ExprCall) and str(call.function) == "Field":
        for argument in call.arguments:
            if isinstance(argument, ExprKeyword) and argument.name == "description":
                return str(argument.value).lstrip("f").strip("'\"")
    return None


class Markdown(Extension):
    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
        elif isinstance(obj, Attribute) and (text := described(obj)):
            obj.docstring = Docstring(text, parent=obj)
