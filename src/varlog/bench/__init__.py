"""The canonical workloads of `varlog bench`, compared with the raw limits of the same machine."""
