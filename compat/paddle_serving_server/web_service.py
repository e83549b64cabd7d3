"""`from paddle_serving_server.web_service import WebService, Op`."""

from pipeline import Op, WebService

__all__ = ["Op", "WebService"]
