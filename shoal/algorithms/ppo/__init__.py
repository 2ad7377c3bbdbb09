"""PPO: a clipped policy gradient on its own newest data (Schulman et al. 2017, arXiv:1707.06347)."""
