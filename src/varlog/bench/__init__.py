"""The canonical workloads of `varlog bench`, with raw limits of the machine."""
