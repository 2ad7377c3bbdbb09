"""Ape-X DQN: double, n-step, prioritised Q-learning (Horgan et al. 2018, arXiv:1803.00933)."""
