"""The step that trains one epoch with a policy: frozen tables, or tables that train along."""
