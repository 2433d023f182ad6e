"""Every sentence that a program of this project ends with, read off its source."""

import ast
import re
from dataclasses import dataclass

from shardlab.files import ROOT

RAISED = ("UserError", "InputError", "Unsupported", "Stopped", "WorkflowError", "ValueError")
"""Exceptions that end a program with a message. ValueError: only in settings, where pydantic turns it into one."""
SHORTEST = 12
"""Minimum letters of a message's own text: shorter ones only pass on another message."""


@dataclass(frozen=True)
class Message:
    """An error message, with ``{names}`` as placeholders."""

    text: str
    room: str
    """Folder of scripts/shardlab, or the program."""

    @property
    def parts(self) -> tuple[str, str]:
        """Split into (problem, remedy)."""
        found = re.match(r"(.*?)(?:; |\. (?=[A-Z])|, so (?=\w))(.*)", self.text, re.DOTALL)
        return (found[1], found[2]) if found else (self.text, "")


def messages() -> list[Message]:
    """Return all messages without duplicates, sorted by room and text."""
    found = set()
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        inside = path.relative_to(ROOT / "scripts").parts
        folders = [each for each in inside[:-1] if each != "shardlab"]
        room = folders[0] if folders else path.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED and node.args:
                if node.func.id == "ValueError" and room != "settings":
                    continue
                text = " ".join(_text(node.args[0]).split())
                if len(re.sub(r"{[^}]*}", "", text)) >= SHORTEST:
                    found.add(Message(text.rstrip("."), room))
    return sorted(found, key=lambda message: (message.room, message.text.strip("{"), message.text))


def page() -> str:
    """Format as Markdown: a heading for each room, a row for each message."""
    lines = ["# Error messages", "", "Every error message, by the folder of `scripts/shardlab` (or the program)", ""]
    lines[2] += " that prints it, with placeholders in braces."
    found = messages()
    for room in dict.fromkeys(message.room for message in found):
        lines += ["", f"## {room}", "", "| message | remedy |", "| --- | --- |"]
        for message in found:
            if message.room == room:
                wrong, cure = (part.replace("|", "\\|").replace("<", "&lt;") for part in message.parts)
                lines.append(f"| {wrong} | {cure} |")
    return "\n".join(lines) + "\n"


def _text(node: ast.expr) -> str:
    """Return a string expression as the user sees it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "remedy":
            action, target = (_text(argument) for argument in node.value.args[:2])
            return f"{action} with: snakemake ... {target}"
        return "{" + _name(node.value) + "}".replace("_", " ")
    if isinstance(node, ast.BinOp):
        return _text(node.left) + "/" * isinstance(node.op, ast.Div) + _text(node.right)
    return "{" + _name(node) + "}"


def _name(node: ast.AST) -> str:
    """Return a name for a placeholder: the first name in its expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        if node.attr == "__name__":
            return "kind"
        return _name(node.value) if node.attr in ("name", "value", "root") else node.attr
    if isinstance(node, ast.Call) and not node.args:
        return _name(node.func)
    inner = node.args if isinstance(node, ast.Call) else list(ast.iter_child_nodes(node))
    return next((word for part in inner if (word := _name(part)) != "..."), "...")
