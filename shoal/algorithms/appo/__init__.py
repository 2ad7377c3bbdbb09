"""Asynchronous PPO: the clipped objective of PPO with V-trace targets, on data of older policies."""
