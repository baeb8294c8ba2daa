"""Monitoring and instrumentation."""
