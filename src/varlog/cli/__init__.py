"""The commands: `varlog`; `vsn`, `vmr`, `vmc` and `vseq` run one process each."""
