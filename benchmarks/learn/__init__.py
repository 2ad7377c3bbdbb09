"""The learning table: tasks and algorithms with defaults, over several seeds, beside published figures."""
