"""Networks of real processes that can be cut: by namespaces or by proxies."""
