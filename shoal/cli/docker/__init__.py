"""`shoal up`, `down`, `scale`, `ps`, `logs` and `chaos`: the services as containers of a compose project.

Creating and scaling is left to compose's own command (`compose.py`). Looking at containers, reading their
logs and killing them goes through the Docker SDK (`engine.py`), imported when it is needed: it is an extra.
"""
