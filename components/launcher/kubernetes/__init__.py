"""The backend `kubernetes`: what the launcher and the commands do at an API server."""
