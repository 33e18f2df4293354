"""The step that publishes a backbone, so that other runs can fetch it. `publish.py` says how."""
