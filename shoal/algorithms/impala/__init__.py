"""IMPALA: actor-critic with V-trace off-policy correction (Espeholt et al. 2018, arXiv:1802.01561)."""
