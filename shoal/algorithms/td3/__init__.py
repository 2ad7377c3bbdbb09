"""TD3: twin critics, delayed policy, smoothed targets (Fujimoto et al. 2018, arXiv:1802.09477)."""
