"""A key/value store with watches and transactions on a log."""
