"""The step that promotes a run whose evaluation passes the gate. `claims.py` says what it is to be promoted."""
