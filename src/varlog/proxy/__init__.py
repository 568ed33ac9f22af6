"""proxy: HTTP and WebSocket in front of the client library, with a live dashboard."""
