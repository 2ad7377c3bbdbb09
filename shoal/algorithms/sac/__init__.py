"""SAC: off-policy maximum entropy with an automatic temperature (Haarnoja et al. 2018, arXiv:1812.05905)."""
