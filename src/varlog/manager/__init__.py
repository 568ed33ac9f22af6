"""The manager process: registers nodes, creates streams, repairs them."""
