"""The tab "explore" of the page: what is asked for under `/explore/`."""

from starlette.routing import Route

from frugan.page.runs import Runs


def explore_routes(runs: Runs) -> list[Route]:
    """Address -> what answers there."""
    return []
