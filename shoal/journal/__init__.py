"""The files of a replay table: what is written into them and how they are read back."""
