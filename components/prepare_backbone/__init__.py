"""The step that pretrains the backbone, or fetches a published one. `backbone.py` says what a backbone is."""
