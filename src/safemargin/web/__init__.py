"""The explorer: a local web page on the episodes of a study."""

from safemargin.web.explorer import HOSTS, create_app
from safemargin.web.server import listen, serve

__all__ = ["HOSTS", "create_app", "listen", "serve"]
