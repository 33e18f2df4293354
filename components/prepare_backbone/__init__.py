"""The step that pretrains the backbone, or fetches a published one. `backbone.py` says what a backbone is.

What this step pretrained is published by a run of the backbone pipeline (`publish_backbone/`): `thaw run --kind
backbone`, with `backbone.publish_prefix_uri` set. Runs that fetch there take the newest that they may (`fetch.py`).
"""
