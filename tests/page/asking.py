"""Requests to a page that is served, as a browser would make them, or as none would."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Answer:
    """What a server says."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Asking:
    """Asks the page at an address that `served` gave."""

    address: str

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.address).query)["token"][0]

    def get(self, path: str, **headers: str) -> Answer:
        """With the token, unless the headers say otherwise."""
        return self.ask("GET", path, headers={"Authorization": f"Bearer {self.token}", **_named(headers)})

    def post(self, path: str, values: Any, **headers: str) -> Answer:
        """JSON, with the token."""
        own = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return self.ask("POST", path, json.dumps(values).encode(), {**own, **_named(headers)})

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """As it stands."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
