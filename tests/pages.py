"""An HTML page as a test reads it."""

import json
from html.parser import HTMLParser
from typing import Any


class Reader(HTMLParser):
    """Its tags with their attributes, and the text inside each tag that has an id, or of each kind."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("id") or tag

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self.inside, []).append(data)

    @property
    def figures(self) -> dict[str, Any]:
        return json.loads("".join(self.text["figures"]))
