"""`/docs`: the addresses of a server and what they take, as one page without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

# Escaped, though nothing of a request is shown: names and help come from this code alone.
TEMPLATES = Environment(
    loader=PackageLoader("etymon.server", "templates"),
    autoescape=select_autoescape(),
    trim_blocks=True,
    lstrip_blocks=True,
)


def docs_page(schema: Mapping[str, Any]) -> str:
    """The page of an OpenAPI schema."""
    parts = schema["components"]["schemas"]
    calls = []
    for path, methods in schema["paths"].items():
        for method, call in methods.items():
            # Answers that are no JSON (figures, streams) have no table.
            content = call.get("requestBody", {}).get("content", {}).get("application/json", {})
            answer = call["responses"].get("200", {}).get("content", {}).get("application/json", {})
            calls.append(
                {
                    "path": path,
                    "method": method.upper(),
                    "summary": call.get("summary", ""),
                    "tag": (call.get("tags") or [""])[0],
                    "fields": _fields(content.get("schema"), parts),
                    "answer": _fields(answer.get("schema"), parts),
                }
            )
    return TEMPLATES.get_template("docs.html").render(
        title=schema["info"]["title"], schema=schema, calls=calls
    )


def _fields(schema: Mapping[str, Any] | None, parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of an object: name, type, default and what they are."""
    if schema is None or "$ref" not in schema:
        return []
    made = parts[_name(schema)]
    return [
        {
            "name": name,
            "kind": _kind(field),
            "default": field.get("default"),
            "is_required": name in made.get("required", ()),
            "help": field.get("description", ""),
        }
        for name, field in made.get("properties", {}).items()
    ]


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _kind(field: Mapping[str, Any]) -> str:
    """A type as people write it: `list of string or null`."""
    if "$ref" in field:
        return _name(field)
    # Members that read alike (lists of different lengths) are named once.
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_kind(part) for part in field["anyOf"]))
    if "enum" in field or "const" in field:
        return ", ".join(f'"{value}"' for value in field.get("enum", [field.get("const")]))
    kind = str(field.get("type", "any"))
    return f"list of {_kind(field.get('items', {}))}" if kind == "array" else kind
