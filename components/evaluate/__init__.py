"""The step that measures the trained model on days that it never saw, and reports. `step.py` is its outline."""
