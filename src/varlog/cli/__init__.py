"""The commands: `varlog` for people and programs, `vsn`, `vmr` and `vmc` run one process each."""
