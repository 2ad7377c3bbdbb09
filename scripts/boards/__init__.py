"""The Grafana dashboards as code: one module per dashboard, written to JSON by `scripts/dashboards.py`."""
