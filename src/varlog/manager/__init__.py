"""Layer 3: the manager keeps the cluster whole: registers nodes, makes streams, repairs them (a process)."""
