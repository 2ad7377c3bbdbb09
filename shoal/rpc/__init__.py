"""Building servers and channels: health, drain, keepalive, auth, status mapping, processes. No torch."""
