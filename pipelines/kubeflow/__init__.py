"""Kubeflow Pipelines as a user meets it: submit, schedule, backfill, check. README.md is the user's page."""
