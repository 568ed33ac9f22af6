"""The commands: `varlog` for people and programs, `vsn`, `vmr`, `vmc` and `vseq` run one process each."""
